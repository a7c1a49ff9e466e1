"""Comparisons that run models: where they are evaluated, and all runs on the test split, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ppdgrow.checkpoint import RunFolder, append_jsonl, read_jsonl
from ppdgrow.comparison.compare import Comparison
from ppdgrow.config.state import Validation
from ppdgrow.console import Narrator
from ppdgrow.engine.evaluate import BatchLike
from ppdgrow.errors import InvalidInputError, StorageError
from ppdgrow.training.context import (
    Parent,
    Setting,
    changed_data,
    checkpoint_setting,
    chosen_precision,
    load_parent,
    say_stored_type,
)


@dataclass(frozen=True)
class EvaluationOptions:
    """Where models are evaluated; None: as they were trained."""

    device: str | None = None
    precision: str | None = None
    data_dir: Path | None = None

    def setting(self, model: Parent) -> Setting:
        """The setting of a model with these options.

        Raises:
            ConfigError, InvalidInputError: the device or the data is not there.
        """
        return checkpoint_setting(model, device=self.device or "auto", precision=self.precision, data_dir=self.data_dir)


def with_test(comparison: Comparison, options: EvaluationOptions, narrator: Narrator) -> Comparison:
    """The same comparison with the figures of every run on the whole test split.

    The split is read once per checkpoint: its figures are kept in the run's `test.jsonl`.

    Raises:
        ConfigError, InvalidInputError: the device or the data is not there, or a checkpoint is broken.
        DivergedError: a loss is not finite.
    """
    first = load_parent(comparison.runs[0].history.checkpoint, optimizer=False)
    setting = options.setting(first)
    batches = setting.whole("test")
    examples, name = sum(len(batch.targets) for batch in batches), setting.dataset.config.name
    digest = setting.dataset.identity(0).sha256["test"]
    narrator.say(f"evaluating {len(comparison.runs)} runs on all {examples:,} examples of the test split of {name}")
    figures: list[Validation] = []
    unwritten: list[StorageError] = []
    with narrator.progress(len(comparison.runs), "test split") as bar:
        for number, run in enumerate(comparison.runs, start=1):
            model = load_parent(run.history.checkpoint, optimizer=False)
            say_stored_type(model.checkpoint, model.folder, narrator)
            own = replace(setting, precision=chosen_precision(model, options.precision))
            read = _Reading(model.run, model.digest, digest, own.precision, examples)
            figures.append(read.recorded() or read.record(own, model, batches, unwritten))
            bar.update(number, loss=figures[-1].loss)
    if unwritten:
        runs = f"{len(unwritten)} of {len(figures)} runs"
        narrator.warn(f"the reading of the test split is not recorded in {runs}: {unwritten[0]}")
    tested = iter(figures)
    arms = tuple(
        replace(arm, runs=tuple(replace(run, test=next(tested)) for run in arm.runs)) for arm in comparison.arms
    )
    changed = changed_data(setting.dataset, first.checkpoint.state, comparison.runs[0].name)
    return replace(comparison, arms=arms, warnings=(*comparison.warnings, *changed))


@dataclass(frozen=True)
class _Reading:
    """A checkpoint on a test split, by the digests of both; another precision is another reading."""

    run: RunFolder
    checkpoint_sha256: str
    test_sha256: str
    precision: str
    examples: int

    @property
    def _key(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "run"}

    def recorded(self) -> Validation | None:
        """The figures of an earlier reading.

        Raises:
            InvalidInputError: the record is broken.
        """
        for line in read_jsonl(self.run.test_path):
            if all(line.get(key) == value for key, value in self._key.items()):
                try:
                    return Validation.model_validate(line.get("figures"))
                except ValidationError as error:
                    raise InvalidInputError(
                        f"{str(self.run.test_path)!r}: {error.errors()[0]['msg']}; remove the file to read the test "
                        "split again"
                    ) from None
        return None

    def record(
        self, setting: Setting, model: Parent, batches: Sequence[BatchLike], unwritten: list[StorageError]
    ) -> Validation:
        """Evaluate, and keep the figures in the run; `unwritten` takes the error of one that cannot be written."""
        figures = setting.figures(setting.evaluate_checkpoint(model.checkpoint, batches), "test")
        try:
            append_jsonl(self.run.test_path, [{**self._key, "figures": figures.model_dump()}])
        except StorageError as error:
            unwritten.append(error)
        return figures
