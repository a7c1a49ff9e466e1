"""A folder of Transformers beside the runs that trained it: the model before, evaluated on their validation batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ppdgrow.checkpoint import RunFolder
from ppdgrow.checkpoint.events import read_events
from ppdgrow.comparison.arms import read_arms, runs_in
from ppdgrow.comparison.history import Evaluated, Metrics, RunHistory
from ppdgrow.config.requests import CompareRequest
from ppdgrow.console import Narrator
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.recognition import is_pretrained, pretrained_folder
from ppdgrow.training.context import checkpoint_setting, chosen_precision, load_parent
from ppdgrow.training.models import completed


def models_before(request: CompareRequest, narrator: Narrator) -> Mapping[Path, RunHistory]:
    """The histories of the folders among the paths of a request, as of runs without a step.

    Raises:
        ConfigError: no run beside them trained a model of Transformers.
        InvalidInputError: a folder or a run is damaged.
    """
    folders = [path for path in request.paths if is_pretrained(path)]
    if not folders:
        return {}
    runs = [path for path in request.paths if path not in folders]
    run = next((found for path in runs if (found := _trained(path))), None)
    if run is None:
        if runs:
            read_arms(runs)  # what is wrong with one of these is said
        raise ConfigError(
            f"{str(folders[0])!r} is a folder of Transformers, which has no loss of its own: give a run beside it that "
            "ppdgrow train made of such a folder, whose validation batches it is evaluated on"
        )
    return {path: _evaluated(path, run, request, narrator) for path in folders}


def _trained(path: Path) -> Path | None:
    """The checkpoint of a run, or of the first of a folder of runs, that trained a model of Transformers."""
    try:
        return next((found for run in runs_in(path) or [path] if (found := pretrained_folder(run))), None)
    except InvalidInputError:
        return None  # what is wrong is said where the run is read


def _evaluated(path: Path, run: Path, request: CompareRequest, narrator: Narrator) -> RunHistory:
    """A folder on the validation batches of a run, read by the folder's own tokenizer."""
    beside = load_parent(run, optimizer=False)
    model = load_parent(path, task=beside.checkpoint.architecture.task)
    resolved = beside.resolved.replace({"data.tokenizer": model.recipe.data.tokenizer}, "checkpoint")
    setting = checkpoint_setting(
        replace(model, resolved=resolved),
        device=request.device or "auto",
        precision=chosen_precision(beside.checkpoint.state, request.precision),
        data_dir=request.data_dir,
    )
    setting.dataset.report = narrator.now
    narrator.say(f"evaluating {path.as_posix()} on the validation batches of {beside.run.path.as_posix()}")
    ready = completed(model.checkpoint, setting.recipe)
    figures = setting.figures(setting.evaluate_checkpoint(ready, setting.validation))
    found = {"validation": figures, "data": setting.identity(), "environment": setting.environment}
    empty = np.array([], dtype=np.float64)
    return RunHistory(
        name=path.resolve().name,
        run=RunFolder(path),
        checkpoint=path,
        digest=model.digest,
        architecture=ready.architecture,
        state=ready.state.model_copy(update=found),
        recipe=setting.recipe,
        metrics=Metrics(np.array([], dtype=np.int64), empty, empty, empty, (Evaluated(0, figures, 0.0, 0.0),)),
        events=tuple(read_events(RunFolder(path).growth_path)),
    )
