"""The timeline: depth against steps, each decision with its figure, and what it all cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ppdgrow.checkpoint.events import DecisionEvent, Event, GrowEvent, SkipEvent
from ppdgrow.checkpoint.lineage import insertions
from ppdgrow.config.state import Ledger
from ppdgrow.console import format_flops, format_seconds
from ppdgrow.surgery import METHODS

WIDEST = 56
NARROWEST = 16
USUAL = {"position": "interleave", "source": None, "scale": 1.0, "moments": "copy_v"}


def timeline(
    events: Sequence[Event], *, layers: int, first: int, step: int, last: int, columns: int = WIDEST
) -> list[str]:
    """The staircase as lines of ASCII: `=` is the depth of the run, `x` a depth that was tried and rejected.

    The run started at step `first` with `layers`, stands at `step` and ends at `last`; `events` are its own.
    """
    columns = max(NARROWEST, min(WIDEST, columns))
    rows: defaultdict[int, list[str]] = defaultdict(lambda: [" "] * columns)

    def column(at: int) -> int:
        return min(columns - 1, (at - first) * columns // max(1, last - first))

    start = first
    for until, deeper in [*((event.step, event.layers_after) for event in insertions(events)), (step, None)]:
        left, right = column(start), column(until) + 1
        rows[layers][left:right] = "=" * (right - left)
        start, layers = until, deeper or layers
    for event in events:
        if isinstance(event, GrowEvent) and event.layers_after is not None and not event.is_kept:
            rows[event.layers_after][column(event.step)] = "x"
    return [
        "layers",
        *(f"{depth:>6} |{''.join(rows[depth]).rstrip()}" for depth in sorted(rows, reverse=True)),
        f"{'':>6} +{'-' * columns}",
        f"{'steps':>6}  {first:<{columns // 2}}{last:>{columns - columns // 2}}",
    ]


def decision_lines(events: Sequence[Event]) -> list[str]:
    """One line for each trial: where, what, the figure that decided, and what came of it."""
    lines = []
    growths = {event.trial: event for event in events if isinstance(event, GrowEvent)}
    for event in events:
        if isinstance(event, DecisionEvent):
            grow = growths[event.trial]
            rate = "" if event.pair_lr == 1.0 else f", rate x {event.pair_lr:g}"
            lines.append(
                f"step {event.step:>6}   {grow.depths}   {event.decision}   {_figure(event)}   {_what(grow)}{rate}"
            )
        elif isinstance(event, SkipEvent):
            lines.append(f"step {event.step:>6}  growth {event.growth} was not tried: {event.reason}")
    return lines


def _what(grow: GrowEvent) -> str:
    """What was tried, with those of its settings that are not the default."""
    method = METHODS.get(grow.method or "")
    what = str(grow.method) if method is None else method.label(grow.kinds)
    return ", ".join([what, *(f"{key} {value}" for key in USUAL if (value := getattr(grow, key)) != USUAL[key])])


def _figure(event: DecisionEvent) -> str:
    """The figures of a decision, that of the rule that decided first."""
    if event.loss_after is None or event.loss_before is None:
        return "diverged"
    figures = {"parent": f"vs parent {_signed(event.loss_after - event.loss_before)}"}
    if event.twin is not None:
        ends = f"{_signed(event.twin.low)}, {_signed(event.twin.high)}"
        figures["twin"] = f"vs twin {_signed(event.twin.difference)} [{ends}]"
    return "   ".join(figures[rule] for rule in sorted(figures, key=lambda rule: rule != event.rule))


def _signed(value: float) -> str:
    """Four digits, unless they would hide on which side of zero it lies."""
    return f"{value:+.4f}" if value == 0 or abs(value) >= 0.00005 else f"{value:+.0e}"


def ledger_line(ledger: Ledger) -> str:
    """What the run cost, and what its trials cost beside it."""
    trials = ledger.trials
    share = f" ({trials.flops / ledger.flops:.0%} of that)" if ledger.flops else ""
    return (
        f"ledger: run {format_flops(ledger.flops)}, {format_seconds(ledger.seconds)}; trials in addition "
        f"{format_flops(trials.flops)}{share}, {format_seconds(trials.seconds)}"
    )
