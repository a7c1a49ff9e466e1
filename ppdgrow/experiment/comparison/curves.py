"""Two loss curves held against each other: at equal steps, at equal FLOPs, at equal wall-clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ppdgrow.experiment.comparison.history import RunHistory

Budget = Literal["flops", "seconds"]


@dataclass(frozen=True)
class EqualPoint:
    """Validation losses (nats) of a run and of the baseline at one place of an axis."""

    at: float
    loss: float
    baseline_loss: float

    @property
    def difference(self) -> float:
        """Run minus baseline: negative is better than the baseline."""
        return self.loss - self.baseline_loss


@dataclass(frozen=True)
class EqualFigures:
    """A run against the baseline: all commonly evaluated steps, and one point at each equal budget.

    `shared_steps` is the last step up to which both are one and the same training (0: none is).
    """

    curve: tuple[EqualPoint, ...]
    flops: EqualPoint | None
    seconds: EqualPoint | None
    shared_steps: int

    @property
    def steps(self) -> EqualPoint | None:
        """The point at the largest step that both evaluated."""
        return self.curve[-1] if self.curve else None


def equal_figures(baseline: RunHistory, other: RunHistory) -> EqualFigures:
    """Hold `other` against `baseline`."""
    return EqualFigures(
        curve=common_steps(baseline, other),
        flops=equal_budget(baseline, other, "flops"),
        seconds=equal_budget(baseline, other, "seconds"),
        shared_steps=shared_steps(baseline, other),
    )


def common_steps(baseline: RunHistory, other: RunHistory) -> tuple[EqualPoint, ...]:
    """Both losses at every step at which both were evaluated, ascending."""
    reference = {point.step: point.validation.loss for point in baseline.metrics.evaluations}
    return tuple(
        EqualPoint(point.step, point.validation.loss, reference[point.step])
        for point in other.metrics.evaluations
        if point.step in reference
    )


def equal_budget(baseline: RunHistory, other: RunHistory, budget: Budget) -> EqualPoint | None:
    """Both losses at the largest FLOPs or seconds that both reached, interpolated between evaluated points.

    None where the evaluated ranges do not overlap, or a cost was not recorded.
    """
    costs, losses = _curve(other, budget)
    baseline_costs, baseline_losses = _curve(baseline, budget)
    if not costs or not baseline_costs:
        return None
    at = min(costs[-1], baseline_costs[-1])
    if at < max(costs[0], baseline_costs[0]):
        return None
    return EqualPoint(
        at=at,
        loss=float(np.interp(at, costs, losses)),
        baseline_loss=float(np.interp(at, baseline_costs, baseline_losses)),
    )


def _curve(history: RunHistory, budget: Budget) -> tuple[list[float], list[float]]:
    """Costs and losses of the evaluated points whose cost is known."""
    points = history.metrics.evaluations
    costs = [point.flops if budget == "flops" else point.seconds for point in points]
    known = [(cost, point.validation.loss) for cost, point in zip(costs, points, strict=True) if cost is not None]
    return [cost for cost, _ in known], [loss for _, loss in known]


def shared_steps(baseline: RunHistory, other: RunHistory) -> int:
    """The last step up to which every step and training loss of both is the same number; 0 if the first differs."""
    ours, theirs = baseline.metrics, other.metrics
    length = min(len(ours.steps), len(theirs.steps))
    same = (ours.steps[:length] == theirs.steps[:length]) & (ours.train_loss[:length] == theirs.train_loss[:length])
    equal = length if same.all() else int(np.argmin(same))
    return int(ours.steps[equal - 1]) if equal else 0
