"""`load_pretrained`: one call for folders with and without pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models_with_pairs import grown_folder
from tiny_models import load, logits

from ppdgrow import ConfigError, InvalidInputError, load_pretrained


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return grown_folder("llama", tmp_path_factory.mktemp("llama"), kinds=("ffn",), positions=(2,))


def test_with_and_without_pairs(folders: tuple[Path, Path]) -> None:
    parent, grown = folders
    plain = load_pretrained(str(parent)).eval()
    model = load_pretrained(str(grown)).eval()
    assert type(plain).__name__ == "LlamaForCausalLM"
    assert type(model).__name__ == "PPDGrowLlamaForCausalLM"
    assert isinstance(model, type(plain))
    assert torch.equal(logits(model, "llama"), logits(load(parent, "llama"), "llama"))


def test_options_go_to_transformers(folders: tuple[Path, Path]) -> None:
    for folder in folders:
        assert load_pretrained(folder, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert type(load_pretrained(folder, "AutoModel")).__name__.endswith("LlamaModel")


def test_what_cannot_be_loaded(folders: tuple[Path, Path], tmp_path: Path) -> None:
    parent, grown = folders
    with pytest.raises(ConfigError, match=r"cannot be loaded as AutoModelForMaskedLM .*: expected AutoModel, "):
        load_pretrained(grown, "AutoModelForMaskedLM")
    for wanted in ("AutoModelForDreaming", "logging"):
        with pytest.raises(ConfigError, match=f"cannot be loaded as {wanted} by Transformers"):
            load_pretrained(parent, wanted)
    with pytest.raises(InvalidInputError, match="is no folder"):
        load_pretrained(tmp_path / "nothing")
