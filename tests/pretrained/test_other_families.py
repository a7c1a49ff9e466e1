"""Models that are not in the registry: their layers are found by shape, and what is taken on trust is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import COMMON, transformers

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.families import FAMILIES
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.plain import grow_plain

OTHERS = {
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", {"num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {}),
    "opt": ("OPTForCausalLM", "OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", {"dim": 32, "hidden_dim": 48, "n_heads": 4}),
}
FOUND = {
    "stablelm": "model.layers.",
    "gpt_neox": "gpt_neox.layers.",
    "opt": "model.decoder.layers.",
    "distilbert": "distilbert.transformer.layer.",
}


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def save(name: str) -> tuple[Any, Path]:
        model_class, config_class, options = OTHERS[name]
        common = {key: value for key, value in COMMON.items() if not (name == "distilbert" and key.endswith("size"))}
        config = getattr(transformers(), config_class)(**{**common, "vocab_size": 99, **options})
        model = getattr(transformers(), model_class)(config).eval()
        model.save_pretrained(tmp_path / name)
        return model, tmp_path / name

    return save


def outputs(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(3, 15)[None]).logits
    return found


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("method", ["copy", "fresh"])
def test_layers_are_found_by_shape(name: str, method: Any, make: Any, tmp_path: Path) -> None:
    assert name not in FAMILIES
    _, path = make(name)
    folder = read_folder(path)
    assert folder.layers == FOUND[name]
    grown = grow_plain(folder, method=method, positions=(1, 3), out=tmp_path / "grown")
    assert FOUND[name] in grown.notes[0]
    model, report = getattr(transformers(), OTHERS[name][0]).from_pretrained(grown.out, output_loading_info=True)
    assert not any(report.values())
    assert model.num_parameters() == grown.parameters_after
    assert outputs(model.eval()).isfinite().all()


@pytest.mark.parametrize("name", ["stablelm", "opt"])
def test_zero_finds_the_maps_into_the_stream_by_name(name: str, make: Any, tmp_path: Path) -> None:
    model, path = make(name)
    grown = grow_plain(read_folder(path), method="zero", positions=(0, 2), out=tmp_path / "grown")
    assert not grown.preserves, "it is taken on trust"
    assert "has to be checked" in grown.notes[0]
    deeper = getattr(transformers(), OTHERS[name][0]).from_pretrained(grown.out).eval()
    assert torch.equal(outputs(model), outputs(deeper))


def test_that_trust_can_be_misplaced(make: Any, tmp_path: Path) -> None:
    model, path = make("distilbert")  # it normalises the stream
    grown = grow_plain(read_folder(path), method="zero", positions=(2,), out=tmp_path / "grown")
    assert not grown.preserves
    deeper = transformers().DistilBertForMaskedLM.from_pretrained(grown.out).eval()
    assert not torch.equal(outputs(model), outputs(deeper))


def test_zero_without_known_maps_is_refused(make: Any, tmp_path: Path) -> None:
    _, path = make("gpt_neox")
    with pytest.raises(ConfigError, match=r"gpt_neox.*is not known.*copy or fresh"):
        grow_plain(read_folder(path), method="zero", positions=(2,), out=tmp_path / "grown")
