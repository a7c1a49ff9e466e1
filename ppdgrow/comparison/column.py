"""What a column of a comparison is: a figure of an arm, how it is written, and the tables in which it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from functools import partial
from typing import Any

from ppdgrow.comparison.figures import NOTHING, with_deviation
from ppdgrow.comparison.measures import ComparedArm, ComparedRun
from ppdgrow.console.page import Table
from ppdgrow.statistics import estimate


class Layout(Flag):
    """The tables in which a column stands; NONE: in the JSON alone."""

    NONE = 0
    FEW = auto()  # few arms beside each other, on a terminal
    MANY = auto()  # one row per arm, on a terminal and at the head of the page
    COSTS = auto()  # tables of the page
    EQUAL = auto()
    PAYS = auto()
    ON = auto()
    SIZE = auto()
    RUNS = auto()


FEW, MANY, SIZE, RUNS = Layout.FEW, Layout.MANY, Layout.SIZE, Layout.RUNS


@dataclass(frozen=True)
class Column:
    """A figure: its name, how to get it, how to show it, where it is shown, and its key in the JSON of arms and runs.

    A value of None is shown as a dash.
    """

    name: str
    value: Callable[[ComparedArm], Any]
    show: Callable[[Any], str] = str
    layouts: Layout = Layout.NONE
    arm_key: str = ""
    run_key: str = ""

    def only(self, condition: bool) -> Column:
        """The column, in no table unless the condition holds."""
        return self if condition else replace(self, layouts=Layout.NONE)

    def cell(self, arm: ComparedArm) -> str:
        value = self.value(arm)
        return NOTHING if value is None else self.show(value)


def mean_column(
    name: str,
    value: Callable[[ComparedRun], float | None],
    digits: int,
    unit: str = "",
    layouts: Layout = RUNS,
    arm_key: str = "",
    run_key: str = "",
) -> Column:
    """A figure of every run, with its deviation over the seeds."""
    show = partial(with_deviation, digits=digits, unit=unit)
    return Column(name, lambda arm: estimate([value(run) for run in arm.runs]), show, layouts, arm_key, run_key)


def arm_rows(arms: Sequence[ComparedArm], shown: Sequence[Column], names: Sequence[str] | None = None) -> Table:
    """A row for each arm, with a cell for each column."""
    named = zip(names or [arm.name for arm in arms], arms, strict=True)
    rows = tuple((name, *(column.cell(arm) for column in shown)) for name, arm in named)
    return Table(("arm", *(column.name for column in shown)), rows)
