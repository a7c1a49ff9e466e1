"""Surgery on checkpoints of other makers: the same growth under other tensor names gives the same tensors."""

from __future__ import annotations

import pytest
import torch
from grown_models import CASES, Case, weights
from torch import Tensor

from ppdgrow.nn.parts import NAMES, BlockNames, TensorName
from ppdgrow.surgery import GrowthRequest, apply_plan, plan_growth, remove_blocks, theta_digest, untie

MEMBERS = {"": "", "plus": "first", "minus": "second"}
ROLES = {"": "", "f": "mixer", "g": "mlp"}
SOME = list({(case.family, case.stream, case.layer): case for case in CASES}.values())


class OtherNames(BlockNames):
    """`decoder.layer_l1/mixer|qkv.weight`."""

    def join(self, name: TensorName) -> str:
        return f"decoder.{MEMBERS[name.member]}_{name.block}/{ROLES[name.role]}|{name.tensor}"

    def parse(self, name: str) -> TensorName | None:
        if not name.startswith("decoder."):
            return None
        place, _, tensor = name.removeprefix("decoder.").partition("|")
        block, _, role = place.partition("/")
        member, _, block_id = block.partition("_")
        members = {value: key for key, value in MEMBERS.items()}
        roles = {value: key for key, value in ROLES.items()}
        return TensorName(block_id, members[member], roles[role], tensor)


OTHERS = OtherNames()


def renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    places = {name: NAMES.parse(name) for name in tensors}
    return {name if (place := places[name]) is None else OTHERS.join(place): t for name, t in tensors.items()}


def same(x: dict[str, Tensor], y: dict[str, Tensor]) -> bool:
    return x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("method", ["pair", "copy", "zero"])
def test_growth_untying_and_removal_know_only_the_names_that_they_are_given(case: Case, method: str) -> None:
    architecture = case.architecture()
    old = weights(architecture)
    kinds = ("ffn", case.layer)
    request = GrowthRequest(kinds, pairs=2, method=method)  # type: ignore[arg-type]
    found = {}
    for names, tensors in ((NAMES, old), (OTHERS, renamed(old))):
        plan = plan_growth(architecture, request, step=3, names=names)
        grown, _ = apply_plan(plan, tensors, {}, policy="fresh", seed=1)
        untied_architecture, untied, _ = untie(plan.architecture, grown, {}, names=names)
        _, back, _ = remove_blocks(untied_architecture, frozenset(plan.ids), untied, {}, names=names)
        assert same(back, tensors)
        found[names] = untied, [theta_digest(grown, block_id, names=names) for block_id in plan.ids]
    assert len(found[NAMES][0]) > len(old)
    assert same(renamed(found[NAMES][0]), found[OTHERS][0])
    assert found[NAMES][1] == found[OTHERS][1]


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_name_that_is_taken_apart_is_put_together_again(case: Case) -> None:
    architecture = case.architecture()
    plan = plan_growth(architecture, GrowthRequest(("ffn", "depthwise", "orthogonal", "linear"), pairs=4), step=1)
    tensors, _ = apply_plan(plan, weights(architecture), {}, policy="fresh", seed=1)
    places = {name: NAMES.parse(name) for name in untie(plan.architecture, tensors, {})[1]}
    in_blocks = {name: place for name, place in places.items() if place is not None}
    assert all(NAMES.join(place) == name for name, place in in_blocks.items())
    assert {place.block for place in in_blocks.values()} == {block.id for block in plan.architecture.blocks}
    assert {name.split(".")[0] for name in places.keys() - in_blocks.keys()} == {"embed", "head"}
