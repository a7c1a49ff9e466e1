"""From a recipe's `data` to its data set: by name, else at a path."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ppdgrow.config.kinds import DATA_NAMES, Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.dataset import Dataset
from ppdgrow.data.local.files import survey
from ppdgrow.data.local.images import ImageColumn, ImageFolder
from ppdgrow.data.local.tables import Tables, image_columns
from ppdgrow.data.local.text import TextColumn, TextFiles
from ppdgrow.data.location import find
from ppdgrow.data.named import DATASETS
from ppdgrow.errors import ConfigError, InvalidInputError


def canonical_name(name: str) -> str:
    """The one spelling of a `data.name`: a path without `.`, `..` and doubled or closing slashes.

    A path that reads like a data set's name keeps a leading `./`.
    """
    if name in DATASETS or not name.strip():
        return name
    path = os.path.normpath(name)
    return f"./{path}" if path in DATASETS else path


def resolve_defaults(config: DataConfig) -> tuple[Task, str | None]:
    """The task and the tokenizer that a data set is meant for; of a path the files are listed, no data is read."""
    dataset = _opened(config)
    return dataset.task, dataset.default_tokenizer


def open_dataset(config: DataConfig, task: Task, tokenizer_json: str | None = None) -> Dataset:
    """The data set of a recipe; its splits are read when they are first asked for.

    With the tokenizer of a checkpoint, as `Dataset.tokenizer_json` gave it, none is trained.

    Raises:
        ConfigError: there is no data set of that name, or it does not fit the task.
        InvalidInputError: nothing, or nothing usable, lies at the path.
    """
    dataset = _opened(config, task, tokenizer_json)
    if task not in dataset.tasks:
        fitting = [name for name, other in DATASETS.items() if task in other.tasks]
        raise ConfigError(
            f"model.task is {task!r}, which does not fit data.name {config.name!r}: expected the task "
            f"{' or '.join(dataset.tasks)}, or the data {' or '.join(fitting)}"
        )
    return dataset


def _opened(config: DataConfig, task: Task | None = None, tokenizer_json: str | None = None) -> Dataset:
    """At a path, this lists files and reads schemas (of CSV and JSON lines a file) and labels."""
    if config.name in DATASETS:
        return DATASETS[config.name](config, task, tokenizer_json)
    files = survey(_path_of(config))
    if files.kind == "text":
        return TextFiles(files, config, task, tokenizer_json)
    if files.kind == "images":
        return ImageFolder(files, config, task)
    tables = Tables(files, config)
    columns = image_columns(tables, config)
    if columns is None:
        return TextColumn(tables, config, task, tokenizer_json)
    return ImageColumn(tables, *columns, config, task)


def _path_of(config: DataConfig) -> Path:
    """Where data without a name lies; a word that is no path either is most likely a data set, mistyped."""
    try:
        if config.name.strip():
            return find(config)
    except InvalidInputError:
        if "/" in config.name:
            raise
    near = difflib.get_close_matches(config.name, DATASETS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(
        f"data.name is {config.name!r}, expected one of {', '.join(DATA_NAMES)}{hint}, or a path to "
        "your own (where it is relative to another folder, name that one with --data-dir)"
    )
