"""What the lines of a run's logs hold, as far as some reader counts on it: checked where they are read, for all.

Keys that no reader uses are left alone, and so are events that this version does not know.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ppdgrow.config.state import Count, Finite

Line = Mapping[str, Any]
LARGEST_STEP = 2**62
METRICS_FIGURES = ("lr", "grad_norm", "grad_norm_new", "flops", "tokens")
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


def check_metrics(line: Line, before: Line | None) -> str | None:
    """What is wrong with a line of `metrics.jsonl` after the line before it; None if nothing."""
    step = line.get("step")
    if type(step) is not int or not 0 <= step < LARGEST_STEP:
        return f"step is {reprlib.repr(step)}, expected a whole number"
    if before is not None and step <= before["step"]:
        return f"step {step} follows step {before['step']}, expected rising steps"
    if not _is_finite(line.get("train_loss")):
        return f"train_loss is {reprlib.repr(line.get('train_loss'))}, expected a finite number"
    for key in METRICS_FIGURES:
        if line.get(key) is not None and not _is_finite(line[key]):
            return f"{key} is {reprlib.repr(line[key])}, expected a finite number"
    validation, timing = line.get("validation"), line.get("timing")
    for key, value in (("validation", validation), ("timing", timing)):
        if value is not None and not isinstance(value, dict):
            return f"{key} is {reprlib.repr(value)}, expected an object"
    if validation is not None and not _is_finite(validation.get("loss")):
        return f"validation.loss is {reprlib.repr(validation.get('loss'))}, expected a finite number"
    if timing is not None and timing.get("seconds") is not None and not _is_finite(timing["seconds"]):
        return f"timing.seconds is {reprlib.repr(timing['seconds'])}, expected a finite number"
    return None


def _is_finite(value: Any) -> bool:
    # type() and not isinstance(): True is no figure. A whole number may be too large for a float.
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) < 1 << 1000)


CHECKS: dict[str, Callable[[Line, Line | None], str | None]] = {
    "metrics.jsonl": check_metrics,
    "growth.jsonl": check_event,
}
