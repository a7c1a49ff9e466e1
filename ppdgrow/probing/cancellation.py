"""What a pair or block does to real hidden states: cancellation, inverse, opposite gradients, separation.

Shapes: a stream is `(B, T, D)`, or two halves `(B, T, D/2)`; here it is whatever stood before the block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ppdgrow.engine.device import autocast
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.coupling import Coupling, Halves, split
from ppdgrow.nn.model import AnyPair, Block, State, apply_block

# Names as they stand in reports. `bf16_autocast` leaves weights and stream in fp32, as training does.
DTYPES: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bf16_autocast": torch.float32,
    "fp16": torch.float16,
}
# Types in which inverses are judged, where they run. fp16 may overflow, and autocast has two roundoffs.
ROUND_TRIP_DTYPES = ("fp64", "fp32", "bf16")


# A parameter of the first member, that of the second, and -1 where the second is stored with a minus, else 1.
Member = tuple[nn.Parameter, nn.Parameter, float]


@dataclass(frozen=True)
class Deviation:
    """How far a tensor is from another: in absolute terms, over the largest entry, and in units in last place."""

    max_abs: float
    relative: float
    ulp: float


def as_halves(state: State) -> Halves:
    """A stream as the two halves that couplings work on."""
    return state if isinstance(state, tuple) else split(state)


def cancellation(pair: AnyPair, state: State, dtype_name: str) -> Deviation | None:
    """Deviation of P(x) from x with weights and stream in one type; None where the device cannot run it."""

    def apply(member: AnyPair, halves: Halves) -> Halves:
        with autocast(halves[0].device, "bf16" if dtype_name == "bf16_autocast" else "fp32"):
            return member(halves)

    return _deviation_in(DTYPES[dtype_name], pair, state, apply)


def round_trip(block: Coupling | AnyPair, state: State, dtype: torch.dtype) -> Deviation | None:
    """Deviation of block^-1(block(x)) from x with weights and stream in `dtype`; None where it cannot run."""
    return _deviation_in(dtype, block, state, lambda module, halves: module.inverse(module(halves)))


@torch.no_grad()
def _deviation_in(
    dtype: torch.dtype, block: Coupling | AnyPair, state: State, apply: Callable[[Any, Halves], Halves]
) -> Deviation | None:
    module = copy.deepcopy(block).to(dtype).eval()
    a, b = (half.to(dtype) for half in as_halves(state))
    return where_implemented(lambda: deviation((a, b), apply(module, (a, b))))


def where_implemented(measure: Callable[[], Deviation]) -> Deviation | None:
    """What is measured; None where the device has no kernel for the type."""
    try:
        return measure()
    except RuntimeError as error:  # also NotImplementedError
        if "not implemented" in str(error):
            return None
        raise


def deviation(expected: Sequence[Tensor], found: Sequence[Tensor]) -> Deviation:
    """Largest deviation over some tensors; NaN counts as infinite."""
    max_abs, largest, ulp = 0.0, 0.0, 0.0
    for x, y in zip(expected, found, strict=True):
        difference = (y.double() - x.double()).abs().nan_to_num(nan=torch.inf)
        _, exponent = torch.frexp(x.double())
        spacing = torch.finfo(x.dtype).eps * torch.exp2((exponent - 1).double())
        max_abs = max(max_abs, float(difference.max()))
        largest = max(largest, float(x.double().abs().max()))
        ulp = max(ulp, float((difference / spacing).max()))
    return Deviation(max_abs, max_abs / largest if largest else max_abs, ulp)


@torch.no_grad()
def activity(block: Block, state: State) -> float:
    """|B(x) - x| / |x| in Euclidean norms: 0 for an identity."""
    x, y = as_halves(state), as_halves(apply_block(block, state))
    change = torch.stack([(after - before).double().norm() for before, after in zip(x, y, strict=True)])
    size = torch.stack([half.double().norm() for half in x])
    return float(change.norm() / size.norm())


def separation(pair: AnyPair) -> float:
    """|theta+ - theta-| / |theta+|, the second member's sign unfolded: 0 while the pair is tied."""
    if pair.minus is None:
        return 0.0
    return _member_distance(pair, lambda parameter: parameter.detach(), sign=-1.0)


def gradient_antisymmetry(pair: AnyPair) -> float | None:
    """|grad+ + grad-| / |grad+| after a backward pass: 0 where the gradients are exact opposites.

    None if the first member's gradient is zero or missing, which would make any answer empty.
    """
    gradients = [parameter.grad for parameter in pair.plus.parameters()]
    if pair.minus is None or not any(g is not None and bool(g.abs().max() > 0) for g in gradients):
        return None
    return _member_distance(pair, lambda parameter: parameter.grad, sign=1.0)


def _member_distance(pair: AnyPair, read: Callable[[nn.Parameter], Tensor | None], *, sign: float) -> float:
    """|x+ + sign * x-| / |x+| over all parameters, where x- of a folded output projection has its sign turned."""
    assert pair.minus is not None
    members = (
        (first, second, -1.0 if pair.form == "folded" and name.endswith(OUTPUT_PROJECTION) else 1.0)
        for (name, first), second in zip(pair.plus.named_parameters(), pair.minus.parameters(), strict=True)
    )
    return distance(members, read, sign=sign)


def distance(members: Iterable[Member], read: Callable[[nn.Parameter], Tensor | None], *, sign: float) -> float:
    """|x+ + sign * x-| / |x+| over all parameters of two members."""
    squares, total = 0.0, 0.0
    for first, second, turned in members:
        x, y = read(first), read(second)
        if x is None or y is None:
            return float("inf")
        squares += float((x.double() + sign * turned * y.double()).square().sum())
        total += float(x.double().square().sum())
    return (squares / total) ** 0.5 if total else squares**0.5
