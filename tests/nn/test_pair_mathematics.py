"""DESIGN section 1 as it stands there: identity to the bit, opposite gradients, unchanged old gradients, inverse.

Each promise has a negative control: the same check on a naive or damaged form must fail.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from ppdgrow.config import kinds
from ppdgrow.config.schema import TrainConfig
from ppdgrow.nn.branches import BranchConfig
from ppdgrow.nn.coupling import Coupling, Halves, Pair
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.update_rules import OPTIMIZERS

CHANNELS = 32
KINDS = tuple(name for name, kind in kinds.KINDS.items() if kind.additive)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def coupling(kind: str, norm: str = "layer", causal: bool = True) -> Coupling:
    torch.manual_seed(7)
    config = BranchConfig(CHANNELS, heads=4, ffn_multiplier=4, kernel_size=4, norm=norm)  # type: ignore[arg-type]
    f, g = kinds.parts_of("transformer", kind)
    module = Coupling((f, g), config, causal=causal)
    for parameter in module.parameters():  # gains, biases and scales of a trained model, not of a new one
        nn.init.normal_(parameter, std=0.3)
    return module


def stream(dtype: torch.dtype = torch.float32) -> Halves:
    torch.manual_seed(11)
    return torch.randn(3, 17, CHANNELS).to(dtype), torch.randn(3, 17, CHANNELS).to(dtype)


class NaivePair(nn.Module):
    """C^-1(C(x)) as plain sequential sums: the control."""

    def __init__(self, plus: Coupling, minus: Coupling) -> None:
        super().__init__()
        self.plus, self.minus = plus, minus

    def forward(self, halves: Halves) -> Halves:
        return self.minus.inverse(self.plus(halves))


class NoIdentityNode(Pair):
    """The pair without the identity node that every branch reads through: the control for gradients."""

    def forward(self, halves: Halves) -> Halves:
        a, b = halves
        second = self.plus if self.minus is None else self.minus
        u = self.plus.f_of(b)
        d = self.plus.g_of(a + u) - second.g_of(a + u)
        return a + (u - second.f_of(b + d)), b + d


def equal(x: Halves, y: Halves) -> bool:
    return all(bool((left == right).all()) for left, right in zip(x, y, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tied_pair_is_the_identity_to_the_last_bit(kind: str, norm: str, dtype: torch.dtype) -> None:
    plus = coupling(kind, norm).to(dtype)
    x = stream(dtype)
    assert equal(Pair(plus, None, "inverse")(x), x)
    assert equal(Pair(plus, copy.deepcopy(plus), "inverse")(x), x)


@pytest.mark.parametrize("kind", KINDS)
def test_tied_pair_is_the_identity_under_autocast(kind: str) -> None:
    x = stream()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = Pair(coupling(kind), None, "inverse")(x)
    assert y[0].dtype == torch.float32
    assert equal(y, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_control_sequential_sums_are_not_the_identity(kind: str, dtype: torch.dtype) -> None:
    plus = coupling(kind).to(dtype)
    assert not equal(NaivePair(plus, plus)(stream(dtype)), stream(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_control_one_ulp_between_the_members_breaks_the_identity(dtype: torch.dtype) -> None:
    plus = coupling("ffn").to(dtype)
    minus = copy.deepcopy(plus)
    with torch.no_grad():
        bias = minus.get_parameter("f.out.bias")
        bias.add_(bias.abs() * torch.finfo(dtype).eps)
    assert not equal(Pair(plus, minus, "inverse")(stream(dtype)), stream(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_folding_the_sign_changes_no_bit(kind: str, dtype: torch.dtype) -> None:
    """Also for members that differ: negating the output projection negates the branch exactly."""
    plus, minus = coupling(kind).to(dtype), coupling(kind).to(dtype)
    with torch.no_grad():
        for parameter in minus.parameters():
            parameter.mul_(1.01)
    x = stream(dtype)
    assert equal(Pair(plus, fold(minus), "folded")(x), Pair(plus, minus, "inverse")(x))
    assert equal(Pair(plus, fold(plus), "folded")(x), x)


def fold(member: Coupling) -> Coupling:
    folded = copy.deepcopy(member)
    with torch.no_grad():
        for branch in (folded.f, folded.g):
            branch.get_parameter("out.weight").neg_()
            branch.get_parameter("out.bias").neg_()
    return folded


class Stack(nn.Module):
    """Layer, pair, layer: the pair's neighbours are the older parameters."""

    def __init__(self, pair: nn.Module | None) -> None:
        super().__init__()
        self.first, self.last, self.pair = coupling("attention"), coupling("attention"), pair

    def loss(self, halves: Halves) -> Tensor:
        halves = self.first(halves)
        if self.pair is not None:
            halves = self.pair(halves)
        a, b = self.last(halves)
        return (a.float().square().mean() + (b.float() * a.float()).mean()).float()

    def old_gradients(self) -> list[Tensor]:
        members = [*self.first.parameters(), *self.last.parameters()]
        return [p.grad.clone() for p in members if p.grad is not None]


def backward(stack: Stack, dtype: torch.dtype, autocast: bool) -> Stack:
    stack.to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = stack.loss(stream(dtype))
    loss.backward()  # type: ignore[no-untyped-call]
    return stack


MODES = [(dtype, False) for dtype in DTYPES] + [(torch.float32, True)]


def old_unchanged(pair: nn.Module, dtype: torch.dtype, autocast: bool) -> bool:
    without = backward(Stack(None), dtype, autocast).old_gradients()
    found = backward(Stack(pair), dtype, autocast).old_gradients()
    assert any(bool(gradient.any()) for gradient in without)
    return all(torch.equal(x, y) for x, y in zip(without, found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "autocast"), MODES, ids=str)
def test_old_gradients_are_unchanged_to_the_last_bit(kind: str, dtype: torch.dtype, autocast: bool) -> None:
    plus = coupling(kind)
    assert old_unchanged(Pair(plus, None, "inverse"), dtype, autocast)
    assert old_unchanged(Pair(plus, copy.deepcopy(plus), "inverse"), dtype, autocast)
    assert old_unchanged(Pair(plus, fold(plus), "folded"), dtype, autocast)


@pytest.mark.parametrize("kind", KINDS)
def test_control_old_gradients_drift_without_the_identity_node(kind: str) -> None:
    plus = coupling(kind)
    assert not old_unchanged(NoIdentityNode(plus, copy.deepcopy(plus), "inverse"), torch.float32, False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "autocast"), MODES, ids=str)
def test_gradients_of_the_members_are_exact_opposites(kind: str, dtype: torch.dtype, autocast: bool) -> None:
    plus = coupling(kind)
    stack = backward(Stack(Pair(plus, copy.deepcopy(plus), "inverse")), dtype, autocast)
    assert isinstance(stack.pair, Pair)
    assert stack.pair.minus is not None
    for x, y in zip(stack.pair.plus.parameters(), stack.pair.minus.parameters(), strict=True):
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, -y.grad)
    assert any(bool(p.grad.any()) for p in stack.pair.plus.parameters() if p.grad is not None)


def test_control_gradients_of_the_naive_form_are_not_opposites() -> None:
    plus = coupling("attention")
    stack = backward(Stack(NaivePair(plus, copy.deepcopy(plus))), torch.float32, False)
    assert isinstance(stack.pair, NaivePair)
    pairs = zip(stack.pair.plus.parameters(), stack.pair.minus.parameters(), strict=True)
    assert not all(torch.equal(x.grad, -y.grad) for x, y in pairs if x.grad is not None and y.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_inverse_of_coupling_and_pair_in_every_form(kind: str) -> None:
    """In fp64 the round trip misses by rounding only; the control is a pair whose members were swapped."""
    plus, minus = coupling(kind).double(), coupling(kind).double()
    with torch.no_grad():
        for parameter in minus.parameters():
            parameter.mul_(0.7)
    x = stream(torch.float64)
    for block in (
        plus,
        Pair(plus, None, "inverse"),
        Pair(plus, minus, "inverse"),
        Pair(plus, fold(minus), "folded"),
    ):
        back = block.inverse(block(x))
        assert max(float((u - v).abs().max()) for u, v in zip(back, x, strict=True)) < 1e-11
    wrong = Pair(minus, plus, "inverse").inverse(Pair(plus, minus, "inverse")(x))
    assert max(float((u - v).abs().max()) for u, v in zip(wrong, x, strict=True)) > 1e-3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_folded_and_unfolded_training_agree_to_the_bit_over_50_steps(kind: str, autocast: bool, optimizer: Any) -> None:
    plus = coupling(kind)
    unfolded = train(Pair(copy.deepcopy(plus), copy.deepcopy(plus), "inverse"), autocast, optimizer)
    folded = train(Pair(copy.deepcopy(plus), fold(plus), "folded"), autocast, optimizer)
    assert isinstance(folded, Pair)
    assert isinstance(unfolded, Pair)
    assert folded.minus is not None
    assert unfolded.minus is not None
    assert same_parameters(unfolded.plus, folded.plus)
    assert same_parameters(unfolded.minus, fold(folded.minus))
    moved = [not torch.equal(x, y) for x, y in zip(unfolded.plus.parameters(), plus.parameters(), strict=True)]
    assert all(moved)


@pytest.mark.parametrize("kind", KINDS)
def test_control_plain_sequential_sums_train_to_other_bits(kind: str) -> None:
    plus = coupling(kind)
    naive = train(NaivePair(copy.deepcopy(plus), copy.deepcopy(plus)), False)
    folded = train(Pair(copy.deepcopy(plus), fold(plus), "folded"), False)
    assert isinstance(naive, NaivePair)
    assert isinstance(folded, Pair)
    assert not same_parameters(naive.plus, folded.plus)


def same_parameters(x: nn.Module, y: nn.Module) -> bool:
    return all(torch.equal(u, v) for u, v in zip(x.parameters(), y.parameters(), strict=True))


def train(pair: nn.Module, autocast: bool, name: Literal["adamw", "muon"] = "adamw") -> nn.Module:
    """50 steps with decay and clipping, as the engine takes them."""
    stack = Stack(pair)
    optimizer = NamedOptimizer(nn.ModuleDict({"blocks": stack}), TrainConfig(lr=1e-3, optimizer=name), frozenset())
    for step in range(50):
        torch.manual_seed(step)
        x = torch.randn(2, 9, CHANNELS), torch.randn(2, 9, CHANNELS)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = stack.loss(x)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.clip()
        optimizer.step(torch.zeros(()))
    return pair


def test_a_tied_pair_cannot_be_folded() -> None:
    with pytest.raises(ValueError, match="tied"):
        Pair(coupling("ffn"), None, "folded")
