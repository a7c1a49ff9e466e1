"""Comparisons that run models: where they are evaluated, and all runs on the test split, once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ppdgrow.config.state import Validation
from ppdgrow.console import Narrator
from ppdgrow.experiment.comparison.compare import Comparison
from ppdgrow.experiment.setting import (
    Parent,
    Setting,
    changed_splits,
    checkpoint_setting,
    chosen_precision,
    load_parent,
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

    Raises:
        ConfigError, InvalidInputError: the device or the data is not there, or a checkpoint is broken.
        DivergedError: a loss is not finite.
    """
    first = load_parent(comparison.runs[0].history.checkpoint, optimizer=False)
    setting = options.setting(first)
    batches = setting.whole("test")
    examples, name = sum(len(batch.targets) for batch in batches), setting.dataset.config.name
    narrator.say(f"evaluating {len(comparison.runs)} runs on all {examples:,} examples of the test split of {name}")
    figures: list[Validation] = []
    with narrator.progress(len(comparison.runs), "test split") as bar:
        for number, run in enumerate(comparison.runs, start=1):
            model = load_parent(run.history.checkpoint, optimizer=False)
            own = replace(setting, precision=chosen_precision(model, options.precision))
            figures.append(own.figures(own.evaluate_checkpoint(model.checkpoint, batches), "test"))
            bar.update(number, loss=figures[-1].loss)
    tested = iter(figures)
    arms = tuple(
        replace(arm, runs=tuple(replace(run, test=next(tested)) for run in arm.runs)) for arm in comparison.arms
    )
    changed = (
        f"the {split} split of {name} is not the one that {comparison.runs[0].name} was trained with (another Python "
        "or another copy?)"
        for split in changed_splits(setting.dataset, first.checkpoint.state)
    )
    return replace(comparison, arms=arms, warnings=(*comparison.warnings, *changed))
