"""The check after growth: every parameter is in one optimizer group, gets a gradient, and moves.

New layers that silently never train are a known fault of growth code; here a run with one fails loudly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ppdgrow.errors import CheckFailedError
from ppdgrow.optim.optimizer import NamedOptimizer

# A zero output projection hides its branch from the gradient of the first step; by the third all must move.
WATCHED_STEPS = 3
# Below this rate an update can round to nothing without anything being wrong.
LOWEST_JUDGED_RATE = 1e-6


class MovementCheck:
    """Watches the first steps of a run."""

    def __init__(self, model: nn.Module, optimizer: NamedOptimizer) -> None:
        optimizer.check_complete(model)
        self._optimizer = optimizer
        self._before = _signatures(optimizer)
        self._rates: dict[str, float] = {}
        self._seen = 0

    def after_backward(self, step: int) -> None:
        """Called with gradients and rates in place; raises a `CheckFailedError` if a parameter has no gradient."""
        if self._seen >= WATCHED_STEPS:
            return
        for name, parameter in self._optimizer.parameters.items():
            if parameter.grad is None:
                raise CheckFailedError(f"parameter {name!r} gets no gradient at step {step}: it would never train")
        for name, rate in self._optimizer.rates().items():
            self._rates[name] = max(rate, self._rates.get(name, 0.0))

    def after_update(self, suppressed: Tensor) -> None:
        """Judge once, after the watched steps; raises a `CheckFailedError` if a parameter with a rate did not move."""
        self._seen += 1
        if self._seen != WATCHED_STEPS or bool(suppressed):
            return
        moved = (_signatures(self._optimizer) != self._before).any(dim=1).tolist()
        for name, has_moved in zip(self._optimizer.parameters, moved, strict=True):
            if not has_moved and self._rates[name] >= LOWEST_JUDGED_RATE:
                raise CheckFailedError(
                    f"parameter {name!r} did not move in {WATCHED_STEPS} steps: no gradient reaches it, or it is so "
                    "large (a large --scale?) that updates of this rate round to nothing"
                )


def _signatures(optimizer: NamedOptimizer) -> Tensor:
    """Sum and sum of squares of each parameter in float64, `(P, 2)`: they change whenever it does."""
    rows = [p.detach().double() for p in optimizer.parameters.values()]
    return torch.stack([torch.stack([row.sum(), row.square().sum()]) for row in rows])
