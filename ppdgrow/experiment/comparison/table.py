"""A comparison as rows of text for a terminal: the figures side by side, then the criteria, then the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppdgrow.config.state import Cost
from ppdgrow.console import format_count, format_flops, format_seconds
from ppdgrow.experiment.comparison.compare import ComparedRun, Comparison
from ppdgrow.experiment.comparison.criteria import COMPARABLE_ACCURACY, NO_INSERTION_SPIKE, ONE_SEED, Criterion
from ppdgrow.experiment.comparison.curves import EqualPoint
from ppdgrow.experiment.comparison.insertions import Insertion

NOTHING = "-"
ONE_SEED_EACH = "one seed each: run more seeds before you believe this (see --help)"
_PASSED = {True: "pass", False: "fail", None: "not judged"}


@dataclass(frozen=True)
class TextTable:
    """A header and rows of cells, all of one width."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def comparison_rows(comparison: Comparison) -> TextTable:
    """One column per run, the baseline first."""
    runs, baseline = comparison.runs, comparison.baseline

    def row(label: str, cell: Callable[[ComparedRun], str]) -> tuple[str, ...]:
        return (label, *(cell(run) for run in runs))

    def loss(run: ComparedRun) -> str:
        here, there = (r.history.final.validation.loss for r in (run, baseline))
        return f"{here:.4f}" + ("" if run is baseline else f" ({here - there:+.4f})")

    def accuracy(run: ComparedRun) -> str:
        here, there = (100 * r.history.final.validation.accuracy for r in (run, baseline))
        return f"{here:.2f} %" + ("" if run is baseline else f" ({here - there:+.2f} pt)")

    rows = [
        row("layers", _layers),
        row("parameters", lambda run: format_count(run.parameters)),
        row("FLOP per token", lambda run: format_flops(run.flops_per_token)),
        row("half-steps", lambda run: str(run.half_steps)),
        row("steps", lambda run: f"{run.history.step:,}"),
        row("validation loss", loss),
        row("accuracy", accuracy),
        *_equal_rows(comparison),
        row("FLOPs", lambda run: _ratio(run.flops_ratio, format_flops(run.history.state.ledger.flops))),
        row("wall-clock", lambda run: _ratio(run.seconds_ratio, format_seconds(run.history.state.ledger.seconds))),
        *_trial_rows(comparison),
        *_insertion_rows(comparison),
        row("gradient spikes (old / new)", _gradient_spikes),
        row("loss spikes", lambda run: str(run.loss_spikes)),
    ]
    return TextTable(("", *(run.name for run in runs)), tuple(rows))


def criteria_rows(comparison: Comparison) -> TextTable:
    """One row per criterion: its figure, its bound, how it came out, and what to know of it."""
    several = len({criterion.run for criterion in comparison.criteria}) > 1
    rows = tuple(
        (_criterion_label(c, several), _figure(c), f"{c.relation} {_bound(c)}", _PASSED[c.passed], c.note)
        for c in comparison.criteria
    )
    return TextTable(("criterion", "figure", "bound", "", ""), rows)


def closing_lines(comparison: Comparison) -> list[str]:
    """The verdict, and what it is worth."""
    decided = comparison.decided
    if decided is None:
        judged = [criterion for criterion in comparison.criteria if criterion.passed is not None]
        passed = sum(criterion.passed is True for criterion in judged)
        return [
            f"verdict: {comparison.verdict} ({passed} of {len(judged)} judged criteria passed, "
            f"against {comparison.baseline.name})",
            *(note for note in comparison.notes if note != ONE_SEED),
            ONE_SEED_EACH,
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


def _layers(run: ComparedRun) -> str:
    changes = [event for event in run.history.surgery if event.layers_after is not None]
    if not changes or changes[0].layers_before is None:
        return str(run.history.architecture.num_layers)
    return str(changes[0].layers_before) + "".join(f" -> {e.layers_after} at step {e.step:,}" for e in changes)


def _ratio(ratio: float | None, amount: str) -> str:
    return f"{NOTHING} ({amount})" if ratio is None else f"{ratio:.2f} ({amount})"


def _trial_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """What the trials of progressive runs cost beside the models, held against the baseline's own cost."""
    runs = comparison.runs
    if not any(run.has_trials for run in runs):
        return []

    def cell(run: ComparedRun, text: str) -> str:
        return text if run.has_trials else NOTHING

    own = comparison.baseline.history.state.ledger
    counts = [f"{run.history.trials_kept} / {run.history.trials_rejected}" for run in runs]
    spent = [run.history.state.ledger.trials for run in runs]
    flops = [_ratio(cost.flops / own.flops if own.flops else None, format_flops(cost.flops)) for cost in spent]
    seconds = [
        _ratio(cost.seconds / own.seconds if own.seconds else None, format_seconds(cost.seconds)) for cost in spent
    ]
    return [
        (label, *(cell(run, text) for run, text in zip(runs, texts, strict=True)))
        for label, texts in (
            ("trials (kept / rejected)", counts),
            ("FLOPs of trials", flops),
            ("wall-clock of trials", seconds),
        )
    ]


def _equal_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Losses at equal cost; at equal steps only where the last losses are not already that."""
    rows = []
    last = {run.history.final.step for run in comparison.runs}
    if len(last) > 1:
        rows.append(_equal_row(comparison, "loss at equal steps", "steps", lambda at: f"step {at:,.0f}"))
    rows.append(_equal_row(comparison, "loss at equal FLOPs", "flops", format_flops))
    rows.append(_equal_row(comparison, "loss at equal wall-clock", "seconds", format_seconds))
    return rows


def _equal_row(comparison: Comparison, label: str, axis: str, place: Callable[[float], str]) -> tuple[str, ...]:
    def cell(run: ComparedRun) -> str:
        point: EqualPoint | None = None if run.equal is None else getattr(run.equal, axis)
        if point is None:
            return NOTHING
        return f"{point.loss:.4f} ({point.difference:+.4f}) at {place(point.at)}"

    return (label, *(cell(run) for run in comparison.runs))


def _insertion_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    most = max(len(run.insertions) for run in comparison.runs)
    rows: list[tuple[str, ...]] = []
    for index in range(most):
        row = [run.insertions[index] if index < len(run.insertions) else None for run in comparison.runs]
        which = f" {index + 1}" if most > 1 else ""
        updates = {insertion.updates for insertion in row if insertion is not None and insertion.updates is not None}
        same = updates.pop() if len(updates) == 1 else None
        rows.append((f"loss before / after insertion{which}", *map(_before_after, row)))
        label = "loss some updates after" if same is None else f"loss {same:,} updates after"
        rows.append((f"{label}{which and f' insertion{which}'}", *(_later(i, same is None) for i in row)))
    return rows


def _before_after(insertion: Insertion | None) -> str:
    if insertion is None:
        return NOTHING
    if insertion.loss_before is None or insertion.loss_after is None:
        return "not measured"
    before, after = f"{insertion.loss_before:.6f}", f"{insertion.loss_after:.6f}"
    if before == after and insertion.jump:
        before, after = repr(insertion.loss_before), repr(insertion.loss_after)
    return f"{before} / {after}"


def _later(insertion: Insertion | None, tell_updates: bool) -> str:
    if insertion is None or insertion.loss_after_updates is None:
        return NOTHING
    return f"{insertion.loss_after_updates:.4f}" + (f" ({insertion.updates:,})" if tell_updates else "")


def _gradient_spikes(run: ComparedRun) -> str:
    counts = (run.gradient_spikes.old, run.gradient_spikes.new)
    shown = [NOTHING if count is None else str(count) for count in counts]
    return shown[0] if counts[1] is None else " / ".join(shown)


def _criterion_label(criterion: Criterion, several: bool) -> str:
    label = f"{criterion.run}: {criterion.name}" if several else criterion.name
    return label if criterion.name == NO_INSERTION_SPIKE else f"{label} (vs {criterion.against})"


def _figure(criterion: Criterion) -> str:
    value = criterion.value
    if value is None:
        return NOTHING
    if criterion.name == NO_INSERTION_SPIKE:
        return "0" if value == 0 else f"{value:.3g}"
    digits, unit = (2, " pt") if criterion.name == COMPARABLE_ACCURACY else (4, "")
    # A difference that rounds to its bound would contradict the verdict beside it.
    if abs(value - criterion.bound) < 0.5 * 10**-digits and value != criterion.bound:
        return f"{value:+.6g}{unit}"
    return f"{value:+.{digits}f}{unit}"


def _bound(criterion: Criterion) -> str:
    return f"{criterion.bound:g} pt" if criterion.unit == "pt" else f"{criterion.bound:g}"
