"""What a user asks of `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdgrow.config.growth import Rule


@dataclass(frozen=True)
class CompareRequest:
    """The options of `compare`; None: not given.

    Attributes:
        paths: BASELINE and others, or with `accept` PARENT and TRIAL.
        accept: decide between two runs; `epsilon`, `twin`, `margin` and `rule` belong to this.
        epsilon: nats that the trial may lose against the parent; negative demands a gain.
        twin: the ungrown model, trained from PARENT on the same batches for the same budget.
        margin: nats that the trial may lose against the twin; negative demands a gain.
        rule: the one that decides; without it the twin rule where there is a twin.
        test: evaluate every run on the test split too.
        plot, report: pictures and pages, which the caller writes when it has shown the comparison.
        device, precision, data_dir: where models are evaluated, with `twin` and `test`; None: as they were trained.
    """

    paths: Sequence[Path]
    accept: bool = False
    epsilon: float | None = None
    twin: Path | None = None
    margin: float | None = None
    rule: Rule | None = None
    test: bool = False
    plot: Path | None = None
    report: Sequence[Path] = ()
    device: str | None = None
    precision: str | None = None
    data_dir: Path | None = None
