"""`train`: a run folder from a recipe, from scratch, on from a checkpoint, or on from where it stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

from ppdgrow.atomic import write_file
from ppdgrow.checkpoint import append_jsonl, read_config, read_state
from ppdgrow.checkpoint.events import DivergedEvent, TrainEvent, append_events, read_events, write_events
from ppdgrow.config.load import dump, recipe_hash
from ppdgrow.config.requests import TrainRequest
from ppdgrow.console import Narrator, format_count, format_flops, format_seconds
from ppdgrow.engine.device import resolve_device, set_deterministic
from ppdgrow.engine.stop_flag import stop_flag
from ppdgrow.errors import DivergedError, InvalidInputError
from ppdgrow.growth.progressive import ProgressiveRun
from ppdgrow.growth.timeline import ledger_line
from ppdgrow.provenance import provenance
from ppdgrow.training.acceptance import CAUTION, RULES
from ppdgrow.training.context import RunContext
from ppdgrow.training.control import control_command
from ppdgrow.training.finished_run import model_card, train_document
from ppdgrow.training.output_folder import is_occupied
from ppdgrow.training.preparation import Job, Prepared, check_length, plan_run, prepare
from ppdgrow.training.recipe import LENGTH, RENEWED
from ppdgrow.training.resume import Start, lost_lines, resume, warn_of_lost_lines


def train(request: TrainRequest, narrator: Narrator) -> dict[str, Any]:
    """Train as asked and return the document of `train --json`.

    Raises:
        PPDGrowError: by its subclass, with the exit code of the command.
    """
    device = resolve_device(request.device)
    set_deterministic(request.deterministic)
    with narrator.status("looking for the run"):
        job = plan_run(request)
    if job.finished is not None:
        _tidy(job)
        try:
            lost = lost_lines(job.run, job.first, job.last, job.recipe.train, job.last)
            warn_of_lost_lines(job.run, job.last, lost, narrator)
        except InvalidInputError as error:  # nothing is to be done any more that needs the log
            narrator.warn(str(error))
        narrator.say(f"already finished: step {job.last} is in {job.run.path}")
        return train_document(job.run, job.finished)
    with narrator.status(f"reading {job.recipe.data.name}"):
        prepared = prepare(job, device, narrator)  # until here a signal simply ends the command: nothing has begun
    job = prepared.job
    with stop_flag() as stop:
        context = RunContext(prepared.setting, prepared.schedule, stop, narrator, job.first)
        if not is_occupied(job.run.path):
            _create_folder(job, prepared.start)
        with job.run.lock():
            if job.recorded is not None:
                _renew_record(job, narrator)
            run = _begin(job, context, prepared)
            job = replace(job, parent=None)
            del prepared  # with the parent's tensors and the first model, which a growth leaves behind
            _train_to_the_end(job, run)
            _write_card(job)
            _print_result(job, narrator)
            return train_document(job.run, job.run.checkpoint_path(job.last))


def _tidy(job: Job) -> None:
    """What a kill after the last checkpoint of a run left undone: trials that are decided, the card."""
    if job.run.card_path.is_file() and not job.run.trials_path.exists():
        return
    with job.run.lock():
        job.run.sweep()
        shutil.rmtree(job.run.trials_path, ignore_errors=True)
        _write_card(job)


def _create_folder(job: Job, start: Start) -> None:
    """The run folder with its recipe and its ancestors' record, at once or not at all."""
    parent = job.parent
    event = TrainEvent(
        step=start.step,
        steps=job.recipe.train.steps,
        parent=None if parent is None else parent.folder.as_posix(),
        parent_sha256=None if parent is None else parent.digest,
        recipe=recipe_hash(job.recipe),
        seed=job.recipe.train.seed,
        provenance=provenance(),
    )
    with job.run.create() as fresh:
        write_file(fresh.recipe_path, dump(job.resolved))
        append_jsonl(fresh.metrics_path, [] if parent is None else parent.metrics())
        append_events(fresh.growth_path, [*([] if parent is None else parent.lineage()), event])


def _renew_record(job: Job, narrator: Narrator) -> None:
    """Length, place of the data, microbatches and number of checkpoints may be new; the rest of the record stays."""
    changes = check_length(job)  # again: until the lock was taken another process may have trained on
    if changes:
        narrator.say(f"the run goes on with another length ({'; '.join(changes)}), the same up to here")
    events = read_events(job.run.growth_path)
    number = max(number for number, event in enumerate(events) if isinstance(event, TrainEvent))
    length = {"steps": job.recipe.train.steps, "recipe": recipe_hash(job.recipe)}
    # A kill may come between this file and the next.
    if changes or getattr(events[number], "steps", None) != job.recipe.train.steps:
        events[number] = events[number].model_copy(update=length)
        write_events(job.run.growth_path, events)
    path = job.run.recipe_path
    leaves = tuple(f"  {key.partition('.')[2]}: " for key in (*RENEWED, *LENGTH))
    renewed = {line.partition(":")[0]: line for line in dump(job.resolved).splitlines() if line.startswith(leaves)}
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = []
    for line in lines:
        other = renewed.get(line.partition(":")[0], line)
        changed.append(line if _without_comment(other) == _without_comment(line) else other)
    if changed != lines:
        write_file(path, "\n".join(changed) + "\n")


def _without_comment(line: str) -> str:
    return line.partition("  #")[0].rstrip()


def _begin(job: Job, context: RunContext, prepared: Prepared) -> ProgressiveRun:
    """From the newest checkpoint of the folder, or from the start."""
    start = resume(context, job.run, prepared.start)
    model = prepared.model if start is prepared.start else None
    run = ProgressiveRun(context, job.run, job.growth_schedule, prepared.start.architecture.num_layers)
    run.begin(start, model)
    return run


def _train_to_the_end(job: Job, run: ProgressiveRun) -> None:
    """With the growths of the schedule."""
    say = run.context.narrator.say
    try:
        run.finish()
    except DivergedError as error:
        if error.step is not None:
            append_events(job.run.growth_path, [DivergedEvent(step=error.step, until=error.step + 1)])
        raise
    if job.recipe.growth:
        for line in (*run.timeline(job.last), ledger_line(read_state(job.run.checkpoint_path(job.last)).ledger)):
            say(line)
        if any(RULES[entry.trial.rule].trains_twin for entry in job.recipe.growth):
            say(CAUTION)


def _print_result(job: Job, narrator: Narrator) -> None:
    state = read_state(job.run.checkpoint_path(job.last))
    figures, ledger = state.validation, state.ledger
    if figures is not None:
        extra = f" (perplexity {figures.perplexity:.1f})" if figures.perplexity is not None else ""
        narrator.say(
            f"step {job.last}  val loss {figures.loss:.4f}{extra}, accuracy {figures.accuracy:.4f}  "
            f"{format_count(ledger.tokens)} tokens  {format_flops(ledger.flops)}  {format_seconds(ledger.seconds)}"
        )
    if state.lr_factor == 1.0:
        narrator.say("the learning rate is at its peak: go on from here, or decay it before comparing")


def _write_card(job: Job) -> None:
    run, folder = job.run, job.run.checkpoint_path(job.last)
    lineage, recipe = read_events(run.growth_path), run.recipe_path.read_text(encoding="utf-8")
    architecture, state = read_config(folder), read_state(folder)
    control = control_command(run, architecture, state, lineage, job.recipe)
    write_file(run.card_path, model_card(run.path.name, architecture, state, lineage, recipe, control))
