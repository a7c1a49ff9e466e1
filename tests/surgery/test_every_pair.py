"""What DESIGN section 1 promises of a pair, for every kind in every family, stream, task and type.

Identity at insertion, opposite gradients of the members, unchanged gradients of older parameters, all to the last bit;
an exact inverse within a bound; parameters and FLOPs as predicted; save and load; removal. Controls are at the end.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from grown_models import (
    CASES,
    GROWTHS,
    MODES,
    Case,
    borrowed,
    every_case,
    every_growth,
    every_mode,
    gradients,
    grow,
    inputs,
    logits,
    model,
    outputs,
    trained,
    weights,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ppdgrow.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.kinds import FAMILIES, KINDS
from ppdgrow.config.state import DataIdentity, Environment, Ledger, TrainerState
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.cost import count_parameters, flops_per_token, tokens_per_example
from ppdgrow.nn.coupling import Coupling, Halves, Pair, join, split
from ppdgrow.nn.linear import LinearPair, OrthogonalMap
from ppdgrow.nn.model import AnyPair
from ppdgrow.nn.parts import block_parts
from ppdgrow.surgery import GrowthRequest, remove_blocks, theta_digest, untie
from ppdgrow.surgery.plan import METHODS

ROUND_TRIP = {"fp64": 1e-9, "fp32": 1e-3}  # relative to the largest entry
Grown = tuple[Architecture, dict[str, Tensor], Architecture, dict[str, Tensor]]


def grown(case: Case, kind: str, *, tied: bool = True) -> Grown:
    """An architecture and its weights, before and after two pairs of a kind, whose weights are anything but small."""
    architecture, old, grown_architecture, tensors = _grown(case, kind)
    if tied:
        return architecture, old, grown_architecture, dict(tensors)
    return architecture, old, *untie(grown_architecture, tensors, {})[:2]


@cache
def _grown(case: Case, kind: str) -> Grown:
    architecture = case.architecture()
    old = weights(architecture)
    plan, tensors = grow(architecture, old, GrowthRequest(kinds=(kind,), pairs=2))
    assert [block.kind for block in plan.architecture.pairs] == [expected_kind(case, kind)] * 2
    theta = trained({name: tensor for name, tensor in tensors.items() if name not in old}, seed=8)
    return architecture, old, plan.architecture, tensors | theta


def expected_kind(case: Case, kind: str) -> str:
    """`recurrent` is the mixer of a sequence model, whichever that is."""
    return case.layer if case.family == "sequence" and kind == "recurrent" else kind


@every_mode
@every_growth
def test_insertion_keeps_the_logits_to_the_last_bit(case: Case, kind: str, mode: str) -> None:
    old_architecture, old, architecture, tensors = grown(case, kind)
    before = logits(old_architecture, old, mode)
    assert torch.equal(logits(architecture, tensors, mode), before)
    untied_architecture, untied, _ = untie(architecture, tensors, {})
    assert all(block.state == "untied" for block in untied_architecture.pairs)
    assert torch.equal(logits(untied_architecture, untied, mode), before)


@pytest.mark.parametrize("mode", ["fp64", "fp32", "bf16_autocast"])
@every_growth
def test_gradients_of_old_parameters_stay_and_those_of_the_members_are_opposite(
    case: Case, kind: str, mode: str
) -> None:
    old_architecture, old, architecture, tensors = grown(case, kind, tied=False)
    expected, found = gradients(old_architecture, old, mode), gradients(architecture, tensors, mode)
    assert found.keys() == tensors.keys(), "a parameter without a gradient would never train"
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    folded = KINDS[expected_kind(case, kind)].additive
    members = [name for name in found if ".plus." in name]
    assert members
    for name in members:
        sign = 1.0 if folded and name.endswith(OUTPUT_PROJECTION) else -1.0
        assert torch.equal(found[name.replace(".plus.", ".minus.")], sign * found[name]), name
        assert bool(found[name].any()) or name.endswith("qkv.bias"), name


@pytest.mark.parametrize("mode", ["fp64", "fp32"])
@every_growth
@torch.no_grad()
def test_every_block_has_an_exact_inverse(case: Case, kind: str, mode: str) -> None:
    """Tied, untied and equal, and untied with members that training has moved apart."""
    _, _, tied_architecture, tied = grown(case, kind)
    architecture, untied, _ = untie(tied_architecture, tied, {})
    for arch, tensors in ((tied_architecture, tied), (architecture, untied), (architecture, trained(untied))):
        network = borrowed(arch, tensors, mode)
        checked = 0
        for block, state in seen(network):
            if isinstance(block, Coupling | Pair | LinearPair):
                assert round_trip(block, state) < ROUND_TRIP[mode]
                checked += 1
        assert checked == len(arch.pairs) + (len(arch.blocks) - len(arch.pairs)) * (case.stream == "coupled")


def seen(network: torch.nn.Module, batch: int = 3) -> list[tuple[torch.nn.Module, Halves]]:
    """Every block with the halves that it reads from real inputs."""
    found: list[tuple[torch.nn.Module, Halves]] = []
    x = inputs(network.architecture, batch)  # type: ignore[arg-type]
    dtype = next(network.parameters()).dtype
    network.run(  # type: ignore[operator]
        x.to(dtype) if x.is_floating_point() else x,
        before_block=lambda name, state: found.append(
            (network.get_submodule(f"blocks.{name}"), state if isinstance(state, tuple) else split(state))
        ),
    )
    return found


def round_trip(block: Coupling | AnyPair, x: Halves) -> float:
    back = block.inverse(block(x))
    scale = max(float(half.abs().max()) for half in x)
    return max(float((u - v).abs().max()) for u, v in zip(back, x, strict=True)) / scale


@pytest.mark.parametrize(("tied", "norm"), [(True, "rms"), (False, "layer")])
@every_growth
def test_parameters_and_flops_are_as_predicted(case: Case, kind: str, tied: bool, norm: str) -> None:
    architecture = case.architecture(norm=norm)
    plan, tensors = grow(architecture, weights(architecture), GrowthRequest(kinds=(kind,)))
    architecture = plan.architecture
    if not tied:
        architecture, tensors, _ = untie(architecture, tensors, {})
    network = model(architecture, tensors)
    assert count_parameters(architecture) == sum(p.numel() for p in network.parameters())
    assert count_parameters(architecture) == sum(tensor.numel() for tensor in tensors.values())
    # Plain matrix products, which the counter knows on every device.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        outputs(network)
    expected = len(inputs(architecture)) * tokens_per_example(architecture) * flops_per_token(architecture)
    rounded_down = len(inputs(architecture)) * tokens_per_example(architecture)
    assert expected <= counter.get_total_flops() < expected + rounded_down


@every_growth
def test_a_checkpoint_gives_the_model_back(case: Case, kind: str, tmp_path: Path) -> None:
    _, _, architecture, tensors = grown(case, kind, tied=False)
    tensors = trained(tensors)
    write_checkpoint(tmp_path / "one", checkpoint(architecture, tensors))
    read = read_checkpoint(tmp_path / "one")
    assert read.architecture == architecture
    assert read.tensors.keys() == tensors.keys()
    assert all(torch.equal(read.tensors[name], tensors[name]) for name in tensors)
    assert torch.equal(logits(read.architecture, read.tensors), logits(architecture, tensors))
    for pair in architecture.pairs:
        assert theta_digest(read.tensors, pair.id) == theta_digest(tensors, pair.id)


def checkpoint(architecture: Architecture, tensors: dict[str, Tensor]) -> Checkpoint:
    state = TrainerState(
        step=1,
        lr_factor=1.0,
        ledger=Ledger(),
        validation=None,
        train_loss=None,
        data=DataIdentity(name="toy", tokenizer=None, sequence_length=4, sha256={}, validation_examples=1),
        environment=Environment(torch="2", device="cpu", threads=1, cpu_capability="x", precision="fp32"),
    )
    return Checkpoint(architecture, tensors, {}, {"cpu": torch.arange(16, dtype=torch.uint8)}, state, None)


@pytest.mark.parametrize("first", ["p1", "p2"])
@every_growth
def test_removal_by_id_gives_the_parents_tensors_back(case: Case, kind: str, first: str) -> None:
    """The very objects, tied or untied and trained, whichever pair goes first."""
    old_architecture, old, tied_architecture, tied = grown(case, kind)
    for untied in (False, True):
        architecture, tensors = untie(tied_architecture, tied, {})[:2] if untied else (tied_architecture, tied)
        one, left, _ = remove_blocks(architecture, frozenset({first}), tensors, {})
        assert [pair.id for pair in one.pairs] == ["p2" if first == "p1" else "p1"]
        assert torch.equal(logits(one, left), logits(old_architecture, old))
        none, back, _ = remove_blocks(one, frozenset(pair.id for pair in one.pairs), left, {})
        assert none == old_architecture
        assert list(back) == list(old)
        assert all(back[name] is old[name] for name in old)


@pytest.mark.parametrize("method", METHODS)
@every_case
def test_every_method_adds_twice_as_many_layers_as_pairs(case: Case, method: str) -> None:
    """And keeps the function to the last bit, or changes it, as it declares."""
    architecture = case.architecture()
    old = weights(architecture)
    request = GrowthRequest(method=method, pairs=3)  # type: ignore[arg-type]
    plan, tensors = grow(architecture, old, request)
    assert plan.architecture.num_layers == architecture.num_layers + 6
    if method != "pair":
        assert {block.kind for block in plan.architecture.blocks} == {case.layer}
    assert all(tensors[name] is old[name] for name in old)
    keeps = METHODS[method].preserves_function
    for mode in MODES if keeps else ("fp64", "fp32"):  # a new layer can be too small for a short significand
        assert torch.equal(logits(plan.architecture, tensors, mode), logits(architecture, old, mode)) == keeps, mode


@pytest.mark.parametrize(("case", "kind"), [g for g in GROWTHS if g[0].family != "mlp"], ids=str)  # there are tokens
def test_no_token_of_lm_sees_a_later_one_and_mixers_of_other_tasks_do(case: Case, kind: str) -> None:
    """The block alone, on a stream in which one token changes."""
    _, _, architecture, tensors = grown(case, kind, tied=False)
    network = model(architecture, trained(tensors))
    torch.manual_seed(0)
    x = torch.randn(2, 9, 8), torch.randn(2, 9, 8)
    changed = tuple(half.clone() for half in x)
    for half in changed:
        half[:, 5] = torch.randn(2, 8)
    for name, block in network.named_blocks():
        with torch.no_grad():
            if isinstance(block, Coupling | Pair | LinearPair):
                before, after = (join(block((halves[0], halves[1]))) for halves in (x, changed))
            else:
                before, after = block(join(x)), block(join((changed[0], changed[1])))
        moved = (before != after).flatten(2).any(-1).any(0)
        assert bool(moved[5])
        spec = next(block for block in architecture.blocks if block.id == name)
        mixers = [part.module for part in block_parts(architecture, spec) if part.module.mixes_tokens]
        looks_ahead = any(not mixer.always_causal for mixer in mixers)
        assert bool(moved[6:].any()) == bool(mixers)
        assert bool(moved[:5].any()) == (looks_ahead and case.task != "lm"), spec.kind


@pytest.mark.parametrize("case", [case for case in CASES if case.task == "lm"], ids=str)
def test_no_logit_of_lm_depends_on_a_later_token(case: Case) -> None:
    """One model with every kind of pair; the control is that the changed token itself is seen."""
    kinds = tuple(dict.fromkeys(expected_kind(case, kind) for kind in FAMILIES[case.family].pairs))
    architecture = case.architecture()
    plan, tensors = grow(architecture, weights(architecture), GrowthRequest(kinds=kinds, pairs=len(kinds)))
    architecture, tensors, _ = untie(plan.architecture, tensors, {})
    network = model(architecture, trained(tensors))
    ids = inputs(architecture)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    with torch.no_grad():
        before, after = network(ids), network(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5], after[:, 5])
    assert not torch.equal(before[:, 6:], after[:, 6:])


@every_growth
def test_pairs_never_drop_so_a_model_with_dropout_can_be_grown(case: Case, kind: str) -> None:
    architecture = case.architecture(dropout=0.5)
    plan, tensors = grow(architecture, weights(architecture), GrowthRequest(kinds=(kind,)))
    network = model(plan.architecture, tensors)
    pair, x = next((block, x) for block, x in seen(network) if isinstance(block, Pair | LinearPair))
    assert same(pair.train()(x), x)
    if isinstance(pair, Pair):  # the control: independent masks in the members
        pair.plus.dropout = 0.5
        assert not same(pair(x), x)


def same(x: Halves, y: Halves) -> bool:
    return all(torch.equal(u, v) for u, v in zip(x, y, strict=True))


# Negative controls: forms that the checks above must catch.


class NormOverBothHalves(Pair):
    """A pair whose branches normalise the joined stream: each half's term then depends on the other half too."""

    def forward(self, halves: Halves) -> Halves:
        a, b = halves
        u = self._f(a, b)
        middle = a + u
        d = self._g(middle, b) - self._g(middle, b)
        return a + (u - self._f(middle, b + d)), b + d

    def inverse(self, halves: Halves) -> Halves:
        a, b = halves
        u = self._f(a, b)
        middle = a + u
        d = self._g(middle, b) - self._g(middle, b)
        return a + u - self._f(middle, b - d), b - d

    def _normed(self, a: Tensor, b: Tensor) -> Halves:
        return split(F.layer_norm(join((a, b)), (2 * a.shape[-1],)))

    def _f(self, a: Tensor, b: Tensor) -> Tensor:
        return self.plus.f.transform(self._normed(a, b)[1], self.plus.causal)

    def _g(self, a: Tensor, b: Tensor) -> Tensor:
        return self.plus.g.transform(self._normed(a, b)[0], self.plus.causal)


class SequentialSums(Pair):
    """C^-1(C(x)) as it is written."""

    def forward(self, halves: Halves) -> Halves:
        return (self.plus if self.minus is None else self.minus).inverse(self.plus(halves))


class SequentialProducts(LinearPair):
    """W^-1 (W x) as it is written."""

    def forward(self, halves: Halves) -> Halves:
        (plus, _), (_, inverse) = self._members()
        return split(F.linear(F.linear(join(halves), plus), inverse))


# One task and one input of each family, layer, stream and kind.
SOME = list({(case.family, case.layer, case.stream, kind): (case, kind) for case, kind in GROWTHS}.values())
ADDITIVE = [(case, kind) for case, kind in SOME if KINDS[kind].additive]
ALL_LINEAR = [(case, kind) for case, kind in SOME if not KINDS[kind].additive]


@torch.no_grad()
def test_control_the_norm_over_both_halves_breaks_identity_and_inverse() -> None:
    for case, kind in ADDITIVE:
        pair, x = control(case, kind, lambda pair: NormOverBothHalves(pair.plus, None, "inverse"), "fp64")
        assert not same(pair(x), x)
        assert max(float((u - v).abs().max()) for u, v in zip(pair(x), x, strict=True)) > 1e-6, "and not by rounding"
        assert round_trip(pair, x) > 1e3 * ROUND_TRIP["fp64"]


@every_mode
@torch.no_grad()
def test_control_sequential_sums_are_not_the_identity(mode: str) -> None:
    for case, kind in ADDITIVE:
        pair, x = control(case, kind, lambda pair: SequentialSums(pair.plus, None, "inverse"), mode)
        assert not same(pair(x), x), (case, kind)


@pytest.mark.parametrize("mode", ["fp64", "fp32"])
@torch.no_grad()
def test_control_sequential_products_are_not_the_identity(mode: str) -> None:
    for case, kind in ALL_LINEAR:
        pair, x = control(case, kind, lambda pair: SequentialProducts(pair.plus, None), mode)
        assert not same(pair(x), x), (case, kind)


def control(case: Case, kind: str, change: Callable[..., AnyPair], mode: str) -> tuple[AnyPair, Halves]:
    """A pair in another form, with the halves that it reads; the right form passes on the same halves."""
    _, _, architecture, tensors = grown(case, kind)
    network = model(architecture, tensors)
    pair, x = next((block, x) for block, x in seen(network, batch=32) if isinstance(block, Pair | LinearPair))
    dtype = MODES[mode][0]
    halves = x[0].to(dtype), x[1].to(dtype)
    pair = copy.deepcopy(pair).to(dtype)
    assert same(pair(halves), halves)
    return change(pair), halves


def test_control_members_that_differ_have_neither_identity_nor_opposite_gradients() -> None:
    for case, kind in (*ADDITIVE, *ALL_LINEAR):
        old_architecture, old, architecture, tensors = grown(case, kind, tied=False)
        name = next(name for name in tensors if ".minus." in name)
        tensors[name] = tensors[name] * 1.01
        assert not torch.equal(logits(architecture, tensors), logits(old_architecture, old))
        found = gradients(architecture, tensors)
        members = [(found[name], found[name.replace(".minus.", ".plus.")]) for name in found if ".minus." in name]
        assert not all(torch.equal(x.abs(), y.abs()) for x, y in members)


def test_control_an_inverse_with_the_members_swapped_is_none() -> None:
    for case, kind in (*ADDITIVE, *ALL_LINEAR):
        _, _, architecture, tensors = grown(case, kind, tied=False)
        network = model(architecture, trained(tensors), "fp64")
        pair, x = next((block, x) for block, x in seen(network) if isinstance(block, Pair | LinearPair))
        with torch.no_grad():
            y = pair(x)
            pair.plus, pair.minus = pair.minus, pair.plus  # type: ignore[assignment]
            back = pair.inverse(y)
        assert max(float((u - v).detach().abs().max()) for u, v in zip(back, x, strict=True)) > 1e-3


@torch.no_grad()
def test_the_members_of_a_linear_pair_are_orthogonal() -> None:
    """Of random parameters too: |W^T W - I| is rounding."""
    for case, kind in ALL_LINEAR:
        _, _, architecture, tensors = grown(case, kind, tied=False)
        network = model(architecture, trained(tensors), "fp64")
        maps = [module for module in network.modules() if isinstance(module, OrthogonalMap)]
        assert len(maps) == 4
        for member in maps:
            w, transposed = member.matrices()
            assert float((transposed @ w - torch.eye(16)).abs().max()) < 1e-12
