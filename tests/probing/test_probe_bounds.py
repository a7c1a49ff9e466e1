"""The bounds that probe judges by: every correct inverse keeps them with room, and every wrong one breaks them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from ppdgrow.config.kinds import KINDS, parts_of
from ppdgrow.nn.branches import BranchConfig
from ppdgrow.nn.coupling import Coupling, Halves, Pair
from ppdgrow.nn.linear import LINEAR_MAPS, LinearMap, LinearPair, OrthogonalMap, ScaledMap
from ppdgrow.nn.model import AnyPair
from ppdgrow.probing.cancellation import DTYPES, ROUND_TRIP_DTYPES, round_trip
from ppdgrow.probing.roundoff import (
    branch_ratio,
    orthogonality_bound,
    orthogonality_error,
    round_trip_bound,
    unit_roundoff,
)

CHANNELS = 16
HALVES: Halves = (
    torch.randn(3, 17, CHANNELS, generator=torch.Generator().manual_seed(1)),
    torch.randn(3, 17, CHANNELS, generator=torch.Generator().manual_seed(2)),
)


def config(channels: int) -> BranchConfig:
    return BranchConfig(channels, heads=4, ffn_multiplier=4, kernel_size=4, norm="layer")


def coupling(kind: str, seed: int) -> Coupling:
    torch.manual_seed(seed)
    f, g = parts_of("transformer", kind)
    module = Coupling((f, g), config(CHANNELS), causal=True)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def linear(kind: str, seed: int) -> LinearMap:
    torch.manual_seed(seed)
    member = LINEAR_MAPS[kind](config(2 * CHANNELS))
    for parameter in member.parameters():
        nn.init.normal_(parameter, std=0.2)
    return member


def untied(kind: str) -> AnyPair:
    """A trained pair, whose members have nothing in common any more."""
    if not KINDS[kind].additive:
        return LinearPair(linear(kind, 3), linear(kind, 4))
    return Pair(coupling(kind, 3), coupling(kind, 4), "folded")


class Swapped(Pair):
    """A control: its inverse takes the members for each other."""

    def inverse(self, halves: Halves) -> Halves:
        assert self.minus is not None
        return Pair(self.minus, self.plus, self.form).inverse(halves)


class SignTurned(Pair):
    """A control: its inverse forgets that the second member is folded."""

    def inverse(self, halves: Halves) -> Halves:
        return Pair(self.plus, self.minus, "inverse").inverse(halves)


class SwappedLinear(LinearPair):
    """A control, as `Swapped`."""

    def inverse(self, halves: Halves) -> Halves:
        return LinearPair(self.minus, self.plus).forward(LinearPair(self.minus, self.plus).forward(halves))  # type: ignore[arg-type]


class WrongOrder(Coupling):
    """A control: its inverse takes f away before g."""

    def inverse(self, halves: Halves) -> Halves:
        a, b = halves
        a = a - self.f_of(b)
        return a, b - self.g_of(a)


class Forgotten(Coupling):
    """A control: its inverse does nothing."""

    def inverse(self, halves: Halves) -> Halves:
        return halves


def share(block: Coupling | AnyPair, dtype: str) -> float | None:
    """The round trip as a share of its bound; None where it cannot run."""
    found = round_trip(block, HALVES, DTYPES[dtype])
    bound = round_trip_bound(block, branch_ratio(block, HALVES), DTYPES[dtype])
    return None if found is None else found.relative / bound


def wrong(kind: str) -> list[Coupling | AnyPair]:
    if not KINDS[kind].additive:
        return [SwappedLinear(linear(kind, 3), linear(kind, 4))]
    members = coupling(kind, 3), coupling(kind, 4)
    order = copy.deepcopy(members[0])
    order.__class__ = WrongOrder
    return [Swapped(*members, "folded"), SignTurned(*members, "folded"), order]


@pytest.mark.parametrize("dtype", ROUND_TRIP_DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_correct_inverse_uses_less_than_half_of_its_bound(kind: str, dtype: str) -> None:
    used = share(untied(kind), dtype)
    assert (used is None) == (not KINDS[kind].additive and dtype == "bf16"), "torch solves no linear system in bf16"
    assert used is None or used < 0.5
    if KINDS[kind].additive:
        used = share(coupling(kind, 3), dtype)
        assert used is not None
        assert used < 0.5


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("kind", KINDS)
def test_control_a_wrong_inverse_is_far_beyond_its_bound(kind: str, dtype: str) -> None:
    for block in wrong(kind):
        used = share(block, dtype)
        assert used is not None
        assert used > 100, type(block)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.additive])
def test_control_bf16_sees_an_inverse_that_is_wrong_by_whole_branch_terms(kind: str) -> None:
    """Off by whole branch terms of half the stream. What is less wrong than that, only the finer types can tell."""
    members = coupling(kind, 3), coupling(kind, 4)
    forgotten = copy.deepcopy(members[0])
    forgotten.__class__ = Forgotten
    for block in (SignTurned(*members, "folded"), forgotten):
        scale = 0.5 / branch_ratio(block, HALVES)
        with torch.no_grad():
            for name, parameter in block.named_parameters():
                if ".out." in f".{name}":
                    parameter.mul_(scale)
        used = share(block, "bf16")
        assert used is not None
        assert used > 1, type(block)


def test_the_bound_follows_the_roundoff_and_the_branch_to_stream_ratio() -> None:
    pair, single = untied("ffn"), coupling("ffn", 3)
    fp64, fp32, bf16 = (round_trip_bound(pair, 1.0, DTYPES[name]) for name in ROUND_TRIP_DTYPES)
    assert fp64 / fp32 == pytest.approx(unit_roundoff(torch.float64) / unit_roundoff(torch.float32))
    assert 8 * unit_roundoff(torch.bfloat16) * 8 < bf16 < 1.1 * 8 * unit_roundoff(torch.bfloat16) * 8
    for block, power in ((pair, 3), (single, 2)):
        quiet, loud = (round_trip_bound(block, ratio, torch.float64) for ratio in (0.0, 3.0))
        assert loud == pytest.approx(quiet * 4**power)
    assert round_trip_bound(pair, 1e300, torch.float64) == float("inf")


def test_the_ratio_is_that_of_the_largest_term_of_any_branch() -> None:
    block = coupling("ffn", 3)
    a, b = HALVES
    terms = [block.f_of(b), block.g_of(a + block.f_of(b))]
    expected = max(float(term.detach().abs().max()) for term in terms) / max(float(x.abs().max()) for x in HALVES)
    assert branch_ratio(block, HALVES) == expected
    assert not block.f._forward_hooks


def test_a_linear_pair_is_allowed_what_its_condition_costs() -> None:
    pair = LinearPair(linear("linear", 3), linear("linear", 4))
    before = round_trip_bound(pair, 0.0, torch.float32)
    assert isinstance(pair.plus, ScaledMap)
    with torch.no_grad():
        pair.plus.log_scale[0] = 3.0
        pair.plus.log_scale[1] = -3.0
    assert round_trip_bound(pair, 0.0, torch.float32) > 10 * before
    used = share(pair, "fp32")
    assert used is not None
    assert used < 0.5


@pytest.mark.parametrize("kind", LINEAR_MAPS)
@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("norm", [0.1, 10.0])
def test_rotations_stay_orthogonal_within_the_bound(kind: str, width: int, norm: float) -> None:
    member = LINEAR_MAPS[kind](config(width))
    torch.manual_seed(0)
    for parameter in member.parameters():
        nn.init.normal_(parameter, std=norm / width**0.5)
    assert orthogonality_error(member) < orthogonality_bound(width) / 2


def test_control_a_matrix_that_is_not_orthogonal_breaks_the_bound() -> None:
    member = linear("orthogonal", 3)
    assert isinstance(member, OrthogonalMap)
    parametrize.remove_parametrizations(member.map, "weight")
    assert orthogonality_error(member) < orthogonality_bound(2 * CHANNELS)
    with torch.no_grad():
        member.get_parameter("map.weight").mul_(1 + 1e-5)
    assert orthogonality_error(member) > orthogonality_bound(2 * CHANNELS)
