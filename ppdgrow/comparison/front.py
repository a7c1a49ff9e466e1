"""Did growing pay: ungrown runs span a front of final loss over training FLOPs, and grown ones are held against it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from ppdgrow.checkpoint.events import TrialEvent
from ppdgrow.comparison.curves import cost_of
from ppdgrow.comparison.history import RunHistory
from ppdgrow.config.state import Cost
from ppdgrow.statistics import Estimate, estimate

Pays = Literal["yes", "no", "not judged"]

NEAR = 1.25  # factor within which a control took about as many FLOPs
ELSE = "against ungrown runs of another seed"


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
    `needs_control`: an ungrown run at its shallow depth, and of its cost, is missing. `note` is what to know of it,
    `rejected` that all trials of its runs, or of some, were.
    """

    front_loss: Estimate | None = None
    difference: Estimate | None = None
    compute_gain: Estimate | None = None
    doubt: str = ""
    needs_control: bool = False
    note: str = ""
    rejected: str = ""

    @property
    def pays(self) -> Pays:
        """Whether its loss is below the front's: the whole 95 % interval, or with one seed the figure itself."""
        if self.difference is None or self.doubt:
            return "not judged"
        worst = self.difference.mean if self.difference.high is None else self.difference.high
        return "yes" if worst < 0 else "no"

    def doubted(self, doubt: str) -> PayOff:
        return replace(self, doubt=doubt, needs_control=True)


def is_ungrown(history: RunHistory) -> bool:
    """Whether a run shows what its FLOPs buy without growing: never changed, nothing tried, its rate decayed."""
    untouched = not history.surgery and history.state.ledger.trials == Cost()
    return history.step > 0 and untouched and history.decayed and history.cut_short is None


def grew_in_vain(history: RunHistory) -> bool:
    """Whether it tried to grow and all its trials were rejected."""
    return history.trials_rejected > 0 and not history.insertions


def _without_trials(history: RunHistory) -> RunHistory:
    """A run that grew in vain as the ungrown one that it is but for the cost: a rejected trial leaves no trace."""
    ledger = history.state.ledger.model_copy(update={"trials": Cost()})
    events = tuple(event for event in history.events if not isinstance(event, TrialEvent))
    return replace(history, events=events, state=history.state.model_copy(update={"ledger": ledger}))


def is_control(history: RunHistory, grown: RunHistory) -> bool:
    """Whether an ungrown run has the depth that a grown one started from, or that it never left."""
    layers = [event.layers_before for event in grown.insertions] or [grown.architecture.num_layers]
    return history.architecture.num_layers == layers[0]


def total_flops(history: RunHistory) -> float:
    """FLOPs of a run up to its last evaluation, its shallow phase and its trials included."""
    return cost_of(history, history.final, "flops") or 0.0


def pay_off(grown: Sequence[RunHistory], others: Iterable[RunHistory]) -> PayOff:
    """The runs of an arm that grew, or tried to, against the ungrown ones among others that differ in depth alone."""
    unready = [history.name for history in grown if history.untrained or history.cut_short or not history.decayed]
    if unready:
        return PayOff(doubt=f"the learning rate of {', '.join(unready)} is not decayed at the end")
    ungrown = [history for history in others if is_ungrown(history) and _make(history) == _make(grown[0])]
    in_vain = [_without_trials(history) for history in grown if grew_in_vain(history)]
    ungrown += in_vain
    if not any(is_control(history, one) for history in ungrown for one in grown):
        return PayOff().doubted("there is no ungrown control")
    held = {index: rivals for index, one in enumerate(grown) if (rivals := _rivals(one, grown, ungrown))}
    if not held:
        return PayOff().doubted("no ungrown control has a seed in common")
    fronts = [_front(rivals) for rivals in held.values()]
    runs = [grown[index] for index in held]
    costs, losses = [total_flops(one) for one in runs], [one.final.validation.loss for one in runs]
    bought = [_bought(*one) for one in zip(fronts, costs, losses, strict=True)]
    needed = [front.flops_for(loss) for front, loss in zip(fronts, losses, strict=True)]
    gains = [None if flops is None else flops / cost for flops, cost in zip(needed, costs, strict=True)]
    found = PayOff(
        front_loss=estimate(bought),
        difference=estimate([None if at is None else loss - at for loss, at in zip(losses, bought, strict=True)]),
        compute_gain=estimate(gains, ratio=True),
        note="" if all(map(_same_seed, runs, held.values())) else ELSE,
        rejected=_rejected(len(in_vain), len(grown)),
    )
    if None in bought:
        outside = bought.index(None)
        than = "more" if costs[outside] > fronts[outside].largest else "fewer"
        return found.doubted(f"it took {than} FLOPs than every ungrown run")
    if len(runs) < len(grown):
        return found.doubted(f"{len(runs)} of {len(grown)} seeds have an ungrown control")
    if found.pays == "yes" and not all(map(_has_control_near, runs, held.values())):
        return found.doubted("no ungrown control took about as many FLOPs")
    return found


def _rejected(number: int, of: int) -> str:
    seeds = "" if of == 1 else f" of all {of} seeds" if number == of else f" of {number} of {of} seeds"
    return f"all trials{seeds} were rejected" if number else ""


def _make(history: RunHistory) -> tuple[str, str, int]:
    return history.architecture.family, history.architecture.stream, history.architecture.width


def _rivals(history: RunHistory, grown: Sequence[RunHistory], ungrown: Sequence[RunHistory]) -> Sequence[RunHistory]:
    """The ungrown runs of its seed, if a control is among them; of all seeds where an arm of one run has no control."""
    for rivals in ([one for one in ungrown if one.seeds == history.seeds], ungrown if len(grown) == 1 else []):
        if any(is_control(one, history) for one in rivals):
            return rivals
    return []


def _same_seed(history: RunHistory, rivals: Sequence[RunHistory]) -> bool:
    return all(rival.seeds == history.seeds for rival in rivals)


def _front(rivals: Sequence[RunHistory]) -> Front:
    points = [(total_flops(one), one.final.validation.loss) for one in rivals]
    return Front.of(points, max(total_flops(one) / one.final.step for one in rivals))


def _bought(front: Front, cost: float, loss: float) -> float | None:
    """What the cost buys; a larger budget than any that was tried buys at least the lowest loss of them."""
    lowest = front.points[-1][1]
    return lowest if cost > front.largest and loss >= lowest else front.loss_at(cost)


def _has_control_near(history: RunHistory, rivals: Sequence[RunHistory]) -> bool:
    """Whether a control took about as many FLOPs: between distant ones a front is too high, for it is not a line."""
    costs = [total_flops(one) for one in rivals if is_control(one, history)]
    return any(1 / NEAR <= cost / total_flops(history) <= NEAR for cost in costs)
