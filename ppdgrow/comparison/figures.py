"""How a figure is written: a difference with its interval, a mean with its deviation, a compute gain."""

from __future__ import annotations

from ppdgrow.statistics import Estimate

NOTHING = "-"


def exact(jump: float) -> str:
    """A change of the loss; nothing but zero is written 0."""
    return "0" if jump == 0 else f"{jump:.3g}"


def interval(low: float | None, high: float | None, digits: int, sign: str = "+") -> str:
    """` [low, high]`, or nothing."""
    return "" if low is None or high is None else f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def with_interval(difference: Estimate, digits: int, unit: str = "") -> str:
    """The mean of a difference with its sign, and the 95 % interval where there are several values."""
    return f"{difference.mean:+.{digits}f}{interval(difference.low, difference.high, digits)}{unit}"


def with_deviation(found: Estimate, digits: int, unit: str = "") -> str:
    """The mean, and the standard deviation where there are several values."""
    deviation = "" if found.deviation is None else f" sd {found.deviation:.{digits}f}"
    return f"{found.mean:.{digits}f}{deviation}{unit}"


def format_gain(gain: Estimate) -> str:
    return f"{gain.mean:.2f}{interval(gain.low, gain.high, 2, '')}"
