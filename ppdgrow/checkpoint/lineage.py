"""The lineage of a checkpoint: which events of `growth.jsonl` made the model what it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint.events import (
    DecisionEvent,
    Event,
    GrowEvent,
    SurgeryEvent,
    TrainEvent,
    read_events,
    write_events,
)
from ppdgrow.errors import InvalidInputError

BLOCK_ID = re.compile(r"[lp][1-9][0-9]{0,8}")


def lineage_up_to(path: Path, step: int) -> list[Event]:
    """The events that a checkpoint at `step` has behind it, those of trials only once they are decided."""
    return [event for event in read_events(path) if event.decided <= step]


def trim_lineage(path: Path, step: int) -> None:
    """Take out what a killed process wrote of decisions beyond its last checkpoint, at `step`."""
    events = read_events(path)
    kept = [event for event in events if event.decided <= step]
    if kept != events:
        write_events(path, kept)


def by_hand(events: Iterable[Event]) -> list[TrainEvent | SurgeryEvent]:
    """The trainings, growths and removals that somebody ordered: not those of trials."""
    return [event for event in events if isinstance(event, TrainEvent | SurgeryEvent) and event.trial is None]


def insertions(events: Iterable[Event]) -> list[GrowEvent]:
    """The growths that the model kept, oldest first."""
    return [event for event in events if isinstance(event, GrowEvent) and event.is_kept]


def steps_to_go(events: Iterable[Event], step: int, otherwise: int) -> int:
    """What is left at `step` of the latest training's plan; as many steps again where nothing is.

    `otherwise` is for a lineage that does not record them.
    """
    plans = [(event.step, event.steps) for event in events if isinstance(event, TrainEvent) and event.steps]
    begun, steps = plans[-1] if plans else (step, otherwise)
    left = begun + steps - step
    return left if left > 0 else steps


def used_ids(events: Iterable[Event]) -> frozenset[str]:
    """Block ids that some ancestor had, whether or not they are still there."""
    return frozenset(name for event in events if event.is_kept for name in event.ids if BLOCK_ID.fullmatch(name))


def own_events(events: Iterable[Event]) -> list[Event]:
    """The events since the latest `train`: what a run decided itself.

    Raises:
        InvalidInputError: a decision says less than the run needs to go on.
    """
    own: list[Event] = []
    for event in events:
        own = [] if isinstance(event, TrainEvent) else [*own, event]
    for event in own:
        for key in event.needed_to_go_on:
            missing = getattr(event, key) is None and key in ("growth", "until", "trial", "pair_lr")
            if missing or key not in event.model_fields_set:
                raise InvalidInputError(
                    f"growth.jsonl: the {event.event} of step {event.step} has no {key!r}, expected one; "
                    "restore the file from a copy of the run"
                )
    return own


def growth_entries(events: Iterable[Event]) -> list[dict[str, Any]]:
    """One entry for each growth and removal, that of a trial with its decision and, as `verdict`, the figures of it."""
    listed = list(events)
    decisions = {(event.step, event.trial): event.document() for event in listed if isinstance(event, DecisionEvent)}
    entries = []
    for event in listed:
        if isinstance(event, SurgeryEvent):
            entry = {"decision": None, **event.document()}
            decided = decisions.get((event.step, event.trial))
            if decided is not None:
                verdict = {key: value for key, value in decided.items() if key not in entry and key != "retry"}
                verdict |= {key: decided[key] for key in ("loss_before", "loss_after") if key in decided}
                entry |= {"retry": decided.get("retry"), "verdict": verdict}
            entries.append(entry)
    return entries
