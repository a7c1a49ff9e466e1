"""Linear pairs while they train: orthogonal members stay orthogonal, inverses stay inverses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ppdgrow.nn.branches import BranchConfig
from ppdgrow.nn.coupling import join, split
from ppdgrow.nn.linear import LINEAR_MAPS, LinearMap, LinearPair

WIDTH = 16
STEPS = 200
BOUND = 1e-5


def member(kind: str) -> LinearMap:
    torch.manual_seed(5)
    made = LINEAR_MAPS[kind](BranchConfig(WIDTH, heads=1, ffn_multiplier=4, kernel_size=4, norm="layer"))
    with torch.no_grad():
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.25)
    return made


def train(module: nn.Module, parameters: list[nn.Parameter], weight_decay: float = 0.1) -> None:
    """AdamW at a high rate towards a target that no orthogonal map reaches."""
    torch.manual_seed(6)
    target = torch.randn(WIDTH, WIDTH)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=weight_decay)
    for _ in range(STEPS):
        x = torch.randn(8, 5, WIDTH)
        loss = (module(x) - x @ target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class OnJoined(nn.Module):
    def __init__(self, pair: LinearPair) -> None:
        super().__init__()
        self.pair = pair

    def forward(self, x: Tensor) -> Tensor:
        return join(self.pair(split(x)))


def orthogonality_error(weight: Tensor) -> float:
    return float((weight.mT @ weight - torch.eye(WIDTH)).abs().max().detach())


@pytest.mark.parametrize("kind", LINEAR_MAPS)
def test_members_stay_what_they_are_over_200_adamw_steps(kind: str) -> None:
    plus = member(kind)
    pair = LinearPair(plus, copy.deepcopy(plus))
    start = plus.matrices()[0].detach().clone()
    train(OnJoined(pair), list(pair.parameters()))
    assert pair.minus is not None
    for trained in (pair.plus, pair.minus):
        weight, inverse = (matrix.detach() for matrix in trained.matrices())
        assert float((weight - start).abs().max()) > 0.05, "a member that did not move proves nothing"
        assert orthogonality_error(trained.orthogonal_factor()) < BOUND
        scale = float(weight.abs().max() * inverse.abs().max())
        assert float((inverse @ weight - torch.eye(WIDTH)).abs().max()) < BOUND * max(1.0, scale)
        assert float((weight @ inverse - torch.eye(WIDTH)).abs().max()) < BOUND * max(1.0, scale)
    torch.manual_seed(7)
    x = split(torch.randn(4, 9, WIDTH))
    with torch.no_grad():
        back = pair.inverse(pair(x))
    assert max(float((u - v).abs().max()) for u, v in zip(back, x, strict=True)) < 1e-3


def test_control_a_free_matrix_does_not_stay_orthogonal() -> None:
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    nn.init.orthogonal_(layer.weight)
    assert orthogonality_error(layer.weight) < BOUND
    train(layer, list(layer.parameters()))
    assert orthogonality_error(layer.weight) > 0.1


def test_a_linear_member_is_no_longer_orthogonal() -> None:
    """Its scales are what sets it apart."""
    assert orthogonality_error(member("orthogonal").matrices()[0]) < BOUND
    assert orthogonality_error(member("linear").matrices()[0]) > 0.1


@pytest.mark.parametrize("kind", LINEAR_MAPS)
def test_the_matrices_are_fp32_under_autocast(kind: str) -> None:
    plus = member(kind)
    plain = plus.matrices()[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(plus.matrices()[0], plain)
    assert plain.dtype == torch.float32


@pytest.mark.parametrize("kind", LINEAR_MAPS)
def test_a_pair_is_the_second_inverse_after_the_first_map(kind: str) -> None:
    plus, minus = member(kind).double(), member(kind).double()
    with torch.no_grad():
        for parameter in minus.parameters():
            parameter.mul_(-0.6)
        torch.manual_seed(8)
        x = torch.randn(4, WIDTH, dtype=torch.float64)
        expected = x @ (minus.matrices()[1] @ plus.matrices()[0]).mT
        assert float((join(LinearPair(plus, minus)(split(x))) - expected).abs().max()) < 1e-11
        assert float((x - expected).abs().max()) > 0.1
