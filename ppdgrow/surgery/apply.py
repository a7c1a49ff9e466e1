"""Applying a plan, untying its pairs, taking blocks out: pure functions on named tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ppdgrow.config.architecture import Architecture
from ppdgrow.config.growth import Moments
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.init import initial_tensor
from ppdgrow.nn.parts import NAMES, BlockNames
from ppdgrow.optim.update_rules import update_that_keeps
from ppdgrow.surgery.plan import GrowthPlan
from ppdgrow.surgery.sources import Origin

Tensors = Mapping[str, Tensor]
MomentsByName = Mapping[str, Tensors]


def apply_plan(
    plan: GrowthPlan, tensors: Tensors, moments: MomentsByName, *, policy: Moments, seed: int
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Weights and optimizer state of the grown model; those of older parameters are passed through.

    Args:
        plan: the growth.
        tensors: the parent's weights.
        moments: the parent's optimizer state by parameter name; may be empty.
        policy: `fresh` gives new parameters no state, `copy_v` the second moment and step count of their
            source, `copy` the first moment too.
        seed: of the tensors that are drawn.
    """
    grown = dict(tensors)
    grown_moments = {name: dict(state) for name, state in moments.items()}
    for origin in plan.origins:
        grown[origin.name] = _make(origin, tensors, seed, plan.architecture.num_layers)
        if policy != "fresh" and origin.source is not None and origin.source in moments:
            state, cut = moments[origin.source], partial(_cut, origin)
            grown_moments[origin.name] = update_that_keeps(state).copied(state, cut, momentum=policy == "copy")
    return grown, grown_moments


def _make(origin: Origin, tensors: Tensors, seed: int, num_layers: int) -> Tensor:
    shape = origin.part.shapes[origin.tensor]
    if origin.how == "zero":
        return torch.zeros(shape)
    if origin.source is None:
        deviation = origin.part.deviation(origin.tensor, num_layers)
        made = initial_tensor(origin.name, shape, seed=seed, deviation=deviation)
    else:
        made = _cut(origin, tensors[origin.source])
    return made if origin.factor == 1.0 else made * origin.factor


def _cut(origin: Origin, tensor: Tensor) -> Tensor:
    return tensor[origin.cut].clone(memory_format=torch.contiguous_format) if origin.cut else tensor.clone()


def untie(
    architecture: Architecture, tensors: Tensors, moments: MomentsByName, *, names: BlockNames = NAMES
) -> tuple[Architecture, dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Give every tied pair its second member, folded: theta- is theta+ with negated output projections.

    The function is unchanged to the bit. Momentum is negated with the weights, so that stale momentum moves
    both members alike (in unfolded signs) and leaves the function unchanged.
    """
    tied = {block.id for block in architecture.pairs if block.state == "tied"}
    blocks = tuple(
        block.model_copy(update={"state": "untied"}) if block.id in tied else block for block in architecture.blocks
    )
    untied = dict(tensors)
    untied_moments = {name: dict(state) for name, state in moments.items()}
    for name, tensor in tensors.items():
        place = names.parse(name)
        if place is None or place.block not in tied:
            continue
        second, negated = names.second_member(place), place.tensor in OUTPUT_PROJECTION
        untied[second] = -tensor if negated else tensor.clone()
        if name in moments:
            state = moments[name]
            copies = {key: value.clone() for key, value in state.items()}
            untied_moments[second] = update_that_keeps(state).negated(state) if negated else copies
    return architecture.with_blocks(blocks), untied, untied_moments


def remove_blocks(
    architecture: Architecture,
    ids: frozenset[str],
    tensors: Tensors,
    moments: MomentsByName,
    *,
    names: BlockNames = NAMES,
) -> tuple[Architecture, dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Take blocks out; every other tensor stays as it is."""
    return (
        architecture.with_blocks(tuple(block for block in architecture.blocks if block.id not in ids)),
        {name: tensor for name, tensor in tensors.items() if names.block_of(name) not in ids},
        {name: dict(state) for name, state in moments.items() if names.block_of(name) not in ids},
    )


def theta_digest(tensors: Tensors, pair_id: str, *, names: BlockNames = NAMES) -> str:
    """sha256 of a pair's first member: names, shapes and bytes in the order of the names."""
    places = ((names.parse(name), tensor) for name, tensor in tensors.items())
    member = {
        place.within_member: tensor
        for place, tensor in places
        if place is not None and (place.block, place.member) == (pair_id, "plus")
    }
    digest = hashlib.sha256()
    for name in sorted(member):
        tensor = member[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
