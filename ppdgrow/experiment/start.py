"""Where training sets in: a new model, a checkpoint with its pairs untied, or the newest state of a stopped run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ppdgrow.checkpoint import Checkpoint, RunFolder, read_checkpoint, read_jsonl, truncate_jsonl
from ppdgrow.config.architecture import Architecture, new_architecture
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import Environment, Ledger
from ppdgrow.console import Narrator
from ppdgrow.data import Dataset
from ppdgrow.experiment.lineage import trim_lineage
from ppdgrow.experiment.setting import Parent, input_spec_of, refuse_changed_data, task_of
from ppdgrow.nn.init import initial_tensors
from ppdgrow.surgery import untie


@dataclass(frozen=True)
class Start:
    """A model with its optimizer state and random streams, at a step, and what it cost so far."""

    architecture: Architecture
    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]
    step: int
    lr_factor: float
    ledger: Ledger


def first_start(parent: Parent | None, recipe: Recipe, dataset: Dataset) -> Start:
    """The start of a run that has no state of its own yet. Tied pairs of a parent are untied here."""
    if parent is None:
        architecture = new_architecture(recipe.model, task_of(recipe), input_spec_of(dataset, recipe.model))
        tensors = dict(initial_tensors(architecture, recipe.train.seed))
        return Start(architecture, tensors, {}, {}, 0, 0.0, Ledger())
    start = start_from(parent.checkpoint)
    return replace(start, moments={}) if recipe.train.reset_optimizer else start


def start_from(checkpoint: Checkpoint) -> Start:
    """The start that a checkpoint is, its tied pairs untied."""
    state = checkpoint.state
    architecture, tensors, moments = untie(checkpoint.architecture, checkpoint.tensors, checkpoint.moments)
    return Start(architecture, tensors, moments, checkpoint.rng, state.step, state.lr_factor, state.ledger)


def resume(
    run: RunFolder,
    start: Start,
    *,
    first: int,
    last: int,
    eval_every: int,
    dataset: Dataset,
    environment: Environment,
    narrator: Narrator,
) -> tuple[Start, dict[str, Any] | None]:
    """The newest valid checkpoint of a run as a start, if it has one; metrics and lineage are trimmed to it.

    Args:
        run: the folder.
        start: what to start from if it holds no checkpoint.
        first: the step before the run's first.
        last: the run's last step.
        eval_every: of the recipe.
        dataset: it must still be that of the checkpoint.
        environment: differences to that of the checkpoint are said.
        narrator: for these, and for damage.

    Returns:
        The start (`start` itself if there is no checkpoint), and the metrics line of its step where an
        interrupted evaluation is still owed.

    Raises:
        InvalidInputError: the data changed.
    """
    run.sweep()
    skipped: list[str] = []
    newest = run.newest_valid(skipped)
    for reason in skipped:
        narrator.warn(f"skipped a damaged checkpoint: {reason}")
    if newest is not None:
        checkpoint = read_checkpoint(newest)
        state = checkpoint.state
        _note_environment(state.environment, environment, narrator)
        refuse_changed_data(dataset, state, run.path)
        start = start_from(checkpoint)
        if start.step > first:
            narrator.say(f"going on from step {state.step} of {last}")
    trim_lineage(run.growth_path, start.step)
    return start, _trim_metrics(run, start.step, first=first, last=last, eval_every=eval_every)


def _trim_metrics(run: RunFolder, step: int, *, first: int, last: int, eval_every: int) -> dict[str, Any] | None:
    """Cut the metrics to a step; its line comes back, and out of the file, if its evaluation is still owed."""
    lines = [line for line in read_jsonl(run.metrics_path) if line["step"] == step]
    due = step > first and (step % eval_every == 0 or step == last)
    owed = lines[0] if due and lines and "validation" not in lines[0] else None
    truncate_jsonl(run.metrics_path, step if owed is None else step - 1)
    return owed


def _note_environment(then: Environment, now: Environment, narrator: Narrator) -> None:
    old, new = then.model_dump(), now.model_dump()
    differing = [f"{key} {old[key]} -> {new[key]}" for key in old if old[key] != new[key]]
    if differing:
        narrator.warn(f"the last bits may differ from an unbroken run: {', '.join(differing)}")
