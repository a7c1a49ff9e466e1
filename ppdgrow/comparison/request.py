"""What a user asks of `compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdgrow.config.growth import Rule
from ppdgrow.errors import ConfigError


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

    def __post_init__(self) -> None:
        """Refuse what would do nothing or cannot be decided.

        Raises:
            ConfigError: so it is.
        """
        decision = {
            "--epsilon": self.epsilon,
            "--twin": self.twin,
            "--margin": self.margin,
            "--rule": self.rule,
        }
        evaluation = {"--device": self.device, "--precision": self.precision, "--data-dir": self.data_dir}
        if not self.accept:
            _refuse_without("--accept", decision)
            if not self.test:
                _refuse_without("--test", evaluation)
            return
        given = _given({"--plot": self.plot, "--report": self.report or None, "--test": self.test or None})
        if given:
            raise ConfigError(
                f"found {given} with --accept, which decides between two runs and draws nothing: leave one of them out"
            )
        if len(self.paths) != 2:
            raise ConfigError(
                f"--accept decides between two runs, PARENT and TRIAL, found {len(self.paths)}: give these two"
            )
        for flag, value in (("--epsilon", self.epsilon), ("--margin", self.margin)):
            if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
                raise ConfigError(f"{flag} is {value!r}, expected a finite number of nats, such as 0.01")
        if self.twin is None and self.rule == "twin":
            raise ConfigError(
                "--rule twin found no twin to compare the trial with: add --twin RUN, or use --rule parent"
            )
        if self.twin is None:
            _refuse_without("--twin RUN", {"--margin": self.margin, **evaluation})


def _given(flags: Mapping[str, Any]) -> str:
    return " and ".join(flag for flag, value in flags.items() if value is not None)


def _refuse_without(needed: str, flags: Mapping[str, Any]) -> None:
    """Refuse flags that would do nothing without another one."""
    given = _given(flags)
    if given:
        raise ConfigError(
            f"found {given} without {needed}, where it would do nothing: add {needed}, or leave out {given}"
        )
