"""The parallel scan against the step-by-step recurrence, values and gradients, with gates near 0 and near 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ppdgrow.nn.scan import CHUNK, gated_scan

Scan = Callable[[Tensor, Tensor], Tensor]
BOUND = 1e-5
SHIFTS = (-20.0, -8.0, 0.0, 4.0, 8.0, 12.0, 17.0, 20.0)


def step_by_step(value: Tensor, gate: Tensor) -> Tensor:
    """The recurrence as it is written, in fp64."""
    value, gate = value.double(), gate.double()
    state, states = torch.zeros_like(value[:, 0]), []
    for token in range(value.shape[1]):
        state = torch.sigmoid(gate[:, token]) * state + torch.sigmoid(-gate[:, token]) * value[:, token]
        states.append(state)
    return torch.stack(states, dim=1)


def drawn(tokens: int, shift: float, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(tokens)
    value, gate = torch.randn(2, tokens, 6), shift + spread * torch.randn(2, tokens, 6)
    gate[:, 0] = -20.0  # the first value is taken whole, so that a long memory has something to lose
    return value, gate


def error(scan: Scan, value: Tensor, gate: Tensor) -> float:
    return float((scan(value, gate) - step_by_step(value, gate)).abs().max())


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("shift", SHIFTS)
def test_equal_to_the_recurrence_over_2048_tokens(shift: float, spread: float) -> None:
    assert error(gated_scan, *drawn(2048, shift, spread)) < BOUND


def test_a_constant_through_gates_near_one_is_reached_slowly_and_exactly() -> None:
    """All that enters comes through 1 - a; as `1 - sigmoid` that is lost (the control)."""
    value, gate = torch.ones(1, 2048, 3), torch.full((1, 2048, 3), 17.0)
    assert error(gated_scan, value, gate) < BOUND * 1e-3

    def complement_by_subtraction(value: Tensor, gate: Tensor) -> Tensor:
        decay, state, states = torch.sigmoid(gate), torch.zeros_like(value[:, 0]), []
        for token in range(value.shape[1]):
            state = decay[:, token] * state + (1 - decay[:, token]) * value[:, token]
            states.append(state)
        return torch.stack(states, dim=1)

    assert error(complement_by_subtraction, value, gate) > BOUND


def test_control_products_of_rounded_gates_lose_a_long_memory() -> None:
    """The same scan over gates in fp32 instead of their logarithms, at a gate near 1 that stays the same."""

    def rounded_gates(value: Tensor, gate: Tensor) -> Tensor:
        decay, inputs = torch.sigmoid(gate), torch.sigmoid(-gate) * value
        state, states = torch.zeros_like(value[:, 0]), []
        for token in range(value.shape[1]):
            state = decay[:, token] * state + inputs[:, token]
            states.append(state)
        return torch.stack(states, dim=1)

    value, gate = drawn(2048, 12.0, 0.0)
    assert error(rounded_gates, value, gate) > 10 * BOUND
    assert error(gated_scan, value, gate) < BOUND


@pytest.mark.parametrize("tokens", [1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17])
def test_lengths_that_are_no_multiple_of_the_chunk(tokens: int) -> None:
    value, gate = drawn(tokens, 1.0)
    assert gated_scan(value, gate).shape == value.shape
    assert error(gated_scan, value, gate) < BOUND
    assert error(gated_scan, value.double(), gate.double()) < 1e-13


@pytest.mark.parametrize("shift", [-20.0, 0.0, 8.0, 20.0])
@pytest.mark.parametrize("tokens", [CHUNK + 7, 1000])
def test_gradients_are_those_of_the_recurrence(tokens: int, shift: float) -> None:
    def gradients(scan: Scan) -> list[Tensor]:
        value, gate = (x.requires_grad_(True) for x in drawn(tokens, shift))
        torch.manual_seed(1)
        (scan(value, gate) * torch.randn(value.shape)).sum().backward()  # type: ignore[no-untyped-call]
        assert value.grad is not None
        assert gate.grad is not None
        return [value.grad.double(), gate.grad.double()]

    for found, expected in zip(gradients(gated_scan), gradients(step_by_step), strict=True):
        assert bool(found.isfinite().all())
        assert float((found - expected).abs().max()) < BOUND * max(1.0, float(expected.abs().max()))


def test_the_scan_is_fp32_for_half_precision_and_under_autocast() -> None:
    value, gate = drawn(300, 6.0)
    low = value.bfloat16(), gate.bfloat16()
    assert gated_scan(*low).dtype == torch.float32
    assert error(gated_scan, *low) < BOUND
    plain = gated_scan(value, gate)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gated_scan(value, gate), plain)


def test_control_a_scan_in_bf16_misses_the_bound() -> None:
    value, gate = drawn(300, 6.0)

    def low(value: Tensor, gate: Tensor) -> Tensor:
        return gated_scan(value.bfloat16(), gate.bfloat16())

    assert error(low, value, gate) > BOUND
