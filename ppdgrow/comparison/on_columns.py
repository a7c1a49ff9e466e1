"""Columns of the figures on other data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ppdgrow.comparison.arms import one_line
from ppdgrow.comparison.column import FEW, MANY, RUNS, Column, Layout, mean_column
from ppdgrow.comparison.figures import with_interval
from ppdgrow.comparison.measures import ComparedArm, ComparedRun
from ppdgrow.statistics import Estimate

EVERYWHERE = FEW | MANY | RUNS | Layout.ON
OF_PAGE = RUNS | Layout.ON


def data_labels(names: Sequence[str]) -> dict[str, str]:
    """What data sets are called in tables, by what they were called: the last part of a path where that is enough."""
    short = [one_line(Path(name).name or name) for name in names]
    return {name: one if short.count(one) == 1 else one_line(name) for name, one in zip(names, short, strict=True)}


def columns_on(runs: Sequence[ComparedRun]) -> Iterator[Column]:
    """Those of every data set on which these runs were evaluated."""
    for data, label in data_labels([*runs[0].on]).items():
        yield from _columns_on(runs, data, label)


def _columns_on(runs: Sequence[ComparedRun], data: str, label: str) -> Iterator[Column]:
    """Where tokenizers differ, bits per byte, which compare all the same, stand in every table."""

    def of(key: str, factor: float = 1.0) -> Callable[[ComparedRun], float | None]:
        def value(run: ComparedRun) -> float | None:
            found: float | None = getattr(run.on[data].figures, key)
            return None if found is None else factor * found

        return value

    def against(name: str, value: Callable[[ComparedArm, str], Estimate | None]) -> Column:
        show = partial(with_interval, digits=4)
        return Column(f"{name} against baseline", lambda arm: value(arm, data), show, EVERYWHERE)

    def known(key: str) -> bool:
        return any(of(key)(run) is not None for run in runs)

    yield mean_column(f"on {label}", of("loss"), 4, layouts=EVERYWHERE)
    yield against(f"on {label}", ComparedArm.loss_difference_on)
    yield mean_column(f"accuracy on {label}", of("accuracy", 100.0), 2, " %", FEW | OF_PAGE)
    yield mean_column(f"perplexity on {label}", of("perplexity"), 2, layouts=OF_PAGE).only(known("perplexity"))
    if known("bits_per_byte"):
        apart = not all(run.on[data].same_tokens for run in runs)
        bits = f"bits per byte on {label}"
        yield mean_column(bits, of("bits_per_byte"), 4, layouts=EVERYWHERE if apart else OF_PAGE)
        yield against(bits, ComparedArm.bits_difference_on).only(apart)
