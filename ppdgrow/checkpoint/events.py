"""The events of `growth.jsonl`: which of them made a model what it is.

A `grow` or `remove` line changes the model at its `step`. Lines with a `trial` belong to one try of a progressive run:
`grow` (what was inserted), `check` (the losses and outputs before and after), `decision`; and a `twin` line stands for
the ungrown model of that round. Their `step` is that of the insertion, `until` the last step of the trial: before that
step nothing was decided. A `diverged` line is the end of a run at its `step`; no checkpoint has it behind it, so that a
run that goes on takes it out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ppdgrow.atomic import write_file
from ppdgrow.checkpoint import lines_up_to, read_jsonl
from ppdgrow.errors import InvalidInputError

Event = dict[str, Any]
BLOCK_ID = re.compile(r"[lp][1-9][0-9]{0,8}")
# What a run that goes on reads of its own decisions.
DECIDED = {
    "decision": ("growth", "until", "trial", "decision", "pair_lr", "loss_before", "loss_after", "twin", "rule"),
    "skip": ("growth", "until", "reason"),
}


def lineage_up_to(path: Path, step: int) -> list[Event]:
    """The events that a checkpoint at `step` has behind it, those of trials only once they are decided.

    Raises:
        InvalidInputError: a line is not valid or has no step.
    """
    return [event for event in lines_up_to(path, step) if _decided(event) <= step]


def _decided(event: Event) -> int:
    until = event.get("until")
    return until if isinstance(until, int) else int(event["step"])


def last_change(events: Iterable[Event]) -> str | None:
    """The last event that made the model what it is, outside of trials: `train`, `grow` or `remove`."""
    changes = [
        event["event"]
        for event in events
        if event.get("event") in ("train", "grow", "remove") and event.get("trial") is None
    ]
    return changes[-1] if changes else None


def is_kept(event: Event) -> bool:
    """Whether the event is not one of a rejected trial."""
    return event.get("decision") != "reject"


def insertions(events: Iterable[Event]) -> list[Event]:
    """The growths that the model kept, oldest first."""
    return [event for event in events if event.get("event") == "grow" and is_kept(event)]


def used_ids(events: Iterable[Event]) -> frozenset[str]:
    """Block ids that some ancestor had, whether or not they are still there."""
    return frozenset(
        block_id
        for event in events
        if is_kept(event)
        for block_id in event.get("ids", [])
        if BLOCK_ID.fullmatch(block_id)
    )


def own_events(events: Iterable[Event]) -> list[Event]:
    """The events since the latest `train`: what a run decided itself.

    Raises:
        InvalidInputError: a decision says less than the run needs to go on.
    """
    own: list[Event] = []
    for event in events:
        own = [] if event.get("event") == "train" else [*own, event]
    for event in own:
        for key in DECIDED.get(event["event"], ()):
            if key not in event or (event[key] is None and key in ("growth", "until", "trial", "pair_lr")):
                raise InvalidInputError(
                    f"growth.jsonl: the {event['event']} of step {event['step']} has no {key!r}, expected one; "
                    "restore the file from a copy of the run"
                )
    return own


def growth_entries(events: Iterable[Event]) -> list[Event]:
    """One entry for each growth and removal, that of a trial with its decision and, as `verdict`, the figures of it."""
    listed = list(events)
    decisions = {(event.get("step"), event.get("trial")): event for event in listed if event.get("event") == "decision"}
    entries = []
    for event in listed:
        if event.get("event") in ("grow", "remove"):
            decided = decisions.get((event.get("step"), event.get("trial")), {})
            verdict = {key: value for key, value in decided.items() if key not in event and key != "retry"}
            verdict |= {key: decided[key] for key in ("loss_before", "loss_after") if key in decided}
            entry = {"decision": None} | event
            entries.append(entry | {"retry": decided.get("retry"), "verdict": verdict} if decided else entry)
    return entries


def trim_lineage(path: Path, step: int) -> None:
    """Take out what a killed process wrote of decisions beyond its last checkpoint, at `step`.

    Raises:
        InvalidInputError: a line is not valid or has no step.
        StorageError: the file system refused.
    """
    kept = lineage_up_to(path, step)
    if len(kept) != len(read_jsonl(path)):
        write_file(path, "".join(json.dumps(event) + "\n" for event in kept))
