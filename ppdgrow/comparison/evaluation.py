"""Comparisons that run models: trial and twin on the validation batches; all runs on the test split or on other data.

The figures of a checkpoint on the latter are recorded in its run folder, and are read from there the next time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppdgrow.checkpoint import append_jsonl, read_jsonl
from ppdgrow.comparison.comparability import said_once
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.measures import ComparedArm
from ppdgrow.comparison.sources import Examples, OtherData, Reading, Source, TheTestSplit
from ppdgrow.config.requests import CompareRequest
from ppdgrow.config.state import Validation
from ppdgrow.console import Narrator
from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.errors import DivergedError, InvalidInputError, StorageError
from ppdgrow.training.acceptance import PairedDifference, paired_difference
from ppdgrow.training.context import Parent, Setting, changed_data, checkpoint_setting, load_parent, say_stored_type
from ppdgrow.training.models import completed


def difference_to_twin(
    trial: RunHistory, twin: RunHistory, request: CompareRequest, narrator: Narrator
) -> tuple[PairedDifference, list[str]]:
    """Their paired difference on the fixed validation batches of the trial, and warnings about the data.

    Raises:
        ConfigError, InvalidInputError: the device or the data is not there, or a checkpoint is broken.
        DivergedError: a loss is not finite.
    """
    model = load_parent(trial.checkpoint, optimizer=False)
    setting = _setting(model, request)
    batches = setting.evaluation()
    narrator.say(
        f"evaluating {trial.name} and {twin.name} on {sum(len(batch.targets) for batch in batches):,} validation "
        f"examples of {setting.dataset.config.name} (device {setting.device.type}, {setting.precision})"
    )
    changed = changed_data(setting.dataset, model.checkpoint.state, trial.name)
    warnings = [f"{change}: the paired difference and the recorded losses do not compare" for change in changed]
    evaluations: list[Evaluation] = []
    for parent in (model, load_parent(twin.checkpoint, optimizer=False)):
        say_stored_type(parent.checkpoint, parent.folder, narrator)
        evaluations.append(setting.evaluate_checkpoint(parent.checkpoint, batches))
        setting.figures(evaluations[-1])  # a loss that is not finite has no interval
    grown, ungrown = evaluations
    return paired_difference(grown, ungrown), warnings


def evaluate_arms(
    arms: Sequence[ComparedArm], request: CompareRequest, narrator: Narrator
) -> tuple[tuple[ComparedArm, ...], list[str]]:
    """The arms with their figures on the test split and on other data, as far as these are asked for, and warnings.

    Each is read once per checkpoint: the figures are kept in the run's `test.jsonl` and `on.jsonl`.

    Raises:
        ConfigError, InvalidInputError: the device or the data is not there or does not fit a run, which is known before
            anything is evaluated; or a checkpoint is broken.
        DivergedError: a loss is not finite.
    """
    compared = [run for arm in arms for run in arm.runs]
    runs = [run.history for run in compared]
    places = {id(history): place for place, history in enumerate(runs)}
    references = [places[id(run.reference)] for run in compared]
    sources: list[Source] = [*([TheTestSplit()] if request.test else []), *map(OtherData, dict.fromkeys(request.on))]
    examples = [source.examples(runs, request, narrator) for source in sources]
    warnings: list[str] = []
    for source, own in zip(sources, examples, strict=True):
        read = [*map(Reading, own, _figures(source, runs, own, narrator))]
        beside = [read[reference] for reference in references]
        compared = [source.told(*one) for one in zip(compared, read, beside, strict=True)]
        doubts = [one.examples.doubt(other.examples, arms[0].name) for one, other in zip(read, beside, strict=True)]
        about = [(run, doubt) for run, doubt in zip(compared, doubts, strict=True) if doubt is not None]
        warnings += [*source.warnings(runs, own), *said_once(about, arms)]
    done = iter(compared)
    return tuple(replace(arm, runs=tuple(next(done) for _ in arm.runs)) for arm in arms), [*dict.fromkeys(warnings)]


def _figures(
    source: Source, runs: Sequence[RunHistory], examples: Sequence[Examples], narrator: Narrator
) -> list[Validation]:
    """The figures of every run, each on its own examples: as recorded, else now."""
    count = f"{'all ' if source.whole else ''}{examples[0].count:,}"
    narrator.say(f"evaluating {len(runs)} runs on {count} examples of {examples[0].where}")
    figures: list[Validation] = []
    unwritten: list[StorageError] = []
    with narrator.progress(len(runs), source.title) as bar:
        for number, (run, own) in enumerate(zip(runs, examples, strict=True), start=1):
            model = load_parent(run.checkpoint, optimizer=False, task=run.architecture.task)
            say_stored_type(model.checkpoint, model.folder, narrator)
            path, key = source.log(model.run), {"checkpoint_sha256": model.digest, **source.key(own)}
            found = _recorded(path, key)
            if found is None:
                found = _evaluate(run, model, own)
                try:
                    if not run.is_folder:  # which is only read
                        append_jsonl(path, [{**key, **source.named, "figures": found.model_dump()}])
                except StorageError as error:
                    unwritten.append(error)
            figures.append(found)
            bar.update(number, loss=found.loss)
    if unwritten:
        some = f"{len(unwritten)} of {len(figures)} runs"
        narrator.warn(f"the reading of {source.title} is not recorded in {some}: {unwritten[0]}")
    return figures


def _evaluate(run: RunHistory, model: Parent, examples: Examples) -> Validation:
    setting = examples.setting
    evaluation = setting.evaluate_checkpoint(completed(model.checkpoint, setting.recipe), examples.batches)
    try:
        return setting.figures(evaluation, examples.split)
    except DivergedError as error:
        raise DivergedError(f"{run.name!r} on {examples.where}: {error}") from None


def _setting(model: Parent, request: CompareRequest) -> Setting:
    device, precision = request.device or "auto", request.precision
    return checkpoint_setting(model, device=device, precision=precision, data_dir=request.data_dir)


def _recorded(path: Path, key: Mapping[str, Any]) -> Validation | None:
    """The figures of an earlier reading: of a checkpoint on a split, by the digests of both, in one precision."""
    for line in read_jsonl(path):
        if all(line.get(name) == value for name, value in key.items()):
            try:
                return Validation.model_validate(line.get("figures"))
            except ValidationError as error:
                raise InvalidInputError(
                    f"{str(path)!r}: {error.errors()[0]['msg']}; remove the file to evaluate again"
                ) from None
    return None
