"""`compare`: arms held against a baseline, with what each cost, and a verdict. Pure data; nothing is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ppdgrow.comparison.arms import Arm, read_arms
from ppdgrow.comparison.comparability import group_warnings, refuse_incomparable, warnings_between, warnings_of
from ppdgrow.comparison.criteria import ONE_SEED, Criterion, Verdict, success_criteria, verdict_of
from ppdgrow.comparison.curves import AXES, bands
from ppdgrow.comparison.figures import ComparedArm, ComparedRun, compared_arms
from ppdgrow.comparison.history import join_seeds
from ppdgrow.config.state import Cost
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.training.acceptance import Decision

EQUAL_BUDGET_NOTE = (
    "at equal FLOPs or wall-clock the run that costs more is read in mid-course, before its learning rate has "
    "decayed: train a baseline of that budget before you believe such a figure"
)

TRIALS_NOTE = (
    "FLOPs and wall-clock are those of the models themselves, also where two are held against each other at equal "
    "cost; what was spent on rejected trials and on twins is extra and has rows of its own. The cost to the "
    "baseline's final loss includes it"
)

COMPARABLE_NOTE = (
    "comparable: the interval includes the baseline or better; with few seeds that may only mean that they cannot tell"
)

INTERVAL_NOTE = (
    "[..]: 95 % interval of the mean paired difference over the seeds (Student's t); it covers the noise of seeds, not "
    "the choice of the validation examples"
)


@dataclass(frozen=True)
class Decided:
    """A decision on a trial, and what trial and twin cost since the parent (None: no twin, or not known)."""

    decision: Decision
    trial_cost: Cost | None
    twin_cost: Cost | None

    def document(self) -> dict[str, Any]:
        """The JSON of the decision."""
        costs = {"trial": self.trial_cost, "twin": self.twin_cost}
        plain = {name: None if cost is None else cost.model_dump() for name, cost in costs.items()}
        return {**self.decision.document(), "cost": plain}


@dataclass(frozen=True)
class Comparison:
    """Arms, baseline first. `decided` is set by `--accept` only: the arms are then parent, trial and twin."""

    arms: tuple[ComparedArm, ...]
    criteria: tuple[Criterion, ...]
    decided: Decided | None
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def baseline(self) -> ComparedArm:
        """The arm that the others are held against; with `--accept` the parent."""
        return self.arms[0]

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        """All runs, those of the baseline first."""
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def several_seeds(self) -> bool:
        """Whether some arm has more than one run."""
        return any(len(arm.runs) > 1 for arm in self.arms)

    @property
    def verdict(self) -> Verdict:
        """That of the rule that decides; else `accept` iff a criterion was judged and all that were passed."""
        if self.decided is not None:
            return "accept" if self.decided.decision.accepted else "reject"
        return verdict_of(self.criteria)

    def verdict_on(self, arm: ComparedArm) -> Verdict | None:
        """The verdict on one arm by its own criteria; None for the baseline."""
        own = [criterion for criterion in self.criteria if criterion.run == arm.name]
        return None if arm is self.baseline else verdict_of(own)

    def document(self) -> dict[str, Any]:
        """The JSON of `compare` (DESIGN section 4)."""
        curves = {axis: bands([[run.history for run in arm.runs] for arm in self.arms], axis) for axis in AXES}
        return {
            "schema": 1,
            "baseline": self.baseline.name,
            "arms": [
                arm.document()
                | {"verdict": self.verdict_on(arm), "curves": {axis: curves[axis][place].document() for axis in AXES}}
                for place, arm in enumerate(self.arms)
            ],
            "runs": [{**run.document(), "arm": arm.name} for arm in self.arms for run in arm.runs],
            "criteria": [asdict(criterion) for criterion in self.criteria],
            "decision": None if self.decided is None else self.decided.document(),
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def compare_runs(paths: Sequence[Path]) -> Comparison:
    """Hold every arm against the first one.

    Args:
        paths: run folders, checkpoints in them, or folders of runs; the baseline first.

    Raises:
        ConfigError: too few paths, or runs whose losses are not comparable.
        InvalidInputError: a path is no run, its files are broken, or it was never evaluated.
    """
    if len(paths) < 2:
        raise ConfigError(
            f"found {len(paths)} path{'' if len(paths) == 1 else 's'}, expected a baseline and at least one other run "
            "(or folder of runs) to compare"
        )
    arms, warnings = read_arms(paths)
    if len(arms) < 2:
        raise InvalidInputError(f"nothing is left to compare with {arms[0].name!r}: {'; '.join(warnings)}")
    refuse_others(arms)
    compared = compared_arms(arms)
    criteria = tuple(criterion for arm in compared[1:] for criterion in success_criteria(compared[0], arm))
    grouped = group_warnings(_warnings(compared), {arm.name: [run.name for run in arm.runs] for arm in compared})
    return Comparison(compared, criteria, None, (*warnings, *grouped), _notes(compared))


def refuse_others(arms: Sequence[Arm]) -> None:
    """Every run must be comparable with the first.

    Raises:
        ConfigError: one is not.
    """
    histories = [history for arm in arms for history in arm.histories]
    for other in histories[1:]:
        refuse_incomparable(histories[0], other)


def _warnings(arms: Sequence[ComparedArm]) -> Iterator[tuple[str, str]]:
    """What to know before the arms are believed: of each run, of each pair, and of seeds without a partner.

    Each with the name of the run that it is about.
    """
    baseline = arms[0].name
    for arm in arms:
        for run in arm.runs:
            for warning in warnings_of(run.history):
                yield run.name, warning
    for arm in arms[1:]:
        alone = [run for run in arm.runs if not run.paired]
        ours = {run.history.seeds for run in arm.runs}
        missing = [run for run in arms[0].runs if run.history.seeds not in ours]
        for run in arm.pairs:
            for warning in warnings_between(run.reference, run.history, baseline):
                yield run.name, warning
        if alone:
            seeds = join_seeds(run.history for run in alone)
            warning = f"{baseline} has no run with seed {seeds}, which counts in means and not in paired differences"
            yield from ((run.name, warning) for run in arm.runs)
        if missing and max(len(arm.runs), len(arms[0].runs)) > 1:
            seeds = join_seeds(run.history for run in missing)
            warning = f"no run with seed {seeds} of {baseline}, so the means are over different seeds"
            yield from ((run.name, warning) for run in arm.runs)


def _notes(arms: Sequence[ComparedArm]) -> tuple[str, ...]:
    runs = [run for arm in arms for run in arm.runs]
    budgets = any(run.equal is not None and (run.equal.flops or run.equal.seconds) for run in runs)
    trials = any(run.has_trials for run in runs)
    several = any(len(arm.runs) > 1 for arm in arms)
    paired = any(len(arm.pairs) > 1 for arm in arms[1:])
    seeds = (INTERVAL_NOTE, COMPARABLE_NOTE) if paired else () if several else (ONE_SEED,)
    return (*seeds, *((EQUAL_BUDGET_NOTE,) if budgets else ()), *((TRIALS_NOTE,) if trials else ()))
