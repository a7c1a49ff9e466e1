"""The twin of a trial: the ungrown model, trained on from the parent on the same batches for the same budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppdgrow.comparison.comparability import ENVIRONMENT, recipe_differences
from ppdgrow.comparison.evaluation import EvaluationOptions
from ppdgrow.comparison.history import RunHistory
from ppdgrow.config.architecture import Architecture
from ppdgrow.console import Narrator
from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.errors import ConfigError
from ppdgrow.training.acceptance import PairedDifference, paired_difference
from ppdgrow.training.context import changed_data, load_parent, say_stored_type

# Recipe keys that may differ: the depth, what speaks of grown parameters alone, or changes no number of the training.
FREE = frozenset({"model.layers", "train.only", "train.eval_every", "train.save_every", "train.keep"})
FREE |= {"data.name", "data.directory"}
FREE_PREFIX = "train.pair_"


def check_twin(parent: RunHistory, trial: RunHistory, twin: RunHistory) -> None:
    """The twin is the model of the parent, trained as long as the trial.

    Raises:
        ConfigError: it is another model, or at another step.
    """
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


def warnings_of_twin(parent: RunHistory, trial: RunHistory, twin: RunHistory) -> Iterator[str]:
    """What to know before the twin rule is believed."""
    if not twin.descends_from(parent):
        yield f"the lineage of {twin.name} does not show that it descends from this checkpoint of {parent.name}"
    differing = _differing_keys(trial, twin)
    if differing:
        yield (
            f"{trial.name} and its twin {twin.name} were not trained alike ({'; '.join(differing)}): their "
            "difference is not due to the growth alone"
        )
    ours, theirs = trial.state.environment.model_dump(), twin.state.environment.model_dump()
    apart = [f"{key} {ours[key]} and {theirs[key]}" for key in ENVIRONMENT if ours[key] != theirs[key]]
    if apart:
        yield (
            f"{trial.name} and its twin {twin.name} were trained in different environments ({', '.join(apart)}): "
            "their difference includes differences in the last bits"
        )


def _differing_keys(trial: RunHistory, twin: RunHistory) -> list[str]:
    """Recipe keys that decide the batches or the rate and differ, each with both values."""
    return [
        f"{key}: {ours} and {theirs}"
        for key, ours, theirs in recipe_differences(trial, twin, FREE)
        if not key.startswith(FREE_PREFIX)
    ]


def difference_to_twin(
    trial: RunHistory, twin: RunHistory, options: EvaluationOptions, narrator: Narrator
) -> tuple[PairedDifference, list[str]]:
    """Both models on the fixed validation batches of the trial, example by example.

    Returns:
        The paired difference, and what to know of the data.

    Raises:
        ConfigError, InvalidInputError: the device or the data is not there, or a checkpoint is broken.
        DivergedError: a loss is not finite.
    """
    model = load_parent(trial.checkpoint, optimizer=False)
    setting = options.setting(model)
    batches = setting.evaluation()
    narrator.say(
        f"evaluating {trial.name} and {twin.name} on {sum(len(batch.targets) for batch in batches):,} validation "
        f"examples of {setting.dataset.config.name} (device {setting.device.type}, {setting.precision})"
    )
    changed = changed_data(setting.dataset, model.checkpoint.state, trial.name)
    warnings = [f"{change}: the paired difference and the recorded losses do not compare" for change in changed]
    evaluations: list[Evaluation] = []
    for parent in (model, load_parent(twin.checkpoint, optimizer=False)):
        checkpoint = parent.checkpoint
        say_stored_type(checkpoint, parent.folder, narrator)
        evaluations.append(setting.evaluate_checkpoint(checkpoint, batches))
        setting.figures(evaluations[-1])  # a loss that is not finite has no interval
    grown, ungrown = evaluations
    return paired_difference(grown, ungrown), warnings
