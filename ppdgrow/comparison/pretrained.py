"""A folder of Transformers beside the runs that trained it: the model before, evaluated on their validation batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ppdgrow.checkpoint import RunFolder, locate_checkpoint, read_config
from ppdgrow.checkpoint.events import read_events
from ppdgrow.comparison.arms import read_arms
from ppdgrow.comparison.history import Evaluated, Metrics, RunHistory
from ppdgrow.config.architecture import PretrainedArchitecture
from ppdgrow.config.requests import CompareRequest
from ppdgrow.console import Narrator
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.recognition import is_pretrained


def models_before(request: CompareRequest, narrator: Narrator) -> Mapping[Path, RunHistory]:
    """The histories of the folders among the paths of a request, as of runs without a step.

    Raises:
        ConfigError: no run beside them trained a model of Transformers.
        InvalidInputError: a folder or a run is damaged.
    """
    folders = [path for path in request.paths if is_pretrained(path)]
    if not folders:
        return {}
    run = next((found for path in request.paths if path not in folders and (found := _trained(path))), None)
    if run is None and len(folders) < len(request.paths):
        read_arms([path for path in request.paths if path not in folders])  # what is wrong with one of these is said
    if run is None:
        raise ConfigError(
            f"{str(folders[0])!r} is a folder of Transformers, which has no loss of its own: give a run beside it that "
            "ppdgrow train made of such a folder, whose validation batches it is evaluated on"
        )
    return {path: _evaluated(path, run, request, narrator) for path in folders}


def _trained(path: Path) -> Path | None:
    """The checkpoint of a run, or of the first of a folder of runs, that trained a model of Transformers."""
    try:
        runs = [path, *sorted(entry for entry in path.iterdir() if entry.is_dir())] if path.is_dir() else []
        for run in runs:
            if RunFolder(run).checkpoints() or run.parent.name == "checkpoints":
                _, checkpoint = locate_checkpoint(run)
                if isinstance(read_config(checkpoint), PretrainedArchitecture):
                    return checkpoint
    except (OSError, InvalidInputError):
        pass  # what is wrong is said where the run is read
    return None


def _evaluated(path: Path, run: Path, request: CompareRequest, narrator: Narrator) -> RunHistory:
    """A folder on the validation batches of a run, read by the folder's own tokenizer."""
    from ppdgrow.engine.device import resolve_device
    from ppdgrow.training.context import Setting, chosen_precision, load_parent, open_data
    from ppdgrow.training.models import completed

    beside = load_parent(run, optimizer=False)
    model = load_parent(path, task=beside.checkpoint.architecture.task)
    recipe = beside.recipe
    data = recipe.data.model_copy(update={"tokenizer": model.recipe.data.tokenizer})
    if request.data_dir is not None:
        data = data.model_copy(update={"directory": str(request.data_dir)})
    recipe = recipe.model_copy(update={"data": data})
    dataset = open_data(recipe, model, narrator.now)
    device, precision = resolve_device(request.device or "auto"), chosen_precision(beside, request.precision)
    setting = Setting(device, precision, dataset, recipe)
    narrator.say(f"evaluating {path.as_posix()} on the validation batches of {beside.run.path.as_posix()}")
    ready = completed(model.checkpoint, recipe)
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
        recipe=recipe,
        metrics=Metrics(np.array([], dtype=np.int64), empty, empty, empty, (Evaluated(0, figures, 0.0, 0.0),)),
        events=tuple(read_events(RunFolder(path).growth_path)),
    )
