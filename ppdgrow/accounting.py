"""Honest accounting of depth, from the architecture alone: parameters, FLOPs per token, half-steps.

FLOPs count a multiply-add as two: matrix products, convolutions and attention only (scores and values over all T keys,
also where a causal mask hides half of them), as `torch.utils.flop_counter` does.

An untied pair (two layers) at width D with MLP ratio 4, K taps and T tokens, biases and norms left out:

    kind           weights           forward FLOPs per token
    ffn            8 D^2             16 D^2
    attention      6 D^2             12 D^2 + 4 T D
    recurrent      5.5 D^2           11 D^2
    convolution    5 D^2 + K D       10 D^2 + 2 K D
    depthwise      2 K D             4 K D
    orthogonal     2 D^2             4 D^2
    linear         2 D^2 + 2 D       4 D^2

A coupled layer has 3 D^2 weights (`mlp`: 4 D^2), a residual one 12 D^2 (`mlp`: 16 D^2).
"""

from __future__ import annotations

from ppdgrow.config.architecture import Architecture, BlockSpec, ImageInput, TokenInput, VectorInput
from ppdgrow.config.kinds import LINEAR, branches_of

BACKWARD_FACTOR = 3  # forward plus a backward pass of twice its cost


def count_parameters(architecture: Architecture) -> int:
    """Stored parameters; a tied pair counts its one parameter set."""
    width = architecture.width
    spec = architecture.input
    head = _norm(architecture, width)
    if isinstance(spec, TokenInput):
        positions = spec.sequence_length if architecture.family == "transformer" else 0
        embed = (spec.vocabulary_size + positions) * width
        head += 0 if architecture.tie_embeddings else (width + 1) * spec.vocabulary_size
    else:
        positions = tokens_per_example(architecture) if architecture.family == "transformer" else 0
        embed = (image_features(architecture) + 1 + positions) * width
        head += (width + 1) * spec.num_classes
    return embed + head + sum(block_parameters(architecture, block) for block in architecture.blocks)


def block_parameters(architecture: Architecture, block: BlockSpec) -> int:
    """Stored parameters of one block."""
    members = 2 if block.state == "untied" else 1
    if block.kind in LINEAR:
        scales = architecture.width if block.kind == "linear" else 0
        return members * (architecture.width**2 + scales)
    channels = _channels(architecture, block)
    branches = branches_of(architecture.family, block.kind)
    return members * sum(_branch_parameters(architecture, branch, channels) for branch in branches)


def flops_per_token(architecture: Architecture) -> int:
    """Forward FLOPs per token (per patch or vector for images, the head's share included, rounded down)."""
    width = architecture.width
    spec = architecture.input
    if isinstance(spec, TokenInput):
        embed = 0
        head = 2 * width * spec.vocabulary_size
    else:
        embed = 2 * image_features(architecture) * width
        head = 2 * width * spec.num_classes // tokens_per_example(architecture)
    return embed + head + sum(block_flops(architecture, block) for block in architecture.blocks)


def block_flops(architecture: Architecture, block: BlockSpec) -> int:
    """Forward FLOPs per token of one block; a pair evaluates both members whether tied or not."""
    if block.kind in LINEAR:
        return 4 * architecture.width**2  # forming W is per step, not per token, and not counted
    members = 2 if block.type == "pair" else 1
    channels = _channels(architecture, block)
    branches = branches_of(architecture.family, block.kind)
    return members * sum(_branch_flops(architecture, branch, channels) for branch in branches)


def training_flops_per_token(architecture: Architecture) -> int:
    """Forward and backward FLOPs per token."""
    return BACKWARD_FACTOR * flops_per_token(architecture)


def tokens_per_example(architecture: Architecture) -> int:
    """Tokens per sequence, or patches per image; a plain vector is one."""
    spec = architecture.input
    if isinstance(spec, TokenInput):
        return spec.sequence_length
    return spec.num_patches if isinstance(spec, ImageInput) and architecture.family == "transformer" else 1


def half_steps(architecture: Architecture) -> int:
    """Sequential branch evaluations: 2 a layer, 2n + 1 for n adjacent additive pairs (not 4n), 2 a linear pair.

    Within an additive pair the two g read one value, and the last f of a pair and the first f of the next one do.
    """
    return sum(steps for _, steps in half_steps_by_block(architecture))


def half_steps_by_block(architecture: Architecture) -> list[tuple[str, int]]:
    """Block ids with the sequential steps that each adds to those before it."""
    steps, after_pair = [], False
    for block in architecture.blocks:
        pair = block.type == "pair" and block.kind not in LINEAR
        steps.append((block.id, 3 if pair and not after_pair else 2))
        after_pair = pair
    return steps


def _channels(architecture: Architecture, block: BlockSpec) -> int:
    return architecture.width // 2 if block.type == "pair" else architecture.layer_width


def image_features(architecture: Architecture) -> int:
    """Numbers that the embedding reads at once: of a patch, of a whole image or of a vector (0 for tokens)."""
    spec = architecture.input
    if isinstance(spec, ImageInput):
        area = spec.patch_size**2 if architecture.family == "transformer" else spec.height * spec.width
        return spec.channels * area
    return spec.features if isinstance(spec, VectorInput) else 0


def _norm(architecture: Architecture, channels: int) -> int:
    return channels * (2 if architecture.norm == "layer" else 1)


def _branch_parameters(architecture: Architecture, branch: str, channels: int) -> int:
    square, hidden, taps = channels**2, architecture.ffn_multiplier * channels, architecture.kernel_size
    own = {
        "mlp": 2 * channels * hidden + hidden + channels,
        "attention": 4 * square + 4 * channels,
        "recurrence": 3 * square + 3 * channels,
        "convolution": 2 * square + (taps + 3) * channels,
        "depthwise": (taps + 1) * channels,
        "affine": 4 * channels,
    }
    return _norm(architecture, channels) + own[branch]


def _branch_flops(architecture: Architecture, branch: str, channels: int) -> int:
    square, taps = channels**2, architecture.kernel_size
    convolution = 2 * taps * channels if taps > 1 else 0
    return {
        "mlp": 4 * architecture.ffn_multiplier * square,
        "attention": 8 * square + 4 * tokens_per_example(architecture) * channels,
        "recurrence": 6 * square,
        "convolution": 4 * square + convolution,
        "depthwise": convolution,
        "affine": 0,
    }[branch]
