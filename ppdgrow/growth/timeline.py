"""The timeline: depth against steps, each decision with its figure, and what it all cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ppdgrow.checkpoint.events import Event
from ppdgrow.config.state import Cost, Ledger
from ppdgrow.console import format_flops, format_seconds

WIDEST = 56
NARROWEST = 16
USUAL = {"position": "interleave", "source": None, "scale": 1.0, "moments": "copy_v"}


@dataclass(frozen=True)
class DepthSpan:
    """A stretch of the run at one depth."""

    first: int
    last: int
    layers: int


def depth_spans(events: Sequence[Event], *, layers: int, first: int, step: int) -> list[DepthSpan]:
    """The depths of a run from `first` to `step`.

    Args:
        events: of the run itself, since its start.
        layers: depth at the start.
        first: step at the start.
        step: where the run stands.
    """
    found = []
    for event in events:
        if event.get("event") == "grow" and event.get("decision") == "accept":
            found.append(DepthSpan(first, event["step"], layers))
            first, layers = event["step"], event["layers_after"]
    return [*found, DepthSpan(first, step, layers)]


def timeline(
    events: Sequence[Event], *, layers: int, first: int, step: int, last: int, columns: int = WIDEST
) -> list[str]:
    """The staircase as lines of ASCII: `=` is the depth of the run, `x` a depth that was tried and rejected."""
    columns = max(NARROWEST, min(WIDEST, columns))
    stairs = depth_spans(events, layers=layers, first=first, step=step)
    rejected = [
        (event["step"], event["layers_after"])
        for event in events
        if event.get("event") == "grow" and event.get("decision") == "reject"
    ]
    depths = sorted({span.layers for span in stairs} | {depth for _, depth in rejected}, reverse=True)
    width = max(1, last - first)

    def column(at: int) -> int:
        return min(columns - 1, (at - first) * columns // width)

    lines = ["layers"]
    for depth in depths:
        cells = [" "] * columns
        for span in stairs:
            if span.layers == depth:
                left, right = column(span.first), column(span.last)
                cells[left : right + 1] = "=" * (right + 1 - left)
        for at, tried in rejected:
            if tried == depth:
                cells[column(at)] = "x"
        lines.append(f"{depth:>6} |{''.join(cells).rstrip()}")
    lines.append(f"{'':>6} +{'-' * columns}")
    lines.append(f"{'steps':>6}  {first:<{columns // 2}}{last:>{columns - columns // 2}}")
    return lines


def decision_lines(events: Sequence[Event]) -> list[str]:
    """One line for each trial: where, what, the figure that decided, and what came of it."""
    lines = []
    depths = {event["trial"]: event for event in events if event.get("event") == "grow" and "trial" in event}
    for event in events:
        if event.get("event") == "decision":
            grow = depths[event["trial"]]
            rate = "" if event["pair_lr"] == 1.0 else f", rate x {event['pair_lr']:g}"
            lines.append(
                f"step {event['step']:>6}   {grow['layers_before']} -> {grow['layers_after']}   "
                f"{event['decision']}   {_figure(event)}   {_what(grow)}{rate}"
            )
        elif event.get("event") == "skip":
            lines.append(f"step {event['step']:>6}  growth {event['growth']} was not tried: {event['reason']}")
    return lines


def _what(grow: Event) -> str:
    """What was tried, with those of its settings that are not the default."""
    what = grow["method"] if grow["method"] != "pair" else "/".join(dict.fromkeys(grow["kinds"]))
    settings = [f"{key} {grow[key]}" for key, usual in USUAL.items() if grow[key] != usual]
    return ", ".join([what, *settings])


def _figure(event: Event) -> str:
    if event["loss_after"] is None:
        return "diverged"
    change = f"vs parent {_signed(event['loss_after'] - event['loss_before'])}"
    twin = event["twin"]
    if twin is None:
        return change
    ends = f"{_signed(twin['low'])}, {_signed(twin['high'])}"
    against_twin = f"vs twin {_signed(twin['difference'])} [{ends}]"
    return f"{against_twin}   {change}" if event["rule"] == "twin" else f"{change}   {against_twin}"


def _signed(value: float) -> str:
    """Four digits, unless they would hide on which side of zero it lies."""
    return f"{value:+.4f}" if value == 0 or abs(value) >= 0.00005 else f"{value:+.0e}"


def ledger_line(ledger: Ledger) -> str:
    """What the run cost, and what its trials cost beside it."""
    trials: Cost = ledger.trials
    share = f" ({trials.flops / ledger.flops:.0%} of that)" if ledger.flops else ""
    return (
        f"ledger: run {format_flops(ledger.flops)}, {format_seconds(ledger.seconds)}; trials in addition "
        f"{format_flops(trials.flops)}{share}, {format_seconds(trials.seconds)}"
    )
