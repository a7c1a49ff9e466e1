"""A model with pairs is saved and loaded, also where ppdgrow is missing, and is never taken for its parent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from models_with_pairs import folders, pair_parameters, trained_model
from tiny_models import (
    MODELS,
    edit_config,
    inputs,
    load,
    logits,
    make_folder,
    read_config,
    tensors,
    transformers,
)

from ppdgrow import ConfigError
from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs

CACHED = {"attention": 2, "ffn": 0, "orthogonal": 0}  # layers of the cache that a pair has for itself


@pytest.mark.parametrize("name", MODELS)
def test_saving_and_loading_is_stable(name: str, tmp_path: Path) -> None:
    grown = folders(name)[1]
    model = trained_model(grown)
    model.save_pretrained(tmp_path / "first")
    again = load_pretrained(tmp_path / "first").eval()
    assert torch.equal(logits(again, name), logits(model, name))
    again.save_pretrained(tmp_path / "second")
    assert read_config(tmp_path / "first") == read_config(tmp_path / "second")
    assert read_config(tmp_path / "first")["pairs"] == read_config(grown)["pairs"]
    one, two = tensors(tmp_path / "first"), tensors(tmp_path / "second")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)
    code = Path(modeling.__file__).read_text()
    assert (tmp_path / "second" / "modeling_ppdgrow.py").read_text() == code


FRESH = """
import json, sys
sys.modules["ppdgrow"] = None
import torch, transformers
torch.set_num_threads(1)
for folder, auto, given in json.loads(sys.argv[1]):
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        found = model(**torch.load(given)).logits
    assert torch.equal(found, torch.load(folder + "/logits.pt")), folder
    model.save_pretrained(folder + "-again")
    if auto == "AutoModelForCausalLM":
        model.generate(torch.tensor([[5, 6]]), max_new_tokens=2, pad_token_id=0)
try:
    import ppdgrow
except ImportError:
    print("equal")
"""


def test_a_fresh_process_without_ppdgrow_loads_it(tmp_path: Path) -> None:
    wanted = []
    for name, auto in {
        "llama": "AutoModelForCausalLM",
        "gpt2": "AutoModelForCausalLM",
        "gemma3_text": "AutoModelForCausalLM",
        "bert": "AutoModelForMaskedLM",
        "vit": "AutoModelForImageClassification",
    }.items():
        model = trained_model(folders(name)[1])
        model.save_pretrained(tmp_path / name)
        torch.save(logits(model, name), tmp_path / name / "logits.pt")
        torch.save(inputs(name), tmp_path / f"{name}.pt")
        wanted.append((str(tmp_path / name), auto, str(tmp_path / f"{name}.pt")))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, json.dumps(wanted)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout == "equal\n", done.stderr
    again = load_pretrained(tmp_path / "llama-again").eval()
    assert torch.equal(logits(again, "llama"), torch.load(tmp_path / "llama" / "logits.pt"))


@pytest.mark.parametrize("name", MODELS)
def test_it_is_never_loaded_as_its_parent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown, library = folders(name)[1], transformers()
    monkeypatch.setattr("transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE", 0)
    tiny = MODELS[name]
    for own in (tiny.model_class, tiny.config_class):
        with pytest.raises(StrictDataclassFieldValidationError, match="load it with trust_remote_code=True"):
            getattr(library, own).from_pretrained(grown)
    for auto in ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM"):
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            getattr(library, auto).from_pretrained(grown)
    config = read_config(grown)
    (tmp_path / "config.json").write_text(
        json.dumps({key: value for key, value in config.items() if key not in modeling.GUARD})
    )
    taken = getattr(library, tiny.config_class).from_pretrained(tmp_path)  # negative control: nothing else refuses it
    assert taken.pairs == config["pairs"]


def test_the_vocabulary_can_be_enlarged(tmp_path: Path) -> None:
    model = trained_model(folders("llama")[1])
    model.resize_token_embeddings(120, mean_resizing=False)
    model.save_pretrained(tmp_path)
    assert read_config(tmp_path)["base"]["vocab_size"] == 120
    assert torch.equal(logits(load_pretrained(tmp_path).eval(), "llama"), logits(model, "llama"))


CLASSIFIERS: Mapping[str, str] = {"llama": "model", "gpt2": "transformer", "bert": "bert"}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_it_is_loaded_below_another_head(name: str) -> None:
    grown = folders(name)[1]
    model = load_pretrained(grown, "AutoModelForSequenceClassification").eval()
    whole = load_pretrained(grown).eval()
    below, expected = getattr(model, CLASSIFIERS[name]), getattr(whole, CLASSIFIERS[name])
    found, wanted = below.state_dict(), expected.state_dict()
    assert sum(".pairs." in key for key in wanted) > 0
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
    with torch.no_grad():
        assert model(**inputs(name)).logits.shape == (2, 2)


def test_a_model_made_of_the_configuration_alone_has_pairs_that_are_the_identity() -> None:
    parent, grown = folders("llama")
    config = modeling.PPDGrowConfig.from_pretrained(grown)
    model = modeling.PPDGrowForCausalLM._from_config(config).eval()
    model.load_state_dict(load(parent, "llama").state_dict(), strict=False)
    assert all(parameter.abs().sum() > 0 for parameter in pair_parameters(model).values())
    assert torch.equal(logits(model, "llama"), logits(load(parent, "llama"), "llama"))


def test_what_transformers_records_of_a_configuration_is_nested() -> None:
    """Also where it is dumped by hand: the parent's keys are not at the top, where its class would read them."""
    config = modeling.PPDGrowConfig.from_pretrained(folders("llama")[1])
    assert config.hidden_size == 32
    for document in (config.to_dict(), config.to_diff_dict(), json.loads(config.to_json_string(use_diff=False))):
        assert document["hidden_size"] == modeling.REFUSED
        assert document["model_type"] == "ppdgrow"
        assert type(config).from_dict(document).hidden_size == 32
    with pytest.raises(ValueError, match="expected a model of type ppdgrow, found 'llama'"):
        modeling.PPDGrowConfig.from_dict({"model_type": "llama"})


BASES: Mapping[str, str] = {"llama": "model", "gpt2": "transformer", "bert": "bert", "vit": "vit"}


@pytest.mark.parametrize("name", BASES)
def test_a_model_that_was_saved_without_a_head(name: str, tmp_path: Path) -> None:
    """As encoders for embeddings are: their tensors' names lack the prefix of the model below the head."""
    below = getattr(load(folders(name)[0], name), BASES[name])
    below.save_pretrained(tmp_path / "parent")
    grow_pairs(read_folder(tmp_path / "parent"), kinds=("attention", "ffn"), positions=(1, 3), out=tmp_path / "grown")
    model = load_pretrained(tmp_path / "grown").eval()
    with torch.no_grad():
        assert torch.equal(model(**inputs(name))[0], below(**inputs(name))[0])
    trained = trained_model(tmp_path / "grown")
    trained.save_pretrained(tmp_path / "trained")
    again = load_pretrained(tmp_path / "trained").eval()
    with torch.no_grad():
        assert torch.equal(again(**inputs(name))[0], trained(**inputs(name))[0])
        assert not torch.equal(again(**inputs(name))[0], below(**inputs(name))[0])


def test_options_of_auto_classes_reach_model_and_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grown = folders("llama")[1]
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    auto, options = transformers().AutoModelForSequenceClassification, {"num_labels": 5, "dtype": torch.bfloat16}
    model = auto.from_pretrained(grown, trust_remote_code=True, attn_implementation="eager", **options)
    branch = model.model.layers[0].pairs["p1"].f_plus["attention"]
    assert branch.config._attn_implementation == "eager"
    assert (model.score.weight.shape[0], branch.q_proj.weight.dtype) == (5, torch.bfloat16)


def test_its_tokenizer_needs_no_remote_code(tmp_path: Path) -> None:
    parent, library = folders("llama")[0], transformers()
    shutil.copytree(parent, tmp_path / "parent")
    words = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    library.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words)).save_pretrained(tmp_path / "parent")
    grow_pairs(read_folder(tmp_path / "parent"), kinds=("ffn",), positions=(1,), out=tmp_path / "grown")
    tokenizer = library.AutoTokenizer.from_pretrained(tmp_path / "grown", trust_remote_code=False)
    assert tokenizer.convert_tokens_to_ids(["b", "a"]) == [1, 0]


def test_a_mistral_with_kinds_of_layers_is_grown_as_what_auto_classes_make_of_it(tmp_path: Path) -> None:
    parent = make_folder("mistral", tmp_path / "parent")
    edit_config(parent, layer_types=["sliding_attention", "full_attention"] * 2)
    expected = transformers().AutoModelForCausalLM.from_pretrained(parent).eval()
    with pytest.raises(ConfigError, match="write model_type 'ministral'"):
        grow_pairs(read_folder(parent), kinds=("attention",), positions=(1, 4), out=tmp_path / "grown")
    edit_config(parent, model_type="ministral", architectures=[type(expected).__name__])
    grow_pairs(read_folder(parent), kinds=("attention",), positions=(1, 4), out=tmp_path / "grown")
    model = load_pretrained(tmp_path / "grown").eval()
    assert isinstance(model, type(expected))
    assert torch.equal(logits(model, "mistral"), logits(expected, "mistral"))
