"""Models that are not in the registry: their layers are found by shape, and what is taken on trust is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models_with_pairs import trained_model
from tiny_models import COMMON, transformers

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained import plain
from ppdgrow.pretrained.families import FAMILIES
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs
from ppdgrow.pretrained.plain import grow_plain

OTHERS = {
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", {"num_key_value_heads": 2}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {}),
    "opt": ("OPTForCausalLM", "OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", {"num_key_value_heads": 2}),
}
FOUND = {
    "stablelm": "model.layers.",
    "gpt_neox": "gpt_neox.layers.",
    "starcoder2": "model.layers.",
    "opt": "model.decoder.layers.",
}


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def save(name: str, **changes: Any) -> tuple[Any, Path]:
        model_class, config_class, options = OTHERS[name]
        config = getattr(transformers(), config_class)(**{**COMMON, **options, **changes})
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


def test_zero_is_refused_where_the_stream_is_normalised(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = make("opt", do_layer_norm_before=False)
    with pytest.raises(ConfigError, match=r"do_layer_norm_before is False.*copy or fresh"):
        grow_plain(read_folder(path), method="zero", positions=(2,), out=tmp_path / "grown")
    monkeypatch.setattr(plain, "NORM_FIRST", "")  # negative control: it would be no identity
    grow_plain(read_folder(path), method="zero", positions=(2,), out=tmp_path / "grown")
    deeper = transformers().OPTForCausalLM.from_pretrained(tmp_path / "grown").eval()
    assert not torch.equal(outputs(model), outputs(deeper))


def test_distilbert_is_grown_by_pairs_and_not_by_zero(tmp_path: Path) -> None:
    sizes = {"dim": 32, "hidden_dim": 48, "n_heads": 4, "n_layers": 4, "vocab_size": 99, "max_position_embeddings": 64}
    model = transformers().DistilBertForMaskedLM(transformers().DistilBertConfig(**sizes)).eval()
    model.save_pretrained(tmp_path / "parent")
    folder = read_folder(tmp_path / "parent")
    assert folder.layers == "distilbert.transformer.layer."
    with pytest.raises(ConfigError, match=r"normalises the stream itself.*grow it by pairs"):
        grow_plain(folder, method="zero", positions=(2,), out=tmp_path / "grown")
    grown = grow_pairs(folder, kinds=("attention", "ffn", "orthogonal"), positions=(0, 2, 4), out=tmp_path / "grown")
    assert grown.theta_0.startswith("sliced: p1 from layer 1, p2 from layer 2")
    deeper = load_pretrained(tmp_path / "grown").eval()
    assert deeper.num_parameters() == grown.parameters_after
    assert torch.equal(outputs(deeper), outputs(model))
    assert not torch.equal(outputs(trained_model(tmp_path / "grown")), outputs(model))


@pytest.mark.parametrize("name", ["gpt_neox", "starcoder2"])
def test_pairs_of_unknown_parts_are_refused_with_what_is_left(name: str, make: Any, tmp_path: Path) -> None:
    _, path = make(name)
    with pytest.raises(ConfigError, match=rf"{name}.*not known.*--method zero, copy or fresh") as found:
        grow_pairs(read_folder(path), kinds=("ffn",), positions=(2,), out=tmp_path / "grown")
    assert "registry has them" not in str(found.value)


def test_zero_without_known_maps_is_refused(make: Any, tmp_path: Path) -> None:
    _, path = make("gpt_neox")
    with pytest.raises(ConfigError, match=r"gpt_neox.*is not known.*copy or fresh"):
        grow_plain(read_folder(path), method="zero", positions=(2,), out=tmp_path / "grown")
