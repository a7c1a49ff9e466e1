"""What the lines of `metrics.jsonl` hold, as far as some reader counts on it: checked where they are read, for all.

Keys that no reader uses are left alone.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

Line = Mapping[str, Any]
LARGEST_STEP = 2**62
METRICS_FIGURES = ("lr", "grad_norm", "grad_norm_new", "flops", "tokens")


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
}
