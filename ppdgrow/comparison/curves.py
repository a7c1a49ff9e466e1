"""Loss curves over steps, FLOPs and wall-clock: held against each other, brought to common points, read for a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    return EqualFigures(
        curve=tuple(
            EqualPoint(point.step, point.validation.loss, reference[point.step])
            for point in other.metrics.evaluations
            if point.step in reference
        ),
        flops=equal_budget(baseline, other, "flops"),
        seconds=equal_budget(baseline, other, "seconds"),
        shared_steps=shared_steps(baseline, other),
    )


def equal_budget(baseline: RunHistory, other: RunHistory, budget: Budget) -> EqualPoint | None:
    """Both losses at the largest FLOPs or seconds that both reached, interpolated between evaluated points.

    None where the evaluated ranges do not overlap, or a cost was not recorded.
    """
    curves: list[list[tuple[float, float]]] = []
    for history in (other, baseline):
        points = [(getattr(point, budget), point.validation.loss) for point in history.metrics.evaluations]
        curves.append([(cost, loss) for cost, loss in points if cost is not None])
    if not all(curves):
        return None
    at = min(curve[-1][0] for curve in curves)
    if at < max(curve[0][0] for curve in curves):
        return None
    loss, baseline_loss = (float(np.interp(at, *np.array(curve).T)) for curve in curves)
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


def cost_to_reach(history: RunHistory, loss: float, axis: Axis) -> float | None:
    """What a run had cost when its validation loss first fell to `loss`, interpolated; None where it never did."""
    before: tuple[float, float] | None = None
    for cost, reached in _points(history, axis):
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
    known = all(cost_of(history, point, axis) is not None for point in history.metrics.evaluations)
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


def _points(history: RunHistory, axis: Axis) -> Iterator[tuple[float, float]]:
    for point in history.metrics.evaluations:
        cost = cost_of(history, point, axis)
        if cost is not None:
            yield cost, point.validation.loss


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
    places = np.unique([cost for arm in curves for costs, _ in arm for cost in costs])
    if not len(places):
        return [Band() for _ in arms]
    if axis != "steps" or len(places) > GRID:
        places = np.linspace(places[0], places[-1], GRID)
    return [_band(arm, places) for arm in curves]


def difference_band(pairs: Sequence[tuple[RunHistory, RunHistory]], axis: Axis) -> Band:
    """Loss of the second run of each pair minus that of the first, where both have been evaluated before and after."""
    paced = (_paced(arm, axis) for arm in zip(*pairs, strict=True))
    curves = list(zip(*paced, strict=True))
    places = np.unique([cost for pair in curves for costs, _ in pair for cost in costs])
    if axis != "steps" and len(places):
        places = np.linspace(places[0], places[-1], GRID)
    inside = _common([curve for pair in curves for curve in pair], places)
    return _summary(inside, lambda: [np.interp(inside, *other) - np.interp(inside, *base) for base, other in curves])


def _band(curves: Sequence[Curve], places: FloatArray) -> Band:
    inside = _common(curves, places)
    return _summary(inside, lambda: [np.interp(inside, *curve) for curve in curves])


def _common(curves: Sequence[Curve], places: FloatArray) -> FloatArray:
    """The places between the latest first and the earliest last point of the curves, and these two."""
    if not curves or not all(len(costs) for costs, _ in curves):
        return np.array([])
    first, last = max(costs[0] for costs, _ in curves), min(costs[-1] for costs, _ in curves)
    return np.unique([first, *places[(places > first) & (places < last)], last]) if first <= last else np.array([])


def _summary(places: FloatArray, values: Callable[[], Sequence[FloatArray]]) -> Band:
    """Mean, lowest and highest of the values at these places; they are asked for only where there are places."""
    if not len(places):
        return Band()
    table = np.array(values())
    columns = (places, table.mean(axis=0), table.min(axis=0), table.max(axis=0))
    return Band(*(tuple(map(float, column)) for column in columns))


def _paced(histories: Sequence[RunHistory], axis: Axis) -> list[Curve]:
    """The curves of the seeds of an arm, all at their mean pace.

    A step costs what it cost them on average: else their mean would end where the fastest seed does, in mid-course of
    the others.
    """
    drawn = [_drawn(history, axis) for history in histories]
    if axis == "steps" or len(drawn) < 2 or not all(steps for steps, _, _ in drawn):
        return [(costs, losses) for _, costs, losses in drawn]
    steps = _common(
        [(own, losses) for own, _, losses in drawn], np.unique([step for own, _, _ in drawn for step in own])
    )
    if not len(steps):
        return [([], []) for _ in drawn]
    pace = np.mean([np.interp(steps, own, costs) for own, costs, _ in drawn], axis=0)
    return [(pace, np.interp(steps, own, losses)) for own, _, losses in drawn]


def _drawn(history: RunHistory, axis: Axis) -> tuple[list[float], list[float], list[float]]:
    """Steps, costs and losses of a run, with a second point where an insertion changed the loss."""
    jumps = {event.step: event.loss_after for event in history.insertions if event.loss_after != event.loss_before}
    points: list[tuple[float, float, float]] = []
    for point in history.metrics.evaluations:
        cost = cost_of(history, point, axis)
        if cost is None:
            continue
        points.append((point.step, cost, point.validation.loss))
        after = jumps.get(point.step)
        if after is not None and point.step < history.step:
            points.append((float(np.nextafter(point.step, np.inf)), float(np.nextafter(cost, np.inf)), after))
    steps, costs, losses = zip(*points, strict=True) if points else ((), (), ())
    return list(steps), list(costs), list(losses)
