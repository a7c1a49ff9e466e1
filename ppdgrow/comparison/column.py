"""A column: one figure, how it is got and shown, and where; and how figures are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, Generic, TypeVar

from ppdgrow.statistics import Estimate

NOTHING = "-"
Subject = TypeVar("Subject")


class Layout(Flag):
    """The tables in which a column stands; NONE: in the JSON alone."""

    NONE = 0
    FEW = auto()  # few arms beside each other, on a terminal
    MANY = auto()  # one row per arm, on a terminal and at the head of the page
    COSTS = auto()  # tables of the page
    EQUAL = auto()
    SIZE = auto()
    RUNS = auto()


FEW, MANY, SIZE, RUNS = Layout.FEW, Layout.MANY, Layout.SIZE, Layout.RUNS


@dataclass(frozen=True)
class Column(Generic[Subject]):
    """A figure: its name, how to get it, how to show it, where it is shown, and its key in the JSON of arms and runs.

    A value of None is shown as a dash.
    """

    name: str
    value: Callable[[Subject], Any]
    show: Callable[[Any], str] = str
    layouts: Layout = Layout.NONE
    arm_key: str = ""
    run_key: str = ""

    def only(self, condition: bool) -> Column[Subject]:
        """The column, in no table unless the condition holds."""
        return self if condition else replace(self, layouts=Layout.NONE)

    def cell(self, subject: Subject) -> str:
        value = self.value(subject)
        return NOTHING if value is None else self.show(value)


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


def exact(jump: float) -> str:
    """A change of the loss; nothing but zero is written 0."""
    return "0" if jump == 0 else f"{jump:.3g}"
