"""How far rounding alone may take an inverse from its input, and an orthogonal matrix from being one.

A correct inverse recomputes the branch terms of the forward pass and takes them away again. With u the unit roundoff
of the stream's type, M the largest entry of the stream, and r = max |branch term| / M:

1. Each stored sum or difference is off by at most u times its magnitude, which no step takes beyond (1 + r) M.
2. A branch is accumulated in a type of unit roundoff v (fp32 for bf16 and fp16, else v = u). Its longest inner product
   has K terms, and their rounding errors add up as a random walk (Higham & Mary 2019): sqrt(K) v of its term. In a
   linear pair W^-1 multiplies what W has rounded: k times that, with k its condition number (1 everywhere else).
3. A branch that reads a value which is off by e returns a term that is off by about r e. So each of the S branch
   evaluations that read recomputed values takes the error from e to (1 + r) e. S is 1 in a coupling (g reads exact
   bits, f does not), 2 in a pair (g, then f; the second f reads exact bits), and 1 in a linear pair.

Together, relative to M:

    bound = c (u + k sqrt(K) v) (1 + r)^(S + 1)        c = 8

c stands for the handful of sums on the way (at most 6) and for branches that are not perfectly conditioned; it is
calibrated, not proven.
A wrong inverse is off by the branch terms themselves, about r: beyond the bound wherever r is not rounding noise too.
A bound of 1 or more judges nothing; in fp64 it takes r = 10,000 to get there.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from ppdgrow.nn.coupling import Coupling, Halves, Pair, join
from ppdgrow.nn.linear import LinearMap, LinearPair, ScaledMap
from ppdgrow.nn.model import AnyPair

CONSTANT = 8.0
ORTHOGONALITY_CONSTANT = 16.0


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to nearest: half the spacing at 1."""
    return torch.finfo(dtype).eps / 2


def round_trip_bound(block: Coupling | AnyPair, ratio: float, dtype: torch.dtype) -> float:
    """Bound on |block^-1(block(x)) - x| / max |x|, as derived above; `ratio` is that of `branch_ratio`."""
    return bound(ratio, dtype, block, dependent=2 if isinstance(block, Pair) else 1, condition=_condition(block))


def bound(ratio: float, dtype: torch.dtype, block: nn.Module, *, dependent: int, condition: float = 1.0) -> float:
    """The bound with S `dependent` evaluations; the longest inner product has as many terms as a parameter is long."""
    storage = unit_roundoff(dtype)
    accumulation = min(storage, unit_roundoff(torch.float32))
    longest = max(size for parameter in block.parameters() for size in parameter.shape)
    branch = condition * longest**0.5 * accumulation
    try:
        return CONSTANT * (storage + branch) * (1 + ratio) ** (dependent + 1)
    except OverflowError:
        return float("inf")


def _condition(block: nn.Module) -> float:
    """The largest condition number of the members of a linear pair: exp(max s - min s), and 1 without scales."""
    scales = [member.log_scale.detach() for member in block.modules() if isinstance(member, ScaledMap)]
    return max([1.0, *(float((scale.max() - scale.min()).double().exp()) for scale in scales)])


@torch.no_grad()
def branch_ratio(block: Coupling | AnyPair, halves: Halves) -> float:
    """max |branch term| / max |stream| of one application; a linear pair's term is what it adds to the stream."""
    terms: list[float] = []
    if isinstance(block, LinearPair):
        terms.append(float((join(block(halves)) - join(halves)).abs().max()))
    else:
        couplings = [block] if isinstance(block, Coupling) else [block.plus, block.minus or block.plus]
        with ExitStack() as hooks:
            for branch in {branch for coupling in couplings for branch in (coupling.f, coupling.g)}:
                hook = branch.register_forward_hook(lambda *seen: terms.append(float(seen[-1].abs().max())))
                hooks.enter_context(hook)
            block(halves)
    largest = float(join(halves).abs().max())
    return max(terms) / largest if largest else float("inf")


@torch.no_grad()
def orthogonality_error(member: LinearMap) -> float:
    """`matrix_error` of a member's rotation, as the model forms it."""
    return matrix_error(member.orthogonal_factor())


def matrix_error(weight: Tensor) -> float:
    """max |W^T W - I|, the product in fp64."""
    weight = weight.double()
    identity = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
    return float((weight.mT @ weight - identity).abs().max().nan_to_num(nan=torch.inf))


def orthogonality_bound(width: int) -> float:
    """Bound on `orthogonality_error` in fp32: W comes from one solve of `width` unknowns, 16 sqrt(width) u.

    The rounding errors of inner products of that length add up as a random walk.
    """
    return float(ORTHOGONALITY_CONSTANT * width**0.5 * unit_roundoff(torch.float32))
