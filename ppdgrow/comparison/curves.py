"""Loss curves over steps, FLOPs and wall-clock: held against each other, brought to common points, read for a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ppdgrow.comparison.history import Budget, Evaluated, FloatArray, RunHistory

Axis = Literal["steps", "flops", "seconds"]
Curve = tuple[Sequence[float] | FloatArray, Sequence[float] | FloatArray]
AXES: tuple[Axis, ...] = ("steps", "flops", "seconds")
GRID = 101


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
    reference = {point.step: point.validation.loss for point in baseline.metrics.evaluations}
    ours = [(point.step, point.validation.loss) for point in other.metrics.evaluations]
    return EqualFigures(
        curve=tuple(EqualPoint(step, loss, reference[step]) for step, loss in ours if step in reference),
        flops=equal_budget(baseline, other, "flops"),
        seconds=equal_budget(baseline, other, "seconds"),
        shared_steps=shared_steps(baseline, other),
    )


def equal_budget(baseline: RunHistory, other: RunHistory, budget: Budget) -> EqualPoint | None:
    """Both losses at the largest FLOPs or seconds that both reached, interpolated between evaluated points.

    None where the evaluated ranges do not overlap, or a cost was not recorded.
    """
    curves: list[Curve] = []
    for history in (other, baseline):
        points = [point for point in history.metrics.evaluations if getattr(point, budget) is not None]
        curves.append(([getattr(point, budget) for point in points], [point.validation.loss for point in points]))
    common = _common(curves, np.array([]))
    if not len(common):
        return None
    at = float(common[-1])
    loss, baseline_loss = (float(np.interp(at, *curve)) for curve in curves)
    return EqualPoint(at, loss, baseline_loss)


def shared_steps(baseline: RunHistory, other: RunHistory) -> int:
    """The last step up to which every step and training loss of both is the same number; 0 if the first differs."""
    ours, theirs = baseline.metrics, other.metrics
    length = min(len(ours.steps), len(theirs.steps))
    same = (ours.steps[:length] == theirs.steps[:length]) & (ours.train_loss[:length] == theirs.train_loss[:length])
    equal = length if same.all() else int(np.argmin(same))
    return int(ours.steps[equal - 1]) if equal else 0


def cost_of(history: RunHistory, point: Evaluated, axis: Axis) -> float | None:
    """Steps, FLOPs or seconds up to a point: of the model, its shallow phase, and its trials that were decided."""
    if axis == "steps":
        return float(point.step)
    own: float | None = getattr(point, axis)
    return None if own is None else own + history.beside(point.step, axis)


def costed_points(history: RunHistory, axis: Axis) -> list[tuple[Evaluated, float]]:
    """The evaluated points whose cost is known, with it."""
    costs = ((point, cost_of(history, point, axis)) for point in history.metrics.evaluations)
    return [(point, cost) for point, cost in costs if cost is not None]


def cost_to_reach(history: RunHistory, loss: float, axis: Axis) -> float | None:
    """What a run had cost when its validation loss first fell to `loss`, interpolated; None where it never did."""
    before: tuple[float, float] | None = None
    for point, cost in costed_points(history, axis):
        reached = point.validation.loss
        if reached <= loss:
            if before is None or reached == loss:
                return cost
            return before[0] + (cost - before[0]) * (before[1] - loss) / (before[1] - reached)
        before = cost, reached
    return None


def recorded(history: RunHistory, axis: Axis) -> bool:
    """Whether the cost of every evaluated point is known, and when the trials beside the model were paid."""
    if axis == "steps":
        return True
    trials = getattr(history.state.ledger.trials, axis)
    known = len(costed_points(history, axis)) == len(history.metrics.evaluations)
    return known and history.beside(history.step, axis) > 0.99 * trials - 1e-9


def cost_ratio(baseline: RunHistory, other: RunHistory, axis: Axis) -> float | None:
    """Cost of `other` over cost of the baseline, each until it first had the baseline's final loss.

    None where `other` never had it, or where a cost is not `recorded`.
    """
    if not (recorded(baseline, axis) and recorded(other, axis)):
        return None
    target = baseline.final.validation.loss
    ours, theirs = cost_to_reach(other, target, axis), cost_to_reach(baseline, target, axis)
    return ours / theirs if ours is not None and theirs else None


@dataclass(frozen=True)
class Band:
    """Validation loss of the seeds of an arm at common places of an axis: their mean, lowest and highest."""

    at: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def bands(arms: Sequence[Sequence[RunHistory]], axis: Axis) -> list[Band]:
    """The curves of several arms at common points, interpolated between evaluated ones.

    An arm has values where all its seeds have been evaluated before and after; beyond steps, a step costs what it cost
    its seeds on average. The points are the evaluated steps, or evenly spread where these are many or the axis another.
    """
    curves = [_paced(arm, axis) for arm in arms]
    places = _places([curve for arm in curves for curve in arm])
    if len(places) and (axis != "steps" or len(places) > GRID):
        places = np.linspace(places[0], places[-1], GRID)
    return [_band(arm, places) for arm in curves]


def difference_band(pairs: Sequence[tuple[RunHistory, RunHistory]], axis: Axis) -> Band:
    """Loss of the second run of each pair minus that of the first, where both have been evaluated before and after."""
    baseline, others = (_paced(arm, axis) for arm in zip(*pairs, strict=True))
    places = _places([*baseline, *others])
    if len(places) and axis != "steps":
        places = np.linspace(places[0], places[-1], GRID)
    return _band(others, places, baseline)


def _band(curves: Sequence[Curve], places: FloatArray, baseline: Sequence[Curve] = ()) -> Band:
    """Mean, lowest and highest of the curves, or of their differences to those of the baseline, at these places."""
    at = _common([*curves, *baseline], places)
    if not len(at):
        return Band()
    losses = np.array([np.interp(at, *curve) for curve in curves])
    if baseline:
        losses -= np.array([np.interp(at, *curve) for curve in baseline])
    columns = (at, losses.mean(axis=0), losses.min(axis=0), losses.max(axis=0))
    return Band(*(tuple(map(float, column)) for column in columns))


def _places(curves: Sequence[Curve]) -> FloatArray:
    return np.unique([cost for costs, _ in curves for cost in costs])


def _common(curves: Sequence[Curve], places: FloatArray) -> FloatArray:
    """The places between the latest first and the earliest last point of the curves, and these two."""
    if not curves or not all(len(costs) for costs, _ in curves):
        return np.array([])
    first, last = max(costs[0] for costs, _ in curves), min(costs[-1] for costs, _ in curves)
    return np.unique([first, *places[(places > first) & (places < last)], last]) if first <= last else np.array([])


def _paced(histories: Sequence[RunHistory], axis: Axis) -> list[Curve]:
    """The curves of the seeds of an arm, a step at what it cost them on average.

    Else their mean would end where the fastest seed does, in mid-course of the others.
    """
    drawn = [_drawn(history, axis) for history in histories]
    by_step: list[Curve] = [(steps, losses) for steps, _, losses in drawn]
    if axis == "steps" or len(drawn) < 2 or not all(steps for steps, _ in by_step):
        return [(costs, losses) for _, costs, losses in drawn]
    at = _common(by_step, _places(by_step))
    if not len(at):
        return [([], []) for _ in drawn]
    pace = np.mean([np.interp(at, steps, costs) for steps, costs, _ in drawn], axis=0)
    return [(pace, np.interp(at, *curve)) for curve in by_step]


def _drawn(history: RunHistory, axis: Axis) -> tuple[list[float], list[float], list[float]]:
    """Steps, costs and losses of a run, with a second point where an insertion changed the loss."""
    jumps = {event.step: event.loss_after for event in history.insertions if event.loss_after != event.loss_before}
    points: list[tuple[float, float, float]] = []
    for point, cost in costed_points(history, axis):
        points.append((point.step, cost, point.validation.loss))
        after = jumps.get(point.step)
        if after is not None and point.step < history.step:
            points.append((float(np.nextafter(point.step, np.inf)), float(np.nextafter(cost, np.inf)), after))
    steps, costs, losses = zip(*points, strict=True) if points else ((), (), ())
    return list(steps), list(costs), list(losses)
