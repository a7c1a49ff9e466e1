"""On what runs are evaluated beside their own validation batches: the test split, or other data."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from ppdgrow.checkpoint import RunFolder
from ppdgrow.comparison.arms import one_line
from ppdgrow.comparison.history import RunHistory
from ppdgrow.comparison.identity import are_comparable
from ppdgrow.comparison.measures import ComparedRun, FiguresOn
from ppdgrow.config.kinds import PRETRAINED
from ppdgrow.config.requests import CompareRequest
from ppdgrow.config.schema import DataConfig, Recipe
from ppdgrow.config.state import Validation
from ppdgrow.console import Narrator
from ppdgrow.data import Batch, Dataset, Split, canonical_name
from ppdgrow.engine.device import resolve_device
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.training.context import Parent, Setting, changed_data, chosen_precision, load_parent, open_data

# Keys that say how the files of one data set are read, which says nothing about those of another one.
READING = ("encoding", "text_column", "image_column", "label_column", "skip_broken")


@dataclass(frozen=True)
class Examples:
    """Those on which one run is evaluated, and the setting in which that is done."""

    setting: Setting
    split: Split
    batches: list[Batch]

    @property
    def dataset(self) -> Dataset:
        return self.setting.dataset

    @property
    def where(self) -> str:
        return f"the {self.split} split of {self.dataset.config.name}"

    @cached_property
    def count(self) -> int:
        return sum(len(batch.targets) for batch in self.batches)

    @property
    def sha256(self) -> str:
        """Of the split's content before tokenisation."""
        return self.dataset.identity(0).sha256[self.split]

    @property
    def cut(self) -> dict[str, Any]:
        """How the recipe cuts them, where it has a say."""
        recipe = self.setting.recipe
        masked = recipe.data.mask_fraction if recipe.model.task == "mlm" else None
        found = {"sequence_length": self.dataset.sequence_length, "mask_fraction": masked}
        return {key: value for key, value in found.items() if value is not None}

    def are(self, others: Examples) -> bool:
        """Whether both are cut alike from the same content; other tokens of it may be fewer."""
        same = (self.sha256, self.cut) == (others.sha256, others.cut)
        return same and (self.count == others.count or not self.same_tokens(others))

    def same_tokens(self, others: Examples) -> bool:
        one, other = self.dataset, others.dataset
        if (one.tokenizer_spec or "").startswith(f"{PRETRAINED}:"):
            return one.tokenizer_spec == other.tokenizer_spec  # which has the tokenizer's digest
        return one.tokenizer_json == other.tokenizer_json

    def doubt(self, others: Examples, baseline: str) -> str | None:
        """Why losses on these and on those of the baseline do not compare; None where they do."""
        if not self.are(others):
            counts = f"{self.count:,} and {others.count:,}"
            return f"other examples of {self.where} than {baseline} ({counts}): losses on it do not compare"
        if not self.same_tokens(others):
            bits = "" if self.dataset.bytes_per_token(self.split) is None else ", bits per byte do"
            return f"another tokenizer than that of {baseline}: losses are per token and do not compare{bits}"
        return None


class Reading(NamedTuple):
    """A run's figures on its examples."""

    examples: Examples
    figures: Validation


class Source(ABC):
    """Where the examples come from; each run has them cut by its own recipe and coded by its own tokenizer."""

    split: ClassVar[Split]
    whole: ClassVar[bool]  # whether all of the split, or as many examples as the recipe says

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called in messages."""

    @abstractmethod
    def log(self, run: RunFolder) -> Path:
        """Where a run keeps its figures."""

    def key(self, examples: Examples) -> dict[str, Any]:
        """What decides the figures of a checkpoint, which itself fixes the tokenizer."""
        precision = examples.setting.precision
        return {f"{self.split}_sha256": examples.sha256, "precision": precision, "examples": examples.count}

    @property
    def named(self) -> dict[str, str]:
        """What the log says of the source for people."""
        return {}

    @abstractmethod
    def data_of(self, run: RunHistory, recipe: Recipe, runs: Sequence[RunHistory]) -> DataConfig:
        """The data for a run with this recipe, among those that are compared."""

    def opened(self, recipe: Recipe, parent: Parent, narrator: Narrator) -> Dataset:
        """The data, once it is known to fit the checkpoint."""
        return open_data(recipe, parent, narrator.now)

    @contextmanager
    def fitting(self, run: RunHistory) -> Iterator[None]:
        """Say of an error what it has to do with the source."""
        yield

    @abstractmethod
    def warnings(self, runs: Sequence[RunHistory], examples: Sequence[Examples]) -> list[str]:
        """What to know of the data before the figures are believed."""

    @abstractmethod
    def told(self, run: ComparedRun, own: Reading, reference: Reading) -> ComparedRun:
        """The run with its figures."""

    def examples(self, runs: Sequence[RunHistory], request: CompareRequest, narrator: Narrator) -> list[Examples]:
        """Those of every run, read once for all runs that cut and code them alike.

        Raises:
            ConfigError, InvalidInputError: the device or the data is not there, or does not fit a run.
        """
        device = resolve_device(request.device or "auto")
        found: list[Examples] = []
        shared: dict[tuple[Any, ...], Examples] = {}
        for run in runs:
            parent = load_parent(run.checkpoint, optimizer=False, task=run.architecture.task)
            own = parent.recipe if run.recipe is None else run.recipe
            data = self.data_of(run, own, runs)
            if request.data_dir is not None:
                data = data.model_copy(update={"directory": str(request.data_dir)})
            recipe = own.model_copy(update={"data": data})
            precision = chosen_precision(run.state, request.precision)
            train, coding = recipe.train, (parent.checkpoint.architecture.input, parent.checkpoint.tokenizer)
            key = (data, recipe.model.task, *coding, train.batch_size, train.eval_batches, train.accumulate)
            if key not in shared:
                with self.fitting(run):
                    setting = Setting(device, precision, self.opened(recipe, parent, narrator), recipe)
                    batches = setting.evaluation(self.split, whole=self.whole)
                    shared[key] = Examples(setting, self.split, batches)
            examples = shared[key]
            found.append(replace(examples, setting=replace(examples.setting, precision=precision, recipe=recipe)))
        return found


@dataclass(frozen=True)
class TheTestSplit(Source):
    """All of the test split of a run's data, read where the first run on the same examples has it."""

    split: ClassVar[Split] = "test"
    whole: ClassVar[bool] = True
    title: ClassVar[str] = "the test split"

    def log(self, run: RunFolder) -> Path:
        return run.test_path

    def data_of(self, run: RunHistory, recipe: Recipe, runs: Sequence[RunHistory]) -> DataConfig:
        first = next(one for one in runs if are_comparable(one, run)).recipe
        return recipe.data if first is None else first.data

    def warnings(self, runs: Sequence[RunHistory], examples: Sequence[Examples]) -> list[str]:
        firsts = {id(next(one for one in runs if are_comparable(one, run))) for run in runs}
        read = [(run, own.dataset) for run, own in zip(runs, examples, strict=True) if id(run) in firsts]
        return [text for run, dataset in read for text in changed_data(dataset, run.state, run.name)]

    def told(self, run: ComparedRun, own: Reading, reference: Reading) -> ComparedRun:
        return replace(run, test=own.figures)


@dataclass(frozen=True)
class OtherData(Source):
    """The validation split of other data, which `name` is a `data.name` of: as much as a recipe takes of its own."""

    split: ClassVar[Split] = "validation"
    whole: ClassVar[bool] = False
    name: str

    @property
    def title(self) -> str:
        return one_line(self.name)

    def log(self, run: RunFolder) -> Path:
        return run.on_path

    def key(self, examples: Examples) -> dict[str, Any]:
        return super().key(examples) | examples.cut

    @property
    def named(self) -> dict[str, str]:
        return {"data": self.name}

    def data_of(self, run: RunHistory, recipe: Recipe, runs: Sequence[RunHistory]) -> DataConfig:
        """How its files are read is as one of the runs that was trained on it says, else guessed."""
        trained = (one.recipe.data for one in runs if one.recipe is not None)
        same = (data for data in trained if canonical_name(data.name) == canonical_name(self.name))
        reader = next(same, DataConfig())
        return recipe.data.model_copy(update={"name": self.name, **{key: getattr(reader, key) for key in READING}})

    def opened(self, recipe: Recipe, parent: Parent, narrator: Narrator) -> Dataset:
        dataset = super().opened(recipe, parent, narrator)
        figures = parent.checkpoint.state.validation
        trained = [*((None if figures is None else figures.class_accuracy) or {})]  # those that occur there
        names = dataset.class_names or ()
        if trained != [name for name in names if name in trained]:
            raise ConfigError(
                f"the data has the classes {', '.join(names)}, but the run was trained on {', '.join(trained)}: give "
                "data of the same classes"
            )
        return dataset

    @contextmanager
    def fitting(self, run: RunHistory) -> Iterator[None]:
        try:
            yield
        except (ConfigError, InvalidInputError) as error:
            text = re.sub(r"^data\.name\b", "--on", str(error))
            if isinstance(error, ConfigError) and text == str(error):
                text = f"{run.name!r} cannot be evaluated on {self.name!r}: {text}"
            raise type(error)(text) from None

    def warnings(self, runs: Sequence[RunHistory], examples: Sequence[Examples]) -> list[str]:
        return [f"{self.title}: {note}" for own in examples for note in own.dataset.warnings]

    def told(self, run: ComparedRun, own: Reading, reference: Reading) -> ComparedRun:
        examples, others = own.examples, reference.examples
        theirs = reference.figures if examples.are(others) else None
        figures = FiguresOn(own.figures, examples.count, examples.sha256, theirs, examples.same_tokens(others))
        return replace(run, on={**run.on, self.name: figures})
