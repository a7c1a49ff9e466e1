"""The figures of a comparison: one list of them, from which every table of arms is made, on a terminal and on a page.

Few arms stand beside each other with all their figures where that fits; else below each other, many of them with the
figures that decide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from statistics import fmean

from ppdgrow.comparison.cells import (
    NOTHING,
    before_after,
    bound,
    bump,
    cost_cell,
    figure,
    gradient_spikes,
    insertion_cell,
    layers,
    outcome,
    seeds,
    spread,
    spread_if_known,
    with_interval,
)
from ppdgrow.comparison.compare import Comparison
from ppdgrow.comparison.criteria import NO_INSERTION_SPIKE, ONE_SEED, Criterion
from ppdgrow.comparison.curves import AXES, Axis, EqualPoint
from ppdgrow.comparison.figures import ComparedArm
from ppdgrow.comparison.insertions import Insertion
from ppdgrow.config.state import Cost
from ppdgrow.console import format_count, format_flops, format_seconds, table_columns
from ppdgrow.console.tables import table_width
from ppdgrow.statistics import Estimate

SIDE_BY_SIDE = 4
ONE_SEED_EACH = "one seed each: run more seeds before you believe this (see --help)"
NAMES: dict[Axis, str] = {"steps": "steps", "flops": "FLOPs", "seconds": "wall-clock"}
PLACES: dict[Axis, Callable[[float], str]] = {
    "steps": lambda at: f"step {at:,.0f}",
    "flops": format_flops,
    "seconds": format_seconds,
}


@dataclass(frozen=True)
class TextTable:
    """A header and rows of cells, all of one width."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Column:
    """A figure of an arm: its name, how it is written, and whether it is shown with few arms and with many."""

    name: str
    cell: Callable[[ComparedArm], str]
    few: bool = True
    many: bool = False


def columns(comparison: Comparison) -> list[Column]:
    """Every figure of an arm, those that tell what it is first."""
    return [
        *_outcome(comparison),
        *size_columns(comparison),
        *_losses(comparison),
        *equal_columns(comparison),
        *(Column(NAMES[axis], partial(_amount, axis=axis), many=True) for axis in AXES[1:]),
        *cost_columns(comparison),
        *_trials(comparison),
        Column("insertion", insertion_cell, few=False, many=True),
        *_insertions(comparison),
        Column(f"gradient spikes{_all_seeds(comparison)} (old / new)", gradient_spikes),
        Column(f"loss spikes{_all_seeds(comparison)}", lambda arm: str(sum(run.loss_spikes for run in arm.runs))),
    ]


def _outcome(comparison: Comparison) -> Iterator[Column]:
    if comparison.decided is None:
        several = len(comparison.arms) > 2
        yield Column("verdict", lambda arm: comparison.verdict_on(arm) or "baseline", few=several, many=True)
    several = comparison.several_seeds or any(arm.left_out for arm in comparison.arms)
    yield Column("seeds", seeds, few=several, many=True)


def size_columns(comparison: Comparison) -> list[Column]:
    """What the models are."""
    return [
        Column("layers", lambda arm: layers(arm.first), many=True),
        Column("stream", lambda arm: arm.first.history.architecture.stream, few=False),
        Column("width", lambda arm: str(arm.first.history.architecture.width), few=False),
        Column("parameters", lambda arm: format_count(arm.first.parameters), many=True),
        Column("FLOP per token", lambda arm: format_flops(arm.first.flops_per_token)),
        Column("half-steps", lambda arm: str(arm.first.half_steps)),
        Column("steps", lambda arm: f"{arm.first.history.step:,}"),
        Column("training tokens", lambda arm: format_count(arm.first.history.state.ledger.tokens), few=False),
    ]


def _losses(comparison: Comparison) -> list[Column]:
    tested = any(arm.test_loss is not None for arm in comparison.arms)

    def against(difference: Estimate | None, digits: int, unit: str = "") -> str:
        return NOTHING if difference is None else with_interval(difference, digits) + unit

    return [
        Column("validation loss", lambda arm: spread(arm.loss, 4), many=True),
        Column("loss against baseline", lambda arm: against(arm.loss_difference, 4), many=True),
        Column("accuracy", lambda arm: f"{spread(arm.accuracy, 2)} %", many=True),
        Column("accuracy against baseline", lambda arm: against(arm.accuracy_difference, 2, " pt")),
        Column("test loss", lambda arm: spread_if_known(arm.test_loss, 4), few=tested, many=tested),
        Column("test accuracy", lambda arm: spread_if_known(arm.test_accuracy, 2, " %"), few=tested),
    ]


def equal_columns(comparison: Comparison) -> list[Column]:
    """Losses at the largest cost that an arm and the baseline both reached.

    That at equal steps is shown on a terminal only where the last losses are not already that.
    """
    apart = len({run.history.final.step for run in comparison.runs}) > 1
    return [
        Column(f"loss at equal {NAMES[axis]}", partial(_equal, axis=axis), few=axis != "steps" or apart)
        for axis in AXES
    ]


def cost_columns(comparison: Comparison) -> list[Column]:
    """The cost to the baseline's final loss as a ratio; not where a decision is about the runs."""
    return [
        Column(f"{NAMES[axis]} to equal loss", partial(cost_cell, axis=axis), many=axis == "flops")
        for axis in (AXES if comparison.decided is None else ())
    ]


def _trials(comparison: Comparison) -> list[Column]:
    """What the trials of progressive runs cost beside the models, held against the baseline's own cost."""

    def counts(arm: ComparedArm) -> str:
        kept = sum(run.history.trials_kept for run in arm.runs)
        rejected = sum(run.history.trials_rejected for run in arm.runs)
        return f"{kept} / {rejected}" if any(run.has_trials for run in arm.runs) else NOTHING

    def cost(arm: ComparedArm, axis: Axis) -> str:
        if not any(run.has_trials for run in arm.runs):
            return NOTHING
        own = _mean(comparison.baseline, axis)
        spent = fmean(getattr(run.history.state.ledger.trials, axis) for run in arm.runs)
        return f"{f'{spent / own:.2f}' if own else NOTHING} ({PLACES[axis](spent)})"

    if not any(run.has_trials for run in comparison.runs):
        return []
    return [
        Column(f"trials{_all_seeds(comparison)} (kept / rejected)", counts),
        *(Column(f"{NAMES[axis]} of trials", partial(cost, axis=axis), many=axis == "flops") for axis in AXES[1:]),
    ]


def _insertions(comparison: Comparison) -> Iterator[Column]:
    most = max(len(run.insertions) for run in comparison.runs)
    for index in range(most):
        which = f" {index + 1}" if most > 1 else ""
        updates = {i.updates for arm in comparison.arms for i in _found(arm, index) if i.updates is not None}
        same = updates.pop() if len(updates) == 1 else None
        when = "some" if same is None else f"{same:,}"
        figures: dict[str, Callable[[Sequence[Insertion]], str]] = {
            f"loss before / after insertion{which}": before_after,
            f"loss {when} updates after{which and f' insertion{which}'}": partial(_later, tell_updates=same is None),
            f"growth bump, steps to recover{which}": bump,
        }
        for name, write in figures.items():
            yield Column(name, partial(_written, index=index, write=write))


def _found(arm: ComparedArm, index: int) -> list[Insertion]:
    return [run.insertions[index] for run in arm.runs if index < len(run.insertions)]


def _written(arm: ComparedArm, index: int, write: Callable[[Sequence[Insertion]], str]) -> str:
    return write(_found(arm, index))


def _later(insertions: Sequence[Insertion], *, tell_updates: bool) -> str:
    losses = [(i.loss_after_updates, i.updates) for i in insertions]
    known = [(loss, updates) for loss, updates in losses if loss is not None and updates is not None]
    if not known or len(known) < len(losses):
        return NOTHING
    told = f" ({', '.join(f'{updates:,}' for updates in sorted({u for _, u in known}))})" if tell_updates else ""
    return f"{fmean(loss for loss, _ in known):.4f}{told}"


def _equal(arm: ComparedArm, axis: Axis) -> str:
    points: list[EqualPoint | None] = [None if run.equal is None else getattr(run.equal, axis) for run in arm.pairs]
    known = [point for point in points if point is not None]
    if not known or len(known) < len(points):
        return NOTHING
    difference = Estimate(tuple(point.difference for point in known))
    loss, at = fmean(point.loss for point in known), fmean(point.at for point in known)
    return f"{loss:.4f} ({with_interval(difference, 4)}) at {PLACES[axis](at)}"


def _mean(arm: ComparedArm, axis: Axis) -> float:
    return fmean(getattr(run.history.state.ledger, axis) for run in arm.runs)


def _amount(arm: ComparedArm, axis: Axis) -> str:
    ratio: Estimate | None = getattr(arm, f"{axis}_ratio")
    return f"{NOTHING if ratio is None else f'{ratio.mean:.2f}'} ({PLACES[axis](_mean(arm, axis))})"


def _all_seeds(comparison: Comparison) -> str:
    """Counts are of all seeds of an arm together, other figures are means."""
    return " in all seeds" if comparison.several_seeds else ""


def comparison_rows(comparison: Comparison, width: int | None = None) -> TextTable:
    """The arms beside each other, the baseline first, where they are few and fit; else below each other."""
    names = [short_names(comparison, width).get(arm.name, arm.name) for arm in comparison.arms]
    few = len(comparison.arms) <= SIDE_BY_SIDE
    shown = [column for column in columns(comparison) if (column.few if few else column.many)]
    rows = tuple((column.name, *(column.cell(arm) for arm in comparison.arms)) for column in shown)
    beside = TextTable(("", *names), rows)
    if few and (width is None or table_width(table_columns(rows, beside.header)) <= width):
        return beside
    return arm_rows(comparison, shown, names)


def arm_rows(comparison: Comparison, shown: Sequence[Column], names: Sequence[str] | None = None) -> TextTable:
    """One row per arm."""
    named = zip(names or [arm.name for arm in comparison.arms], comparison.arms, strict=True)
    rows = tuple((name, *(column.cell(arm) for column in shown)) for name, arm in named)
    return TextTable(("arm", *(column.name for column in shown)), rows)


def short_names(comparison: Comparison, width: int | None) -> dict[str, str]:
    """What stands in place of names that take more than a quarter of the width; by name, None is any width.

    Where that is enough, what all names begin and end with is left out; else the arms are numbered.
    """
    names = [arm.name for arm in comparison.arms]
    room = max(12, (width or 0) // 4)
    if width is None or max(map(len, names)) <= room:
        return {}
    words = [re.split(r"(?<=[-_./ ])", name) for name in names]
    least = min(map(len, words)) - 1
    first = min(_shared(words), least)
    last = min(_shared([one[::-1] for one in words]), least - first)
    parts = ["".join(one[first : len(one) - last]).rstrip("-_./ ") for one in words]
    if len({part for part in parts if 0 < len(part) <= room}) == len(names):
        return dict(zip(names, parts, strict=True))
    numbered = {name: f"arm {number}" if number else "baseline" for number, name in enumerate(names)}
    return {name: short for name, short in numbered.items() if len(name) > room and short not in names}


def _shared(words: Sequence[Sequence[str]]) -> int:
    """How many words all of these begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))


def replace_names(text: str, short: Mapping[str, str]) -> str:
    """The text with its names replaced."""
    if not short:
        return text
    names = "|".join(map(re.escape, sorted(short, key=len, reverse=True)))
    return re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", lambda match: short[match[0]], text)


CRITERION = ("figure", "bound", "", "")


def criterion_cells(criterion: Criterion) -> tuple[str, ...]:
    """Its figure, its bound, how it came out, and what to know of it."""
    return figure(criterion), bound(criterion), outcome(criterion), criterion.note


def criteria_rows(comparison: Comparison) -> dict[str, TextTable]:
    """The criteria of each arm, by who is held against whom."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for c in comparison.criteria:
        found.setdefault(f"{c.run} against {c.against}", []).append((c.name, *criterion_cells(c)))
    return {title: TextTable(("criterion", *CRITERION), tuple(rows)) for title, rows in found.items()}


def criteria_matrix(comparison: Comparison) -> TextTable:
    """One row per arm, one column per criterion, how each came out."""
    names = tuple(dict.fromkeys(criterion.name for criterion in comparison.criteria))
    outcomes = {(criterion.run, criterion.name): outcome(criterion) for criterion in comparison.criteria}
    rows = tuple(
        (arm.name, *(outcomes.get((arm.name, name), NOTHING) for name in names)) for arm in comparison.arms[1:]
    )
    return TextTable((f"against {comparison.baseline.name}", *names), rows)


def closing_lines(comparison: Comparison) -> list[str]:
    """The verdict, and what it is worth."""
    decided = comparison.decided
    if decided is None:
        judged = [criterion for criterion in comparison.criteria if criterion.passed is not None]
        passed = sum(criterion.passed is True for criterion in judged)
        more = any(criterion.name != NO_INSERTION_SPIKE for criterion in judged)
        worth = f"{passed} of {len(judged)} judged criteria passed" if more else "nothing that training does was judged"
        return [
            f"verdict: {comparison.verdict} ({worth}, against {comparison.baseline.name})",
            *(note for note in comparison.notes if note != ONE_SEED),
            *([ONE_SEED_EACH] if ONE_SEED in comparison.notes else []),
        ]
    return [
        f"verdict: {comparison.verdict} by the {decided.decision.rule} rule",
        *decided.decision.lines(),
        *_cost_line("trial", decided.trial_cost),
        *_cost_line("twin", decided.twin_cost),
        *(note for note in comparison.notes if note != ONE_SEED),
    ]


def _cost_line(name: str, cost: Cost | None) -> list[str]:
    if cost is None:
        return []
    return [
        f"cost of the {name} since the parent: {format_count(cost.tokens)} tokens, {format_flops(cost.flops)}, "
        f"{format_seconds(cost.seconds)}"
    ]
