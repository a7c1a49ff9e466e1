"""Names, defaults, folders, and what happens without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ppdgrow.config.kinds import DATA_NAMES
from ppdgrow.config.schema import DataConfig
from ppdgrow.data import DATASETS, open_dataset, resolve_defaults
from ppdgrow.errors import ConfigError, InvalidInputError

CPU = torch.device("cpu")
DEFAULTS = {"stdlib": ("lm", "byte"), "wikitext2": ("lm", "bpe:4096"), "cifar10": ("classify", None)}
DEFAULTS["digits"] = ("classify", None)


def test_defaults() -> None:
    assert {name: resolve_defaults(DataConfig(name=name)) for name in DATASETS} == DEFAULTS


def test_the_names_are_known_where_no_data_is_imported() -> None:
    assert tuple(DATASETS) == DATA_NAMES


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    for call in (resolve_defaults, lambda config: open_dataset(config, "lm")):
        with pytest.raises(ConfigError, match=r"'wikitxt2', expected one of .*cifar10.*did you mean 'wikitext2'"):
            call(DataConfig(name="wikitxt2"))


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("task", ["lm", "mlm", "classify"])
def test_task_and_data_fit_or_are_refused(name: str, task: str) -> None:
    fits = (task == "classify") == (name in ("cifar10", "digits"))
    if fits:
        assert open_dataset(DataConfig(name=name), task).task == task  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match=rf"model\.task is '{task}'.* does not fit data\.name '{name}'"):
        open_dataset(DataConfig(name=name), task)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["directory", "environment"])
def test_a_folder_that_lacks_the_data_is_named(by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path) -> None:
        monkeypatch.setenv("PPDGROW_DATA", str(folder if by == "environment" else tmp_path / "unused"))
        config = DataConfig(name="wikitext2", directory=str(folder) if by == "directory" else None)
        open_dataset(config, "lm").describe()

    with pytest.raises(InvalidInputError, match=r"expected .*wikitext-2/train\.txt.*--data-dir"):
        load(tmp_path)
    with pytest.raises(InvalidInputError, match=r"absent', which is not a folder"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("name", ["wikitext2", "cifar10"])
def test_without_network_both_ways_out_are_named_and_nothing_else_is_said(name: str, tmp_path: Path) -> None:
    code = f"""
from ppdgrow.config.kinds import DATA_NAMES
from ppdgrow.config.schema import DataConfig
from ppdgrow.data import open_dataset, resolve_defaults
from ppdgrow.errors import InvalidInputError
config = DataConfig(name={name!r})
try:
    open_dataset(config, resolve_defaults(config)[0]).describe()
except InvalidInputError as error:
    print(error)
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("PPDGROW_DATA", "HF_HUB_OFFLINE")}
    environment |= {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    assert "--data-dir or PPDGROW_DATA" in result.stdout
    assert "on a machine with network" in result.stdout


def test_importing_the_package_imports_no_data_library() -> None:
    heavy = ("datasets", "torchvision", "tokenizers", "pyarrow", "PIL", "huggingface_hub")
    code = f"import sys, ppdgrow.data; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
