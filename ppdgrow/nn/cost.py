"""Honest accounting of depth, from the architecture alone: parameters, FLOPs per token, half-steps.

FLOPs count a multiply-add as two: matrix products, convolutions and attention only (scores and values over all T keys,
also where a causal mask hides half of them), as `torch.utils.flop_counter` does.
"""

from __future__ import annotations

from math import prod

from torch import nn

from ppdgrow.config.architecture import Architecture, BlockSpec, PretrainedArchitecture
from ppdgrow.config.kinds import KINDS
from ppdgrow.nn.embedding_and_head import Head, embedding_of, make_embedding, num_outputs
from ppdgrow.nn.meta import without_memory
from ppdgrow.nn.parts import block_parts

BACKWARD_FACTOR = 3  # forward plus a backward pass of twice its cost


def count_parameters(architecture: Architecture) -> int:
    """Stored parameters; a tied pair counts its one parameter set."""
    if isinstance(architecture, PretrainedArchitecture):
        return architecture.parameters
    with without_memory(architecture.width):
        ends = nn.ModuleList([make_embedding(architecture), Head(architecture)])
    stored = sum(parameter.numel() for parameter in ends.parameters())
    return stored + sum(block_parameters(architecture, block) for block in architecture.blocks)


def block_parameters(architecture: Architecture, block: BlockSpec) -> int:
    """Stored parameters of one block."""
    members = 2 if block.state == "untied" else 1
    return members * sum(prod(shape) for part in block_parts(architecture, block) for shape in part.shapes.values())


def flops_per_token(architecture: Architecture) -> int:
    """Forward FLOPs per token (per patch or vector for images, the head's share included, rounded down)."""
    if isinstance(architecture, PretrainedArchitecture):
        return architecture.forward_flops
    with without_memory(architecture.width):
        embedding = make_embedding(architecture)
    embed = sum(2 * module.weight.numel() for module in embedding.modules() if isinstance(module, nn.Linear))
    head = 2 * architecture.width * num_outputs(architecture)
    if embedding.pooled:
        head //= tokens_per_example(architecture)
    return embed + head + sum(block_flops(architecture, block) for block in architecture.blocks)


def block_flops(architecture: Architecture, block: BlockSpec) -> int:
    """Forward FLOPs per token of one block; a pair evaluates both members whether tied or not."""
    members = 2 if block.type == "pair" else 1
    tokens = tokens_per_example(architecture)
    return members * sum(part.module.flops_per_token(part.config, tokens) for part in block_parts(architecture, block))


def training_flops_per_token(architecture: Architecture) -> int:
    """Forward and backward FLOPs per token."""
    return BACKWARD_FACTOR * flops_per_token(architecture)


def tokens_per_example(architecture: Architecture) -> int:
    """Tokens per sequence, or patches per image; a plain vector is one."""
    return embedding_of(architecture).num_tokens(architecture.input)


def half_steps(architecture: Architecture) -> int:
    """Sequential branch evaluations: 2 a layer, 2n + 1 for n adjacent additive pairs (not 4n), 2 a linear pair.

    Within an additive pair the two g read one value, and the last f of a pair and the first f of the next one do.
    """
    return sum(steps for _, steps in half_steps_by_block(architecture))


def half_steps_by_block(architecture: Architecture) -> list[tuple[str, int]]:
    """Block ids with the sequential steps that each adds to those before it."""
    steps, after_pair = [], False
    for block in architecture.blocks:
        pair = block.type == "pair" and KINDS[block.kind].additive
        steps.append((block.id, 3 if pair and not after_pair else 2))
        after_pair = pair
    return steps
