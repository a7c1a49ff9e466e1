"""`train`: a run folder from a recipe, from scratch, on from a checkpoint, or on from where it stopped."""

from __future__ import annotations

import json
import shutil
from typing import Any

from ppdgrow.atomic import write_file
from ppdgrow.checkpoint import append_jsonl, read_config, read_jsonl, read_state
from ppdgrow.config.load import dump, recipe_hash
from ppdgrow.config.state import Ledger
from ppdgrow.console import Narrator, format_count, format_flops, format_seconds
from ppdgrow.engine.device import describe_environment, resolve_device, set_deterministic
from ppdgrow.engine.signals import stop_flag
from ppdgrow.errors import DivergedError, InvalidInputError
from ppdgrow.growth.progressive import ProgressiveRun
from ppdgrow.growth.rules import CAUTION
from ppdgrow.growth.timeline import ledger_line
from ppdgrow.provenance import provenance
from ppdgrow.training.context import RunContext
from ppdgrow.training.model_card import model_card
from ppdgrow.training.output_folder import is_occupied
from ppdgrow.training.preparation import Job, Prepared, TrainRequest, check_length, plan_run, prepare
from ppdgrow.training.recipe import LENGTH, RENEWED
from ppdgrow.training.recorder import train_document
from ppdgrow.training.start import Start, resume, warn_of_lost_lines

__all__ = ["TrainRequest", "train"]


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
            warn_of_lost_lines(
                job.run, job.last, first=job.first, evaluated=True, config=job.recipe.train, narrator=narrator
            )
        except InvalidInputError as error:  # nothing is to be done any more that needs the log
            narrator.warn(str(error))
        narrator.say(f"already finished: step {job.last} is in {job.run.path}")
        return train_document(job.run, job.finished)
    with narrator.status(f"reading {job.recipe.data.name}"):
        prepared = prepare(job, device, narrator)  # until here a signal simply ends the command: nothing has begun
    job, setting = prepared.job, prepared.setting
    with stop_flag() as stop:
        context = RunContext(
            setting=setting,
            schedule=prepared.schedule,
            environment=describe_environment(
                device,
                setting.precision,
                deterministic=request.deterministic,
                accumulate=job.recipe.train.accumulate,
            ),
            evaluation=prepared.evaluation,
            stop=stop,
            narrator=narrator,
            first=job.first,
        )
        if not is_occupied(job.run):
            _create_folder(job, prepared.start)
        with job.run.lock():
            return _train(job, context, prepared)


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
    event = {
        "event": "train",
        "step": start.step,
        "steps": job.recipe.train.steps,
        "parent": None if job.parent is None else job.parent.folder.as_posix(),
        "parent_sha256": None if job.parent is None else job.parent.digest,
        "recipe": recipe_hash(job.recipe),
        "seed": job.recipe.train.seed,
        "provenance": provenance(),
    }
    with job.run.create() as fresh:
        write_file(fresh.recipe_path, dump(job.resolved))
        append_jsonl(fresh.metrics_path, [] if job.parent is None else job.parent.metrics())
        append_jsonl(fresh.growth_path, [*([] if job.parent is None else job.parent.lineage()), event])


def _train(job: Job, context: RunContext, prepared: Prepared) -> dict[str, Any]:
    fresh = prepared.start
    if job.recorded is not None:
        changes = check_length(job)  # again: until the lock was taken another process may have trained on
        if changes:
            context.narrator.say(f"the run goes on with another length ({'; '.join(changes)}), the same up to here")
        _update_record(job, renewed=bool(changes))
    start = resume(context, job.run, fresh)
    progressive = ProgressiveRun(context, job.run, prepared.growth_schedule, fresh.architecture.num_layers)
    try:
        ledger = progressive.finish(start, prepared.model if start is fresh else None)
    except DivergedError as error:
        if error.step is not None:
            append_jsonl(job.run.growth_path, [{"event": "diverged", "step": error.step, "until": error.step + 1}])
        raise
    return _finish(job, progressive, ledger)


def _update_record(job: Job, *, renewed: bool) -> None:
    """Length, place of the data, microbatches and number of checkpoints may be new; the rest of the record stays."""
    events = read_jsonl(job.run.growth_path)
    number = max(number for number, event in enumerate(events) if event.get("event") == "train")
    steps = job.recipe.train.steps
    if renewed or events[number].get("steps") != steps:  # a kill may come between this file and the next
        events[number] |= {"steps": steps, "recipe": recipe_hash(job.recipe)}
        write_file(job.run.growth_path, "".join(json.dumps(event) + "\n" for event in events))
    path = job.run.recipe_path
    leaves = tuple(f"  {key.partition('.')[2]}: " for key in (*RENEWED, *LENGTH))
    new = {line.partition(":")[0]: line for line in dump(job.resolved).splitlines() if line.startswith(leaves)}
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = []
    for line in lines:
        other = new.get(line.partition(":")[0], line)
        changed.append(line if _value(other) == _value(line) else other)
    if changed != lines:
        write_file(path, "\n".join(changed) + "\n")


def _value(line: str) -> str:
    return line.partition("  #")[0].rstrip()


def _finish(job: Job, progressive: ProgressiveRun, ledger: Ledger) -> dict[str, Any]:
    run, say = job.run, progressive.context.narrator.say
    folder = run.checkpoint_path(job.last)
    state = read_state(folder)
    _write_card(job)
    if progressive.growth_schedule.entries:
        for line in (*progressive.picture(job.last), ledger_line(state.ledger), CAUTION):
            say(line)
    figures = state.validation
    if figures is not None:
        extra = f" (perplexity {figures.perplexity:.1f})" if figures.perplexity is not None else ""
        say(
            f"step {job.last}  val loss {figures.loss:.4f}{extra}, accuracy {figures.accuracy:.4f}  "
            f"{format_count(ledger.tokens)} tokens  {format_flops(ledger.flops)}  {format_seconds(ledger.seconds)}"
        )
    if state.lr_factor == 1.0:
        say("the learning rate is at its peak: go on from here, or decay it before comparing")
    return train_document(run, folder)


def _write_card(job: Job) -> None:
    run, folder = job.run, job.run.checkpoint_path(job.last)
    lineage, recipe = read_jsonl(run.growth_path), run.recipe_path.read_text(encoding="utf-8")
    write_file(run.card_path, model_card(run.path.name, read_config(folder), read_state(folder), lineage, recipe))
