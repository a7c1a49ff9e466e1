"""Which runs may be held against each other, and what to doubt where they may."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ppdgrow.config.architecture import TokenInput, VectorInput
from ppdgrow.config.schema import flatten
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.experiment.comparison.history import RunHistory, join_seeds

# A schedule that decays ends far below this share of its peak, unless the run has but a handful of steps.
DECAYED_BELOW = 0.1
ENVIRONMENT = ("device", "threads", "precision", "cpu_capability", "torch")


def refuse_incomparable(baseline: RunHistory, other: RunHistory) -> None:
    """Both losses must be of the same examples, cut and coded in the same way.

    Raises:
        ConfigError: they are not; the message names every difference.
    """
    ours, theirs = _identity(baseline), _identity(other)
    differing = [
        f"{key}: {_short(ours[key])} and {_short(theirs[key])}"
        for key in ours
        if key in theirs and ours[key] != theirs[key]
    ]
    if differing:
        raise ConfigError(
            f"cannot compare {baseline.name!r} with {other.name!r}, whose losses are not of the same examples "
            f"({'; '.join(differing)}): give runs on the same data, tokenizer, sequence length and task"
        )


def _identity(history: RunHistory) -> dict[str, Any]:
    """What decides which examples a loss is of; a key that one run lacks is not compared."""
    data, spec = history.state.data, history.architecture.input
    identity: dict[str, Any] = {
        "data": data.name,
        "task": history.architecture.task,
        "tokenizer": data.tokenizer,
        "sequence length": data.sequence_length,
        "validation examples": data.validation_examples,
    }
    identity |= {f"sha256 of the {split} split": digest for split, digest in data.sha256.items()}
    if isinstance(spec, TokenInput):
        identity["vocabulary size"] = spec.vocabulary_size
    elif isinstance(spec, VectorInput):
        identity["features"] = spec.features
        identity["classes"] = spec.num_classes
    else:
        identity["image size"] = f"{spec.channels}x{spec.height}x{spec.width}"
        identity["classes"] = spec.num_classes
    if history.recipe is not None and history.architecture.task == "mlm":
        identity["data.mask_fraction"] = history.recipe.data.mask_fraction
    return identity


def _short(value: Any) -> str:
    return f"{value[:12]}.." if isinstance(value, str) and len(value) == 64 else repr(value)


def doubts_of(history: RunHistory) -> Iterator[str]:
    """What to know about one run before its figures are believed."""
    state, name = history.state, history.name
    for reason in history.skipped:
        yield f"{name}: skipped a damaged checkpoint: {reason}"
    if history.step < history.planned_step:
        yield f"{name} is unfinished: step {history.step:,} of {history.planned_step:,}"
    if history.untrained:
        yield f"{name} was not trained since it was grown at step {history.step:,}: train it first"
    if state.lr_factor > DECAYED_BELOW:
        yield (
            f"the learning rate of {name} is not decayed: it ends at {state.lr_factor:.2g} of its peak, so its "
            "last loss is not its best"
        )
    if history.final.step < history.step:
        yield f"{name} was last evaluated at step {history.final.step:,}, its checkpoint is at step {history.step:,}"
    if int(history.metrics.steps[-1]) < history.step:
        yield (
            f"the metrics of {name} end at step {int(history.metrics.steps[-1]):,}, its checkpoint is at step "
            f"{history.step:,}: spikes in between are not counted"
        )
    if history.recipe is None:
        yield f"the recipe of {name} cannot be read: its batch size is not known"


def doubts_between(baseline: RunHistory, other: RunHistory) -> Iterator[str]:
    """What to know before two comparable runs are held against each other."""
    ours, theirs = baseline.state.environment.model_dump(), other.state.environment.model_dump()
    differing = [f"{key} {ours[key]} and {theirs[key]}" for key in ENVIRONMENT if ours[key] != theirs[key]]
    pair = f"{baseline.name} and {other.name}"
    if differing:
        yield f"{pair} ran in different environments ({', '.join(differing)}): do not compare their wall-clock"
    if baseline.seeds and other.seeds and baseline.seeds != other.seeds:
        yield f"{pair} have different seeds ({join_seeds([baseline])} and {join_seeds([other])})"
    if baseline.recipe is not None and other.recipe is not None:
        sizes = (baseline.recipe.train.batch_size, other.recipe.train.batch_size)
        if sizes[0] != sizes[1]:
            yield f"{pair} have different batch sizes ({sizes[0]} and {sizes[1]}): equal steps are not equal data"


def recipe_differences(one: RunHistory, other: RunHistory, free: Collection[str]) -> list[tuple[str, Any, Any]]:
    """Recipe keys that are not free and differ, with both values; nothing where a recipe is not known."""
    if one.recipe is None or other.recipe is None:
        return []
    ours, theirs = flatten(one.recipe.model_dump()), flatten(other.recipe.model_dump())
    return [(key, ours[key], theirs[key]) for key in ours if key not in free and ours[key] != theirs[key]]


def check_evaluated(histories: Sequence[RunHistory]) -> None:
    """A decision needs the losses of the very checkpoints that it is about.

    Raises:
        InvalidInputError: a checkpoint was not evaluated at its own step.
    """
    for history in histories:
        if history.final.step != history.step:
            raise InvalidInputError(
                f"{str(history.checkpoint)!r} is at step {history.step}, but was last evaluated at step "
                f"{history.final.step}, and a decision needs its own loss: finish the run with ppdgrow train"
            )


def check_trial(parent: RunHistory, trial: RunHistory) -> None:
    """There is something to decide: the trial has new blocks, and was trained with them.

    Raises:
        ConfigError: it has none, or was not.
    """
    ours, theirs = ({block.id for block in history.architecture.blocks} for history in (parent, trial))
    if theirs <= ours:
        raise ConfigError(
            f"{trial.name!r} has no block that {parent.name!r} has not, so there is no growth to decide on: give the "
            "parent and its grown and trained child, PARENT TRIAL"
        )
    if trial.step <= parent.step:
        raise ConfigError(
            f"{trial.name!r} was not trained beyond {parent.name!r} (steps {trial.step:,} and {parent.step:,}): train "
            "it for the trial's budget with ppdgrow train"
        )


def doubts_of_trial(parent: RunHistory, trial: RunHistory) -> Iterator[str]:
    """What to know before a decision on the trial is believed."""
    if not trial.descends_from(parent):
        yield f"the lineage of {trial.name} does not show that it descends from this checkpoint of {parent.name}"
