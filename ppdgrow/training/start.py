"""Where training sets in: a new model, a checkpoint with its pairs untied, or the newest state of a stopped run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ppdgrow.checkpoint import Checkpoint, RunFolder, lines_up_to, read_checkpoint, truncate_jsonl
from ppdgrow.checkpoint.events import trim_lineage
from ppdgrow.config.architecture import Architecture, new_architecture
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import Environment, Ledger
from ppdgrow.console import Narrator
from ppdgrow.data import Dataset
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.optim.updates import update_that_keeps
from ppdgrow.surgery import untie
from ppdgrow.training.context import Parent, input_spec_of, refuse_changed_data, say_stored_type, task_of

_SHOWN = 5  # stretches of lost steps in a warning


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
    architecture, tensors, moments = untie(
        checkpoint.architecture, checkpoint.tensors, checkpoint.moments, update_that_keeps
    )
    return Start(architecture, tensors, moments, checkpoint.rng, state.step, state.lr_factor, state.ledger)


def newest_checkpoint(run: RunFolder, skipped: list[str]) -> Path | None:
    """The newest valid checkpoint of a run that is to go on, None if it has saved none yet.

    Args:
        run: the folder.
        skipped: takes the reasons why newer ones are passed over.

    Raises:
        InvalidInputError: it has checkpoints, and none is intact: they may be repaired, and are not overwritten.
    """
    newest = run.newest_valid(skipped)
    if newest is None and skipped:
        raise InvalidInputError(
            f"no checkpoint of {str(run.path)!r} is intact, so the run cannot go on; the newest: {skipped[0]}; or "
            "train in a new --out"
        )
    return newest


def resume(
    run: RunFolder,
    start: Start,
    *,
    first: int,
    last: int,
    eval_every: int,
    dataset: Dataset,
    environment: Environment,
    reported: set[Environment],
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
        reported: environments whose differences were said already; that of the checkpoint is added.
        narrator: for these, and for damage: checkpoints that are not whole, metrics that lost lines.

    Returns:
        The start (`start` itself if there is no checkpoint), and the metrics line of its step where an
        interrupted evaluation is still owed.

    Raises:
        InvalidInputError: the data changed, or no checkpoint is intact.
    """
    run.sweep()
    skipped: list[str] = []
    newest = newest_checkpoint(run, skipped)
    for reason in skipped:
        narrator.warn(f"skipped a damaged checkpoint: {reason}")
    evaluated = False
    if newest is not None:
        checkpoint = read_checkpoint(newest)
        say_stored_type(checkpoint, newest, narrator)
        state = checkpoint.state
        if state.environment not in reported:
            reported.add(state.environment)
            _note_environment(state.environment, environment, narrator)
        refuse_changed_data(dataset, state, run.path)
        start = start_from(checkpoint)
        evaluated = state.validation is not None
        if start.step > first:
            narrator.say(f"going on from step {state.step} of {last}")
    trim_lineage(run.growth_path, start.step)
    lines = _trim_metrics(run, start.step, first=first, narrator=narrator)
    due = start.step > first and (start.step % eval_every == 0 or start.step == last)
    line = lines.get(start.step) if due else None
    # A kill may come between the line and the checkpoint, so both must have the figures.
    return start, None if line is None or (evaluated and "validation" in line) else line


def _trim_metrics(run: RunFolder, step: int, *, first: int, narrator: Narrator) -> dict[int, dict[str, Any]]:
    """Cut the metrics to a step, say which lines of this run are lost, and return them by step."""
    truncate_jsonl(run.metrics_path, step)
    return warn_of_lost_lines(run, step, first=first, narrator=narrator)


def warn_of_lost_lines(run: RunFolder, step: int, *, first: int, narrator: Narrator) -> dict[int, dict[str, Any]]:
    """Say which lines of metrics a run has lost up to a checkpoint at `step`, and return those it has by step.

    Raises:
        InvalidInputError: a line is not valid or has no step.
    """
    lines = {line["step"]: line for line in lines_up_to(run.metrics_path, step)}
    lost = [number for number in range(first + 1, step + 1) if number not in lines]
    if lost:
        narrator.warn(
            f"{str(run.metrics_path)!r} has lost the {_in_words(lost)}, though the checkpoint of step {step} has them "
            "behind it: the weights are whole, the curves have a gap; restore the file from a copy of the run"
        )
    return lines


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


def _note_environment(then: Environment, now: Environment, narrator: Narrator) -> None:
    old, new = then.model_dump(), now.model_dump()
    differing = [f"{key} {old[key]} -> {new[key]}" for key in old if old[key] != new[key]]
    if differing:
        narrator.warn(f"the last bits may differ from an unbroken run: {', '.join(differing)}")
