"""`compare`: one request, the histories of its runs, what they cost and reached against a baseline, a verdict.

Or with `accept` whether a trial is kept, by the parent rule or the twin rule. Nothing is printed but progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ppdgrow.comparison.arms import name_histories, read_arms
from ppdgrow.comparison.column import Column, Layout
from ppdgrow.comparison.columns import columns
from ppdgrow.comparison.comparability import (
    check_evaluated,
    check_trial,
    check_twin,
    warnings_about,
    warnings_of_trial,
    warnings_of_twin,
)
from ppdgrow.comparison.criteria import ONE_SEED, Criterion, Verdict, rule_criteria, success_criteria, verdict_of
from ppdgrow.comparison.document import arm_documents, run_documents
from ppdgrow.comparison.evaluation import difference_to_twin, evaluate_arms
from ppdgrow.comparison.front import Pays
from ppdgrow.comparison.history import RunHistory, read_history
from ppdgrow.comparison.identity import refuse_incomparable
from ppdgrow.comparison.measures import ComparedArm, ComparedRun, several_seeds
from ppdgrow.comparison.pretrained import models_before
from ppdgrow.config.growth import TrialConfig
from ppdgrow.config.requests import CompareRequest
from ppdgrow.config.state import Cost
from ppdgrow.console import Narrator
from ppdgrow.console.picture import SUFFIXES, check_file, check_matplotlib
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.training.acceptance import Decision

HTML = ".html"
PAGES = (HTML, ".md")

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

ON_ADVICE = ", or evaluate both on one with --on DATA"
ON_NOTE = (
    "on DATA: on its validation split, as many examples as each run's recipe takes of its own, coded by its own "
    "tokenizer; it decides nothing"
)


@dataclass(frozen=True)
class Comparison:
    """Arms, baseline first, and what is judged of them.

    With `accept` the arms are parent, trial and twin, `decision` is that of the rule that decides, and `costs` is what
    trial and twin cost since the parent (None: no twin, or not known).
    """

    arms: tuple[ComparedArm, ...]
    criteria: tuple[Criterion, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    decision: Decision | None = None
    costs: Mapping[str, Cost | None] = field(default_factory=dict)

    @property
    def baseline(self) -> ComparedArm:
        return self.arms[0]

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def grown(self) -> list[ComparedArm]:
        """The arms that were grown, or tried to grow, and are held against the baseline."""
        return [arm for arm in self.arms if arm.pay_off is not None]

    @property
    def deciding(self) -> list[Criterion]:
        """The criteria of the grown arms, beside which others are controls; of all arms where none was grown."""
        names = {arm.name for arm in self.grown or self.arms}
        return [criterion for criterion in self.criteria if criterion.run in names]

    @property
    def verdict(self) -> Verdict | None:
        """That of the rule that decides; else of the criteria of the grown arms; None where nothing can be judged."""
        if self.decision is not None:
            return "accept" if self.decision.accepted else "reject"
        return _verdict(self.deciding, self.runs)

    @property
    def pays(self) -> Pays:
        """Whether growing paid: of several grown arms, whether all of them did."""
        found = {arm.pay_off.pays for arm in self.grown if arm.pay_off is not None}
        return "no" if "no" in found else "yes" if found == {"yes"} else "not judged"

    @property
    def compute_gain(self) -> float | None:
        """Of the grown arm, or the least of several; None where one is not known."""
        gains = [arm.pay_off.compute_gain for arm in self.grown if arm.pay_off is not None]
        known = [gain.mean for gain in gains if gain is not None]
        return min(known) if known and len(known) == len(gains) else None

    def verdict_on(self, arm: ComparedArm) -> Verdict | None:
        """The verdict on one arm by its own criteria; None for the baseline, and where nothing can be judged."""
        own = [criterion for criterion in self.criteria if criterion.run == arm.name]
        return None if arm.is_baseline else _verdict(own, arm.runs)

    def columns(self, layout: Layout) -> list[Column]:
        ungrown = [arm for arm in self.arms if arm.pay_off is None and not arm.first.history.is_folder]
        controls = {arm.name: "control" for arm in ungrown if self.grown}
        verdicts = {arm.name: self.verdict_on(arm) or "not judged" for arm in self.arms} | controls
        verdicts[self.baseline.name] = "baseline"
        found = columns(self.arms, verdicts if self.decision is None else None)
        return [column for column in found if column.layouts & layout]

    def document(self) -> dict[str, Any]:
        """The JSON of `compare` (DESIGN section 4)."""
        decision = None
        if self.decision is not None:
            costs = {name: cost and cost.model_dump() for name, cost in self.costs.items()}
            decision = {**self.decision.document(), "cost": costs}
        return {
            "schema": 1,
            "baseline": self.baseline.name,
            "arms": arm_documents(self.arms, {arm.name: self.verdict_on(arm) for arm in self.arms}),
            "runs": run_documents(self.arms),
            "criteria": [asdict(criterion) for criterion in self.criteria],
            "decision": decision,
            "verdict": self.verdict,
            "pays": self.pays,
            "compute_gain": self.compute_gain,
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }


def _verdict(criteria: Sequence[Criterion], runs: Sequence[ComparedRun]) -> Verdict | None:
    """`accept` iff a criterion was judged and all that were passed.

    None where none was and there is a folder of Transformers, which was not trained here, with no ungrown control.
    """
    judged = any(criterion.passed is not None for criterion in criteria)
    return None if not judged and any(run.beside_folder for run in runs) else verdict_of(criteria)


def compare(request: CompareRequest, narrator: Narrator) -> Comparison:
    """Compare or decide, as asked.

    Raises:
        ConfigError: runs that are not comparable, a twin that is none, or files that could not be written.
        StorageError: an output file could not be written.
        InvalidInputError, DivergedError: as `compare_runs` and `decide`.
    """
    if request.accept:
        return decide(request, narrator)
    _check_files(request)
    comparison = compare_runs(request.paths, models_before(request, narrator), on_other_data=bool(request.on))
    if not request.test and not request.on:
        return comparison
    arms, warnings = evaluate_arms(comparison.arms, request, narrator)
    notes = (*comparison.notes, *([ON_NOTE] if request.on else []))
    return replace(comparison, arms=arms, warnings=(*comparison.warnings, *warnings), notes=notes)


def _check_files(request: CompareRequest) -> None:
    """Refuse, before any work, files that could not be written."""
    paths = [*([] if request.plot is None else [request.plot]), *request.report]
    if len({path.resolve() for path in paths}) < len(paths):
        raise ConfigError(f"one file is named twice among {', '.join(repr(str(path)) for path in paths)}")
    if request.plot is not None:
        check_file(request.plot, "--plot", SUFFIXES)
        check_matplotlib("--plot")
    for path in request.report:
        check_file(path, "--report", PAGES)
    if any(path.suffix.lower() == HTML for path in request.report):
        check_matplotlib("--report FILE.html")


def compare_runs(
    paths: Sequence[Path], known: Mapping[Path, RunHistory] = MappingProxyType({}), *, on_other_data: bool = False
) -> Comparison:
    """Hold every arm against the first one: of run folders, checkpoints in them, or folders of runs.

    `known` are the histories of paths that are no runs. If all are then evaluated `on_other_data`, an arm may have been
    trained on data that is not the baseline's.

    Raises:
        ConfigError: too few paths, or runs whose losses are not comparable.
        InvalidInputError: a path is no run, its files are broken, or it was never evaluated.
    """
    if len(paths) < 2:
        raise ConfigError(
            f"found {len(paths)} path{'' if len(paths) == 1 else 's'}, expected a baseline and at least one other run "
            "(or folder of runs) to compare"
        )
    arms, warnings = read_arms(paths, known)
    if len(arms) < 2:
        raise InvalidInputError(f"nothing is left to compare with {arms[0].name!r}: {'; '.join(warnings)}")
    histories = [history for arm in arms for history in arm.histories]
    for arm in arms:
        refuse_incomparable(histories[0], arm.first.history, on_other_data=on_other_data, advice=ON_ADVICE)
        for other in arm.histories[1:]:
            refuse_incomparable(arm.first.history, other)
    baseline = arms[0]
    compared = (baseline, *(arm.against(baseline).judged_beside(histories) for arm in arms[1:]))
    criteria = tuple(criterion for arm in compared[1:] for criterion in success_criteria(baseline, arm))
    return Comparison(compared, criteria, (*warnings, *warnings_about(compared)), _notes(compared))


def _notes(arms: Sequence[ComparedArm]) -> tuple[str, ...]:
    figures = [run.equal for arm in arms for run in arm.runs if run.equal is not None]
    paired = any(len(arm.pairs) > 1 for arm in arms[1:])
    holds = {
        INTERVAL_NOTE: paired,
        COMPARABLE_NOTE: paired,
        ONE_SEED: not several_seeds(arms),
        EQUAL_BUDGET_NOTE: any(equal.flops or equal.seconds for equal in figures),
        TRIALS_NOTE: any(arm.has_trials for arm in arms),
    }
    return tuple(note for note, true in holds.items() if true)


def decide(request: CompareRequest, narrator: Narrator) -> Comparison:
    """Hold a trial against its parent and, if one is given, its twin.

    Raises:
        ConfigError: runs whose losses are not comparable, or a twin that is none.
        InvalidInputError: a path is no run, its files are broken, or it was not evaluated at its step.
        DivergedError: the loss of trial or twin is not finite.
    """
    given = [*request.paths, *([] if request.twin is None else [request.twin])]
    known = models_before(request, narrator)
    histories = name_histories([known[path] if path in known else read_history(path) for path in given])
    parent, trial = histories[:2]
    twin = None if request.twin is None else histories[2]
    for other in histories[1:]:
        refuse_incomparable(parent, other)
    for history in histories:
        check_evaluated(history)
    check_trial(parent, trial)
    warnings = [*warnings_of_trial(parent, trial)]
    difference = None
    if twin is not None:
        check_twin(parent, trial, twin)
        difference, changed = difference_to_twin(trial, twin, request, narrator)
        warnings += [*warnings_of_twin(parent, trial, twin), *changed]
    defaults = TrialConfig()
    decision = Decision(
        rule=request.rule or ("parent" if twin is None else "twin"),
        loss_before=parent.final.validation.loss,
        loss_after=trial.final.validation.loss,
        epsilon=defaults.epsilon if request.epsilon is None else float(request.epsilon),
        twin=difference,
        margin=defaults.margin if request.margin is None else float(request.margin),
    )
    notes = (decision.rules[0].caution, "" if difference is None else difference.scope, ONE_SEED)
    return Comparison(
        arms=tuple(ComparedArm(history.name, (ComparedRun(history, parent),)) for history in histories),
        criteria=tuple(rule_criteria(decision, parent, trial, twin)),
        warnings=tuple(warnings),
        notes=tuple(note for note in notes if note),
        decision=decision,
        costs={"trial": _cost(parent, trial), "twin": None if twin is None else _cost(parent, twin)},
    )


def _cost(parent: RunHistory, child: RunHistory) -> Cost | None:
    """What a run cost since the parent; None where it cost less than the parent, so does not descend from it."""
    before, after = parent.state.ledger, child.state.ledger
    return None if after.tokens < before.tokens or after.flops < before.flops else after.since(before)
