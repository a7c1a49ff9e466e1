"""Where training sets in: a new model, a checkpoint with its pairs untied, or the newest state of a stopped run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from ppdgrow.checkpoint import Checkpoint, RunFolder, lines_up_to, read_checkpoint, truncate_metrics
from ppdgrow.checkpoint.lineage import trim_lineage
from ppdgrow.config.architecture import Architecture, new_architecture
from ppdgrow.config.schema import Recipe, TrainConfig
from ppdgrow.config.state import Ledger, Validation
from ppdgrow.console import Narrator
from ppdgrow.data import Dataset
from ppdgrow.engine.loop import is_due
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.surgery import untie
from ppdgrow.training.context import Parent, RunContext, input_spec_of, refuse_changed_data, say_stored_type, task_of
from ppdgrow.training.models import completed

_SHOWN = 5  # stretches of lost steps in a warning


@dataclass(frozen=True)
class Start:
    """A model with its optimizer state and random streams, at a step, and what it cost so far.

    `validation` are the figures of that step, if the run evaluated it; `shards` are the files of its tensors, if any,
    and `files` further ones that belong to the model.
    """

    architecture: Architecture
    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]
    step: int
    lr_factor: float
    ledger: Ledger
    validation: Validation | None = None
    shards: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def first_start(parent: Parent | None, recipe: Recipe, dataset: Dataset) -> Start:
    """The start of a run that has no state of its own yet. Tied pairs of a parent are untied here."""
    if parent is None:
        architecture = new_architecture(recipe.model, task_of(recipe), input_spec_of(dataset, recipe.model))
        tensors = dict(initial_tensors(architecture, recipe.train.seed))
        return Start(architecture, tensors, {}, {}, 0, 0.0, Ledger())
    start = replace(start_from(completed(parent.checkpoint, recipe)), validation=None)
    return replace(start, moments={}) if recipe.train.reset_optimizer else start


def start_from(checkpoint: Checkpoint) -> Start:
    """The start that a checkpoint is, its tied pairs untied."""
    state = checkpoint.state
    architecture, tensors, moments = untie(checkpoint.architecture, checkpoint.tensors, checkpoint.moments)
    start = Start(architecture, tensors, moments, checkpoint.rng, state.step, state.lr_factor, state.ledger)
    return replace(start, validation=state.validation, shards=checkpoint.shards, files=checkpoint.files)


def newest_checkpoint(run: RunFolder, skipped: list[str]) -> Path | None:
    """The newest valid checkpoint of a run that is to go on, None if it has saved none yet (see `RunFolder`).

    Where it has some and none is intact, that is an error: they may be repaired, and are not overwritten.
    """
    newest = run.newest_valid(skipped)
    if newest is None and skipped:
        raise InvalidInputError(
            f"no checkpoint of {str(run.path)!r} is intact, so the run cannot go on; the newest: {skipped[0]}; or "
            "train in a new --out"
        )
    return newest


def resume(context: RunContext, run: RunFolder, start: Start) -> Start:
    """The newest valid checkpoint of a run, or of one of its arms, as a start; without one, `start`.

    Metrics and lineage are trimmed to it. Damage is said (checkpoints that are not whole, lost lines), and in what the
    environment differs.

    Raises:
        InvalidInputError: the data changed, or no checkpoint is intact.
    """
    run.sweep()
    first, narrator = start.step, context.narrator
    skipped: list[str] = []
    newest = newest_checkpoint(run, skipped)
    for reason in skipped:
        narrator.warn(f"skipped a damaged checkpoint: {reason}")
    if newest is not None:
        checkpoint = read_checkpoint(newest)
        say_stored_type(checkpoint, newest, narrator)
        old, new = checkpoint.state.environment.model_dump(), context.setting.environment.model_dump()
        differing = [f"{key} {old[key]} -> {new[key]}" for key in old if old[key] != new[key]]
        if differing:
            narrator.warn(f"the last bits may differ from an unbroken run: {', '.join(differing)}", once=True)
        refuse_changed_data(context.setting.dataset, checkpoint.state, run.path)
        start = start_from(checkpoint)
        if start.step > first:
            narrator.say(f"going on from step {start.step} of {context.last}")
    evaluated = start.step == first or start.validation is not None
    trim_lineage(run.growth_path, start.step)
    truncate_metrics(run.metrics_path, start.step, evaluated=evaluated)
    lost = lost_lines(run, first, start.step, context.recipe.train, context.last, evaluated=evaluated)
    warn_of_lost_lines(run, start.step, lost, narrator)
    return start


def warn_of_lost_lines(run: RunFolder, step: int, lost: Sequence[int], narrator: Narrator) -> None:
    """Say which lines of metrics a run has lost up to its checkpoint at `step`."""
    if lost:
        narrator.warn(
            f"{str(run.metrics_path)!r} has lost the {_in_words(lost)}, though the checkpoint of step {step} has them "
            "behind it: the weights are whole, the curves have a gap; restore the file from a copy of the run"
        )


def lost_lines(
    run: RunFolder, first: int, step: int, train: TrainConfig, last: int, *, evaluated: bool = True
) -> list[int]:
    """Steps after `first` whose lines a run up to `last` has lost; its checkpoint at `step` may not be evaluated."""
    lines = lines_up_to(run.metrics_path, step)
    trained = {line["step"] for line in lines if "train_loss" in line}
    known = {line["step"] for line in lines if "validation" in line} | (set() if evaluated else {step})
    steps = range(first + 1, step + 1)
    due = {number for number in steps if is_due(number, train.eval_every, last)}
    return sorted((set(steps) - trained) | (due - known))


def _in_words(steps: Sequence[int]) -> str:
    """Rising steps as `line of step 3` or `lines of steps 3 to 5, 9`; of many stretches only the first."""
    stretches: list[list[int]] = []
    for step in steps:
        if stretches and step == stretches[-1][-1] + 1:
            stretches[-1].append(step)
        else:
            stretches.append([step])
    shown = [f"{part[0]}" if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in stretches[:_SHOWN]]
    more = sum(map(len, stretches[_SHOWN:]))
    plural = "" if len(steps) == 1 else "s"
    return f"line{plural} of step{plural} {', '.join(shown)}{f' and {more} more' if more else ''}"
