"""Honest accounting of depth, from the architecture alone: parameters, FLOPs per token, half-steps.

FLOPs count a multiply-add as two, matrix products and attention only (scores and values over all T keys, also
where a causal mask hides half of them), as `torch.utils.flop_counter` does.
"""

from __future__ import annotations

from ppdgrow.config.architecture import Architecture, BlockSpec, ImageInput

BACKWARD_FACTOR = 3  # forward plus a backward pass of twice its cost


def count_parameters(architecture: Architecture) -> int:
    """Stored parameters; a tied pair counts its one parameter set."""
    width = architecture.width
    spec = architecture.input
    head = _norm(architecture, width)
    if isinstance(spec, ImageInput):
        embed = (spec.channels * spec.patch_size**2 + 1) * width + spec.num_patches * width
        head += (width + 1) * spec.num_classes
    else:
        embed = (spec.vocabulary_size + spec.sequence_length) * width
        head += 0 if architecture.tie_embeddings else (width + 1) * spec.vocabulary_size
    return embed + head + sum(block_parameters(architecture, block) for block in architecture.blocks)


def block_parameters(architecture: Architecture, block: BlockSpec) -> int:
    """Stored parameters of one block."""
    members = 2 if block.state == "untied" else 1
    return members * sum(_branch_parameters(architecture, *branch) for branch in _branches(architecture, block))


def flops_per_token(architecture: Architecture) -> int:
    """Forward FLOPs per token (per patch for images, the head's share included, rounded down)."""
    width = architecture.width
    spec = architecture.input
    if isinstance(spec, ImageInput):
        embed = 2 * spec.channels * spec.patch_size**2 * width
        head = 2 * width * spec.num_classes // spec.num_patches
    else:
        embed = 0
        head = 2 * width * spec.vocabulary_size
    return embed + head + sum(block_flops(architecture, block) for block in architecture.blocks)


def block_flops(architecture: Architecture, block: BlockSpec) -> int:
    """Forward FLOPs per token of one block; a pair evaluates both members whether tied or not."""
    members = 2 if block.type == "pair" else 1
    return members * sum(_branch_flops(architecture, *branch) for branch in _branches(architecture, block))


def training_flops_per_token(architecture: Architecture) -> int:
    """Forward and backward FLOPs per token."""
    return BACKWARD_FACTOR * flops_per_token(architecture)


def tokens_per_example(architecture: Architecture) -> int:
    """Tokens per sequence, or patches per image."""
    spec = architecture.input
    return spec.num_patches if isinstance(spec, ImageInput) else spec.sequence_length


def half_steps(architecture: Architecture) -> int:
    """Sequential branch evaluations: 2 a layer, 2n + 1 for n adjacent pairs (not 4n).

    Within a pair the two g read one value, and the last f of a pair and the first f of the next one do.
    """
    steps, after_pair = 0, False
    for block in architecture.blocks:
        pair = block.type == "pair"
        steps += 3 if pair and not after_pair else 2
        after_pair = pair
    return steps


def _branches(architecture: Architecture, block: BlockSpec) -> list[tuple[str, int]]:
    channels = architecture.width // 2 if block.type == "pair" else architecture.layer_width
    first = "mlp" if block.kind == "ffn" else block.kind
    return [(first, channels), ("mlp", channels)]


def _norm(architecture: Architecture, channels: int) -> int:
    return channels * (2 if architecture.norm == "layer" else 1)


def _branch_parameters(architecture: Architecture, branch: str, channels: int) -> int:
    norm = _norm(architecture, channels)
    if branch == "attention":
        return norm + 4 * channels * channels + 4 * channels
    hidden = architecture.ffn_multiplier * channels
    return norm + 2 * channels * hidden + hidden + channels


def _branch_flops(architecture: Architecture, branch: str, channels: int) -> int:
    if branch == "attention":
        return 8 * channels * channels + 4 * tokens_per_example(architecture) * channels
    return 4 * channels * architecture.ffn_multiplier * channels
