"""What to warn of before runs are held against each other, and which may be trial and twin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from ppdgrow.comparison.history import RunHistory, join_seeds
from ppdgrow.comparison.identity import DATA, differences
from ppdgrow.comparison.measures import ComparedArm, ComparedRun
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.schema import flatten
from ppdgrow.errors import ConfigError, InvalidInputError

# Of what decides which examples a loss is of: what a person knows it by.
SAID = (DATA, "tokenizer", "sequence length", "image size", "classes", "data.mask_fraction")
ENVIRONMENT = ("device", "threads", "precision", "cpu_capability", "torch")
# Recipe keys that may differ: the depth, what speaks of grown parameters alone, or changes no number of the training.
TWIN_FREE = frozenset({"model.layers", "train.only", "train.eval_every", "train.save_every", "train.keep"})
TWIN_FREE |= {"data.name", "data.directory"}
TWIN_FREE_PREFIX = "train.pair_"


def warnings_about(arms: Sequence[ComparedArm]) -> list[str]:
    """What to know before the arms are believed, the baseline first: of runs, of pairs, of seeds without a partner."""
    return said_once(_warnings(arms), arms)


def said_once(warnings: Iterable[tuple[ComparedRun, str]], arms: Sequence[ComparedArm]) -> list[str]:
    """Each warning once, with all runs that it is about."""
    about: dict[str, set[str]] = {}
    for run, warning in warnings:
        about.setdefault(warning, set()).add(run.name)
    return [f"{_together(runs, arms)}: {warning}" for warning, runs in about.items()]


def _warnings(arms: Sequence[ComparedArm]) -> Iterator[tuple[ComparedRun, str]]:
    """Each with the run that it is about."""
    baseline, *others = arms
    for arm in arms:
        for run in arm.runs:
            yield from ((run, warning) for warning in warnings_of(run.history))
    for arm in others:
        for run in arm.pairs:
            yield from ((run, warning) for warning in warnings_between(run.reference, run.history, baseline.name))
        of_arm = []
        unpaired = join_seeds(run.history for run in arm.runs if not run.paired)
        if unpaired:
            lacks = f"{baseline.name} has no run with seed {unpaired}"
            of_arm.append(f"{lacks}, which counts in means and not in paired differences")
        ours = {run.reference.seeds for run in arm.pairs}
        missing = join_seeds(history for history in baseline.histories if history.seeds not in ours)
        if missing and max(len(arm.runs), len(baseline.runs)) > 1:
            of_arm.append(f"no run with seed {missing} of {baseline.name}, so the means are over different seeds")
        yield from ((run, warning) for warning in of_arm for run in arm.runs)


def _together(some: set[str], arms: Sequence[ComparedArm]) -> str:
    """Runs as a person lists them: those of a whole arm by its name, and all of them as such."""
    whole = [arm.name for arm in arms if some.issuperset(run.name for run in arm.runs)]
    baseline, *others = (arm.name for arm in arms)
    if others and len(whole) == len(arms):
        return "all runs"
    if len(others) > 1 and whole == others and some.isdisjoint(run.name for run in arms[0].runs):
        return f"all but {baseline}"
    of_arm = [[arm.name] if arm.name in whole else [run.name for run in arm.runs if run.name in some] for arm in arms]
    return ", ".join(chain.from_iterable(of_arm))


def warnings_of(history: RunHistory) -> Iterator[str]:
    """What to know about one run before its figures are believed."""
    for reason in history.skipped:
        yield f"skipped a damaged checkpoint: {reason}"
    if history.cut_short is not None:
        yield history.cut_short
    elif history.untrained:
        yield f"not trained since it was grown at step {history.step:,}: train it first"
    elif not history.decayed and not history.is_folder:
        yield "the learning rate is not decayed at the end, so the last loss is not the best"
    checkpoint = f"the checkpoint is at step {history.step:,}"
    if history.final.step < history.step:
        yield f"last evaluated at step {history.final.step:,}, {checkpoint}"
    last = int(history.metrics.steps.max(initial=0))
    if last < history.step:
        yield f"the metrics end at step {last:,}, {checkpoint}: spikes in between are not counted"
    if history.recipe is None:
        yield "the recipe cannot be read: the batch size is not known"


def warnings_between(baseline: RunHistory, other: RunHistory, arm: str) -> Iterator[str]:
    """What to know of `other` before it is held against a run of the baseline, which is called `arm`."""
    if baseline.is_folder and not other.is_folder and not other.descends_from(baseline):
        yield f"not trained from {arm}, or that changed since: its lineage names another model"
    differing = [f"{key} {theirs}, not {ours}" for key, ours, theirs in environment_differences(baseline, other)]
    if differing:
        yield f"another environment than that of {arm} ({'; '.join(differing)}): do not compare their wall-clock"
    found = differences(baseline, other)
    if found:
        which = ", ".join(f"{key} {theirs}, not {ours}" for key, (ours, theirs) in found.items() if key in SAID)
        yield (
            f"its losses are of other examples than those of {arm}{f' ({which})' if which else ''}: only those on one "
            "and the same data compare"
        )
    adapted = bool(found) and other.descends_from(baseline)
    if baseline.seeds and other.seeds and baseline.seeds != other.seeds and not adapted:
        yield f"another seed than that of {arm} ({join_seeds([other])}, not {join_seeds([baseline])})"
    if baseline.recipe is not None and other.recipe is not None:
        ours, theirs = baseline.recipe.train.batch_size, other.recipe.train.batch_size
        if ours != theirs:
            yield f"another batch size than that of {arm} ({theirs}, not {ours}): equal steps are not equal data"


def environment_differences(one: RunHistory, other: RunHistory) -> list[tuple[str, Any, Any]]:
    """What differs of machine and versions, with both values."""
    ours, theirs = one.state.environment.model_dump(), other.state.environment.model_dump()
    return [(key, ours[key], theirs[key]) for key in ENVIRONMENT if ours[key] != theirs[key]]


def recipe_differences(one: RunHistory, other: RunHistory, free: Collection[str]) -> list[tuple[str, Any, Any]]:
    """Recipe keys that are not free and differ, with both values; nothing where a recipe is not known."""
    if one.recipe is None or other.recipe is None:
        return []
    ours, theirs = flatten(one.recipe.model_dump()), flatten(other.recipe.model_dump())
    return [(key, ours[key], theirs[key]) for key in ours if key not in free and ours[key] != theirs[key]]


def check_evaluated(history: RunHistory) -> None:
    """Raise an InvalidInputError unless the checkpoint was evaluated at its own step, which a decision needs."""
    if history.final.step != history.step:
        raise InvalidInputError(
            f"{str(history.checkpoint)!r} is at step {history.step}, but was last evaluated at step "
            f"{history.final.step}, and a decision needs its own loss: "
            + ("finish the run with ppdgrow train" if history.diverged is None else f"the run {history.cut_short}")
        )


def check_trial(parent: RunHistory, trial: RunHistory) -> None:
    """Raise a ConfigError unless the trial has new blocks, and was trained with them."""
    ours, theirs = ({block.id for block in history.architecture.blocks} for history in (parent, trial))
    if theirs <= ours:
        raise ConfigError(
            f"{trial.name!r} has the same blocks as {parent.name!r}, so there is no growth to decide on: give the "
            "parent and its grown and trained child, PARENT TRIAL"
        )
    if trial.step <= parent.step:
        raise ConfigError(
            f"{trial.name!r} was not trained beyond {parent.name!r} (steps {trial.step:,} and {parent.step:,}): train "
            "it for the trial's budget with ppdgrow train"
        )


def check_twin(parent: RunHistory, trial: RunHistory, twin: RunHistory) -> None:
    """Raise a ConfigError unless the twin is the model of the parent, trained as long as the trial."""
    found, expected = _shape(twin.architecture), _shape(parent.architecture)
    if found["blocks"] != expected["blocks"]:
        raise ConfigError(
            f"the twin {twin.name!r} has the blocks {found['blocks']}, but the parent {parent.name!r} has "
            f"{expected['blocks']}: a twin is not grown; give the run of ppdgrow train on the parent itself"
        )
    differing = [f"{key}: {found[key]!r} and {expected[key]!r}" for key in expected if found[key] != expected[key]]
    if differing:
        raise ConfigError(
            f"the twin {twin.name!r} is another model than the parent {parent.name!r} ({'; '.join(differing)}): "
            "give the run of ppdgrow train on the parent itself"
        )
    if twin.step != trial.step:
        raise ConfigError(
            f"the twin {twin.name!r} is at step {twin.step:,}, the trial {trial.name!r} at step {trial.step:,}: they "
            "were not trained for the same budget; give checkpoints of one and the same step"
        )


def _shape(architecture: Architecture) -> dict[str, Any]:
    """All that decides a model's tensors; that a tied pair is untied by training is no other model."""
    values = architecture.model_dump(exclude={"input", "task", "format"})
    return values | {"blocks": ", ".join(block.id for block in architecture.blocks)}


def warnings_of_trial(parent: RunHistory, trial: RunHistory) -> Iterator[str]:
    """What to know before a decision on the trial is believed."""
    yield from (f"{trial.name}: {warning}" for warning in warnings_between(parent, trial, parent.name))
    yield from _warn_of_descent(parent, trial)


def _warn_of_descent(parent: RunHistory, child: RunHistory) -> Iterator[str]:
    if not child.descends_from(parent):
        yield f"the lineage of {child.name} does not show that it descends from this checkpoint of {parent.name}"


def warnings_of_twin(parent: RunHistory, trial: RunHistory, twin: RunHistory) -> Iterator[str]:
    """What to know before the twin rule is believed."""
    yield from _warn_of_descent(parent, twin)
    recipe = recipe_differences(trial, twin, TWIN_FREE)
    differing = [f"{key}: {one} and {two}" for key, one, two in recipe if not key.startswith(TWIN_FREE_PREFIX)]
    if differing:
        yield (
            f"{trial.name} and its twin {twin.name} were not trained alike ({'; '.join(differing)}): their "
            "difference is not due to the growth alone"
        )
    apart = [f"{key} {ours} and {theirs}" for key, ours, theirs in environment_differences(trial, twin)]
    if apart:
        yield (
            f"{trial.name} and its twin {twin.name} were trained in different environments ({', '.join(apart)}): "
            "their difference includes differences in the last bits"
        )
