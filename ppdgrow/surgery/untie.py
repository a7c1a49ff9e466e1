"""Untying: a tied pair becomes two members, folded, at the first optimizer step after growth."""

from __future__ import annotations

from torch import Tensor

from ppdgrow.config.architecture import Architecture
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.parts import NAMES, BlockNames
from ppdgrow.optim.update_rules import update_that_keeps
from ppdgrow.surgery.apply import MomentsByName, Tensors


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
