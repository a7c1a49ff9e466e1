"""Did growing pay: ungrown runs span a front of final loss over training FLOPs, and grown ones are held against it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ppdgrow.comparison.curves import cost_of
from ppdgrow.comparison.history import RunHistory
from ppdgrow.statistics import Estimate, estimate

Pays = Literal["yes", "no", "not judged"]


@dataclass(frozen=True)
class Front:
    """The lower convex hull of final losses (nats) over the logarithm of training FLOPs, as far as it falls.

    It says what a budget buys without growing: between two runs by interpolation, and beyond the best of them that
    one's loss, since a budget need not be spent. `points` are (FLOPs, loss), the loss falling; `largest` is the
    largest budget that was tried, and `step` what a step costs: budgets that differ by less are one.
    """

    points: tuple[tuple[float, float], ...]
    largest: float
    step: float = 0.0

    @classmethod
    def of(cls, runs: Iterable[tuple[float, float]], step: float = 0.0) -> Front:
        """The front of these (FLOPs, loss), of which there is at least one."""
        points = sorted(set(runs))
        hull: list[tuple[float, float]] = []
        for flops, loss in points:
            if loss > min(other for cost, other in points if cost <= flops + step):
                continue
            while len(hull) > 1 and _above(hull[-1], hull[-2], (flops, loss)):
                hull.pop()
            hull.append((flops, loss))
        lowest = min(range(len(hull)), key=lambda index: hull[index][1])
        return cls(tuple(hull[: lowest + 1]), points[-1][0], step)

    @property
    def smallest(self) -> float:
        return self.points[0][0]

    def loss_at(self, flops: float) -> float | None:
        """The loss that so many FLOPs buy; None outside the budgets that were tried."""
        if not self.smallest - self.step <= flops <= self.largest + self.step:
            return None
        costs, losses = zip(*self.points, strict=True)
        return float(np.interp(math.log(flops), np.log(costs), losses))

    def flops_for(self, loss: float) -> float | None:
        """The fewest FLOPs that buy a loss; None where it is above or below all losses of the front."""
        costs, losses = zip(*self.points, strict=True)
        if not losses[-1] <= loss <= losses[0]:
            return None
        return math.exp(float(np.interp(-loss, [-value for value in losses], np.log(costs))))


def _above(middle: tuple[float, float], left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether a point lies on or above the line between two others, over the logarithm of the cost."""
    share = math.log(middle[0] / left[0]) / math.log(right[0] / left[0])
    return middle[1] >= left[1] + share * (right[1] - left[1])


@dataclass(frozen=True)
class PayOff:
    """A grown arm against the front of the ungrown runs of its seeds.

    `front_loss` (nats) is what its FLOPs buy without growing, `difference` its own loss less that, `compute_gain` the
    FLOPs for its loss without growing over its own: each None where it is not known, and `doubt` then says why.
    `needs_control`: an ungrown run at its shallow depth, and of its cost, is missing.
    """

    front_loss: Estimate | None = None
    difference: Estimate | None = None
    compute_gain: Estimate | None = None
    doubt: str = ""
    needs_control: bool = False

    @property
    def pays(self) -> Pays:
        """Whether its loss is below the front's: the whole 95 % interval, or with one seed the figure itself."""
        if self.difference is None or self.doubt:
            return "not judged"
        worst = self.difference.mean if self.difference.high is None else self.difference.high
        return "yes" if worst < 0 else "no"


def is_ungrown(history: RunHistory) -> bool:
    """Whether a run shows what its FLOPs buy without growing: never changed, and at the end of its decay."""
    return not history.surgery and history.decayed and history.cut_short is None


def is_control(history: RunHistory, grown: RunHistory) -> bool:
    """Whether an ungrown run has the depth that a grown one started from, and is otherwise of its make."""
    own, other = history.architecture, grown.architecture
    alike = (own.family, own.stream, own.width) == (other.family, other.stream, other.width)
    return alike and own.num_layers == grown.insertions[0].layers_before


def total_flops(history: RunHistory) -> float:
    """FLOPs of a run up to its last evaluation, its shallow phase and its trials included."""
    return cost_of(history, history.final, "flops") or 0.0


def pay_off(grown: Sequence[RunHistory], others: Iterable[RunHistory]) -> PayOff:
    """The runs of a grown arm against the ungrown ones among others."""
    unready = [history.name for history in grown if history.untrained or history.cut_short or not history.decayed]
    if unready:
        return PayOff(doubt=f"the learning rate of {', '.join(unready)} is not at the end of its decay")
    ungrown = [history for history in others if is_ungrown(history)]
    if not any(is_control(history, one) for history in ungrown for one in grown):
        return PayOff(doubt="there is no ungrown control", needs_control=True)
    fronts = _fronts(grown, ungrown)
    if not fronts:
        return PayOff(doubt="no ungrown control has a seed in common", needs_control=True)
    costs = [total_flops(history) for history, _ in fronts]
    losses = [history.final.validation.loss for history, _ in fronts]
    bought = [front.loss_at(cost) for cost, (_, front) in zip(costs, fronts, strict=True)]
    needed = [front.flops_for(loss) for loss, (_, front) in zip(losses, fronts, strict=True)]
    doubt = ""
    if None in bought:
        outside = bought.index(None)
        than = "more" if costs[outside] > fronts[outside][1].largest else "fewer"
        doubt = f"it took {than} FLOPs than every ungrown run"
    return PayOff(
        front_loss=estimate(bought),
        difference=estimate([None if at is None else loss - at for loss, at in zip(losses, bought, strict=True)]),
        compute_gain=estimate(
            [None if flops is None else flops / cost for flops, cost in zip(needed, costs, strict=True)], ratio=True
        ),
        doubt=doubt,
        needs_control=bool(doubt),
    )


def _fronts(grown: Sequence[RunHistory], ungrown: Sequence[RunHistory]) -> list[tuple[RunHistory, Front]]:
    """The grown runs that have a control of their seed, each with the front of the ungrown runs of that seed.

    A single run whose seed no control has is held against the ungrown runs of all seeds.
    """
    found = []
    for history in grown:
        rivals = [one for one in ungrown if one.seeds == history.seeds]
        if len(grown) == 1 and not any(is_control(one, history) for one in rivals):
            rivals = list(ungrown)
        if any(is_control(one, history) for one in rivals):
            points = [(total_flops(one), one.final.validation.loss) for one in rivals]
            found.append((history, Front.of(points, max(total_flops(one) / one.final.step for one in rivals))))
    return found
