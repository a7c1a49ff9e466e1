"""Additive couplings and the identity-cancelling pair: the algebra that the project exists for. And their baseline.

Shapes: a stream is two halves (a, b), each `(B, T, D/2)`; a branch maps one half to a term for the other. The stream of
the residual baseline is whole, `(B, T, D)`.

A coupling C with branches f, g (Dinh et al. 2014, NICE; Gomez et al. 2017, RevNet):

    y_a = a + f(b)          b = y_b - g(y_a)
    y_b = b + g(y_a)        a = y_a - f(b)

A pair is C with parameters theta+ and then its inverse with theta-, evaluated as one block.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ppdgrow.nn.branches import BRANCHES, BranchConfig

Halves = tuple[Tensor, Tensor]


def split(x: Tensor) -> Halves:
    """Cut `(..., D)` into its channel groups a and b, `(..., D/2)` each.

    Both are contiguous tensors of their own: a view of a larger tensor can take another kernel, and two
    members of a pair would then differ in the last bit.
    """
    a, b = x.chunk(2, dim=-1)
    return a.contiguous(), b.contiguous()


def join(halves: Halves) -> Tensor:
    """The inverse of `split`."""
    return torch.cat(halves, dim=-1)


class TwoBranches(nn.Module):
    """The branches f and g of a block, by name. `causal`: token t sees tokens 0..t only; `dropout`: on the outputs."""

    def __init__(self, branches: tuple[str, str], config: BranchConfig, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        f, g = branches
        self.f, self.g = BRANCHES[f](config), BRANCHES[g](config)
        self.causal = causal
        self.dropout = dropout

    def f_of(self, x: Tensor) -> Tensor:
        return self.f(x, causal=self.causal, dropout=self.dropout)

    def g_of(self, x: Tensor) -> Tensor:
        return self.g(x, causal=self.causal, dropout=self.dropout)


class Coupling(TwoBranches):
    """One additive coupling block: `(a, b) -> (a + f(b), b + g(a + f(b)))`."""

    def forward(self, halves: Halves) -> Halves:
        a, b = halves
        a = a + self.f_of(b)
        return a, b + self.g_of(a)

    def inverse(self, halves: Halves) -> Halves:
        """Apply C^-1, up to rounding (evaluation mode: dropout has no inverse)."""
        a, b = halves
        b = b - self.g_of(a)
        return a - self.f_of(b), b


class Pair(nn.Module):
    """C with theta+ (`plus`) followed by C^-1 with theta- (`minus`), as one block of two layers.

    Three forms, by what is stored:

    - tied (`minus` is None): theta- is theta+. The identity to the last bit in every floating-point type;
      never optimised.
    - untied, `inverse` form: two members, the second subtracts. Equal members still cancel to the bit.
    - untied, `folded` form: the second member's output projections carry the minus sign, so both members are
      ordinary branches and their terms are summed. Bit-equal to the inverse form, step by step.

    The grouping of the sums and the identity node `view_as` are what makes the cancellation, the opposite
    gradients of the members and the unchanged gradients of older parameters exact rather than small.
    """

    def __init__(self, plus: Coupling, minus: Coupling | None, form: Literal["inverse", "folded"]) -> None:
        super().__init__()
        if minus is None and form != "inverse":
            raise ValueError("a tied pair has no second member to fold the sign into")
        self.plus = plus
        self.minus = minus
        self.form = form

    def forward(self, halves: Halves) -> Halves:
        """Apply the pair: y_b = b + (g+ - g-)(a'), y_a = a + (f+(b) - f-(y_b)), with a' = a + f+(b)."""
        a, b = halves
        b_read = b.view_as(b)
        u = self.plus.f_of(b_read)
        middle = a + u
        d = self.plus.g_of(middle) + self._signed(self._second.g_of(middle))
        return a + (u + self._signed(self._second.f_of(b_read + d))), b + d

    def inverse(self, halves: Halves) -> Halves:
        """Undo `forward`, up to rounding (evaluation mode)."""
        a, b = halves
        u = self._signed(self._second.f_of(b))
        middle = a - u
        b = b - (self.plus.g_of(middle) + self._signed(self._second.g_of(middle)))
        return a - (self.plus.f_of(b) + u), b

    @property
    def _second(self) -> Coupling:
        return self.plus if self.minus is None else self.minus

    def _signed(self, term: Tensor) -> Tensor:
        """A term of the second member with its sign; x + -y is x - y to the last bit."""
        return term if self.form == "folded" else -term


class Residual(TwoBranches):
    """The standard pre-norm layer at full width, the same-width baseline: `x + f(x)`, then `x + g(x)`.

    Source: Vaswani et al. 2017 with the pre-normalisation of Xiong et al. 2020.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.f_of(x)
        return x + self.g_of(x)
