"""Comparisons that run models: trial and twin on the validation batches, and all runs on the test split, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppdgrow.checkpoint import append_jsonl, read_jsonl
from ppdgrow.comparison.history import RunHistory
from ppdgrow.config.requests import CompareRequest
from ppdgrow.config.state import Validation
from ppdgrow.console import Narrator
from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.errors import InvalidInputError, StorageError
from ppdgrow.training.acceptance import PairedDifference, paired_difference
from ppdgrow.training.context import (
    Parent,
    Setting,
    changed_data,
    checkpoint_setting,
    chosen_precision,
    load_parent,
    say_stored_type,
)


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


def evaluate_on_test(
    runs: Sequence[RunHistory], request: CompareRequest, narrator: Narrator
) -> tuple[list[Validation], list[str]]:
    """The figures of every run on the whole test split, and warnings about the data.

    The split is read once per checkpoint: its figures are kept in the run's `test.jsonl`.

    Raises:
        ConfigError, InvalidInputError, DivergedError: as `difference_to_twin`.
    """
    first = load_parent(runs[0].checkpoint, optimizer=False)
    setting = _setting(first, request)
    batches = setting.evaluation("test", whole=True)
    examples, name = sum(len(batch.targets) for batch in batches), setting.dataset.config.name
    digest = setting.dataset.identity(0).sha256["test"]
    narrator.say(f"evaluating {len(runs)} runs on all {examples:,} examples of the test split of {name}")
    figures: list[Validation] = []
    unwritten: list[StorageError] = []
    with narrator.progress(len(runs), "test split") as bar:
        for number, run in enumerate(runs, start=1):
            model = load_parent(run.checkpoint, optimizer=False)
            say_stored_type(model.checkpoint, model.folder, narrator)
            own = replace(setting, precision=chosen_precision(model, request.precision))
            key: dict[str, Any] = {"checkpoint_sha256": model.digest, "test_sha256": digest, "precision": own.precision}
            key |= {"examples": examples}
            path = model.run.test_path
            found = _recorded(path, key)
            if found is None:
                found = own.figures(own.evaluate_checkpoint(model.checkpoint, batches), "test")
                try:
                    append_jsonl(path, [{**key, "figures": found.model_dump()}])
                except StorageError as error:
                    unwritten.append(error)
            figures.append(found)
            bar.update(number, loss=figures[-1].loss)
    if unwritten:
        some = f"{len(unwritten)} of {len(figures)} runs"
        narrator.warn(f"the reading of the test split is not recorded in {some}: {unwritten[0]}")
    return figures, changed_data(setting.dataset, first.checkpoint.state, runs[0].name)


def _setting(model: Parent, request: CompareRequest) -> Setting:
    device, precision = request.device or "auto", request.precision
    return checkpoint_setting(model, device=device, precision=precision, data_dir=request.data_dir)


def _recorded(path: Path, key: Mapping[str, Any]) -> Validation | None:
    """The figures of an earlier reading: of a checkpoint on a test split, by the digests of both, in one precision."""
    for line in read_jsonl(path):
        if all(line.get(name) == value for name, value in key.items()):
            try:
                return Validation.model_validate(line.get("figures"))
            except ValidationError as error:
                raise InvalidInputError(
                    f"{str(path)!r}: {error.errors()[0]['msg']}; remove the file to read the test split again"
                ) from None
    return None
