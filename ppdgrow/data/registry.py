"""The data sets by name: adding one is one class and one line here."""

from __future__ import annotations

import difflib

from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data.cifar10 import Cifar10
from ppdgrow.data.dataset import Dataset
from ppdgrow.data.stdlib import Stdlib
from ppdgrow.data.wikitext2 import WikiText2
from ppdgrow.errors import ConfigError

DATASETS: dict[str, type[Dataset]] = {
    "stdlib": Stdlib,
    "wikitext2": WikiText2,
    "cifar10": Cifar10,
}


def resolve_defaults(config: DataConfig) -> tuple[Task, str | None]:
    """The task and the tokenizer that a data set is meant for; reads no data.

    Raises:
        ConfigError: there is no data set of that name.
    """
    dataset = _find(config.name)
    return dataset.tasks[0], dataset.default_tokenizer


def open_dataset(config: DataConfig, task: Task, tokenizer_json: str | None = None) -> Dataset:
    """The data set of a recipe; its splits are read when they are first asked for.

    Args:
        config: `data` of the recipe; a tokenizer of None stands for the data set's own.
        task: what the model is trained to do.
        tokenizer_json: the tokenizer of a checkpoint, as `Dataset.tokenizer_json` gave it; then none is trained.

    Raises:
        ConfigError: there is no data set of that name, or it does not fit the task.
    """
    dataset = _find(config.name)
    if task not in dataset.tasks:
        fitting = [name for name, other in DATASETS.items() if task in other.tasks]
        raise ConfigError(
            f"model.task is {task!r}, which does not fit data.name {config.name!r}: expected the task "
            f"{' or '.join(dataset.tasks)}, or the data {' or '.join(fitting)}"
        )
    return dataset(config, task, tokenizer_json)


def _find(name: str) -> type[Dataset]:
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name, DATASETS, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"data.name is {name!r}, expected one of {', '.join(DATASETS)}{hint}")
