"""The config of a deeper model: each of the old layers is of the kind that it was, each copy of that of its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import LAYERS, edit_config, load, logits, make_folder, read_config, transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.deeper_config import Stack, deeper_config
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.plain import grow_plain, plan_stack

AT_ONE = Stack(sources=(0, 0, 0, 1, 2, 3), new=(1, 2))


def kinds(path: Path) -> Any:
    return transformers().AutoConfig.from_pretrained(path).layer_types


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gemma3_text", {"sliding_window_pattern": 2}),
        ("modernbert", {"global_attn_every_n_layers": 3}),
        ("qwen3", {"max_window_layers": 2}),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_kinds_stay_where_a_pattern_would_move_them(
    name: str, pattern: dict[str, Any], listed: bool, tmp_path: Path
) -> None:
    parent = make_folder(name, tmp_path / "parent")
    if not listed:  # as older versions wrote it
        edit_config(parent, layer_types=None, **pattern)
    old = kinds(parent)
    assert len(set(old)) == 2
    stack = plan_stack(read_folder(parent), (1,))
    naive = tmp_path / "naive"
    naive.mkdir()
    (naive / "config.json").write_text((parent / "config.json").read_text())
    edit_config(naive, layer_types=None, num_hidden_layers=LAYERS + 2, **pattern)
    assert kinds(naive) != [old[source] for source in stack.sources], "control: the pattern would move them"
    grown = grow_plain(read_folder(parent), method="zero", positions=(1,), out=tmp_path / "grown")
    assert kinds(grown.out) == [old[source] for source in stack.sources]
    assert any("layer_types is listed" in note for note in grown.notes) != listed
    assert torch.equal(logits(load(parent, name), name), logits(load(grown.out, name), name))


def test_the_key_of_the_number_of_layers_is_that_of_the_class(tmp_path: Path) -> None:
    parent = make_folder("gpt2", tmp_path / "parent")
    config, notes = deeper_config(read_folder(parent), AT_ONE)
    assert config["n_layer"] == 6
    assert "num_hidden_layers" not in config
    assert {key for key in config if config[key] != read_config(parent)[key]} == {"n_layer"}
    assert notes == ()


def test_a_number_of_layers_that_is_only_transformers_default_is_written(tmp_path: Path) -> None:
    parent = make_folder("vit", tmp_path / "parent", num_hidden_layers=12)
    edit_config(parent, num_hidden_layers=None)
    grown = grow_plain(read_folder(parent), method="zero", positions=(12,), out=tmp_path / "grown")
    assert read_config(grown.out)["num_hidden_layers"] == 14
    assert torch.equal(logits(load(parent, "vit"), "vit"), logits(load(grown.out, "vit"), "vit"))


def test_lists_of_layers_go_along_and_others_do_not(tmp_path: Path) -> None:
    parent = make_folder("llama", tmp_path / "parent")
    edit_config(
        parent,
        no_rope_layers=[1, 1, 0, 1],
        mlp_only_layers=[0, 2],
        full_attention_layers=["a", "b"],
        eos_token_id=[1, 2, 3, 4],
    )
    config, _ = deeper_config(read_folder(parent), AT_ONE)
    assert config["no_rope_layers"] == [1, 1, 1, 1, 0, 1]
    assert config["mlp_only_layers"] == [0, 1, 2, 4]
    assert config["full_attention_layers"] == ["a", "b"], "not as long as the model is deep"
    assert config["eos_token_id"] == [1, 2, 3, 4], "as long as the model is deep, and not of layers"


def test_a_rotary_embedding_that_only_some_layers_have_stays_theirs(tmp_path: Path) -> None:
    options = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 1)
    config = transformers().SmolLM3Config(
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=99,
        intermediate_size=48,
        no_rope_layer_interval=2,
        **options,
    )
    model = transformers().SmolLM3ForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "parent")
    edit_config(tmp_path / "parent", no_rope_layers=None)
    grown = grow_plain(read_folder(tmp_path / "parent"), method="zero", positions=(1,), out=tmp_path / "grown")
    assert read_config(grown.out)["no_rope_layers"] == [1, 1, 1, 0, 1, 0]
    deeper = transformers().SmolLM3ForCausalLM.from_pretrained(grown.out).eval()
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, deeper(tokens).logits)


def test_a_layer_whose_number_changes_what_it_computes_is_not_moved(tmp_path: Path) -> None:
    parent = make_folder("gpt2", tmp_path / "parent", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ConfigError, match=r"scale_attn_by_inverse_layer_idx.*another place"):
        grow_plain(read_folder(parent), method="zero", positions=(1,), out=tmp_path / "grown")


def test_the_models_themselves_are_held_against_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppdgrow.pretrained.deeper_config.BY_NUMBER", ())
    parent = make_folder("gpt2", tmp_path / "parent", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(ConfigError, match=r"layer 1 is not the same at another place \(attn.scaling"):
        grow_plain(read_folder(parent), method="copy", positions=(1,), out=tmp_path / "grown")


@pytest.fixture
def patterned(tmp_path: Path) -> Iterator[Path]:
    """A folder whose config takes no list of kinds, by a class of its own, and refuses more than 8 layers."""

    class Patterned(transformers().LlamaConfig):  # type: ignore[misc]
        model_type = "patterned"

        def __post_init__(self, **keys: Any) -> None:
            super().__post_init__(**keys)
            self.layer_types = [
                "full_attention" if i % 3 else "sliding_attention" for i in range(self.num_hidden_layers)
            ]
            if self.num_hidden_layers > 8:
                raise ValueError("too deep")

    transformers().AutoConfig.register("patterned", Patterned)
    folder = make_folder("llama", tmp_path / "patterned")
    edit_config(folder, model_type="patterned")
    yield folder
    del CONFIG_MAPPING._extra_content["patterned"]


def test_kinds_that_cannot_be_listed_are_refused(patterned: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"layer_types of model_type 'patterned'.*cannot be listed.*pairs"):
        grow_plain(read_folder(patterned), method="copy", positions=(1,), out=tmp_path / "grown")


def test_a_depth_that_the_config_does_not_take_is_refused(patterned: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"patterned.*cannot be given 10 layers.*too deep.*pairs"):
        grow_plain(read_folder(patterned), method="copy", positions=(1, 2, 3), out=tmp_path / "grown")
