"""What the lines of a run's logs hold, as far as some reader counts on it: checked where they are read, for all.

Keys that no reader uses are left alone, and so are events that this version does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppdgrow.config.state import Count, Finite

Line = Mapping[str, Any]
KNOWN = ("train", "grow", "remove", "check", "decision", "twin", "skip")
_Names = Annotated[list[str], Field(max_length=2**17)]


class _AnyEvent(BaseModel):
    """A line of `growth.jsonl`, also of an event that is not known. `step` and `event` are always there."""

    model_config = ConfigDict(extra="ignore", strict=True)

    event: str
    step: Count
    until: Count | None = None
    trial: str | None = None
    decision: str | None = None
    ids: _Names = []


class _Event(_AnyEvent):
    """An event that is known."""

    growth: Annotated[int, Field(ge=1, le=2**31)] | None = None
    steps: Count | None = None
    parent: str | None = None
    parent_sha256: str | None = None
    method: str | None = None
    rule: str | None = None
    reason: str | None = None
    kinds: _Names = []
    positions: list[Count] = []
    layers_before: Count | None = None
    layers_after: Count | None = None
    loss_before: Finite | None = None
    loss_after: Finite | None = None
    pair_lr: Finite | None = None
    bit_exact: bool | None = None
    theta_sha256: dict[str, str] = {}


def check_event(line: Line, before: Line | None) -> str | None:
    """What is wrong with a line of `growth.jsonl`; None if nothing."""
    try:
        (_Event if line.get("event") in KNOWN else _AnyEvent).model_validate(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None
