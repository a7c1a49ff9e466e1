"""A loaded model with pairs: it generates, trains, saves and is never taken for its parent."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from grown_models import grown_folder, pair_parameters, trained_model
from huggingface_hub.errors import StrictDataclassFieldValidationError
from tiny_models import (
    DECODERS,
    LAYERS,
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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The parent of a family and what was grown from it, made once."""
    made: dict[str, tuple[Path, Path]] = {}

    def get(name: str) -> tuple[Path, Path]:
        if name not in made:
            made[name] = grown_folder(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


Folders = Callable[[str], tuple[Path, Path]]


@pytest.mark.parametrize("name", DECODERS)
def test_token_by_token_equals_all_at_once(name: str, folders: Folders) -> None:
    model = trained_model(folders(name)[1])
    tokens = inputs(name)["input_ids"]
    together = logits(model, name)
    cache = transformers().DynamicCache(config=model.config)
    assert len(cache.layers) == LAYERS + sum(CACHED[block["kind"]] for block in model.config.pairs["blocks"])
    with torch.no_grad():
        single = [model(tokens[:, at : at + 1], cache=cache, use_cache=True).logits for at in range(tokens.shape[1])]
    torch.testing.assert_close(torch.cat(single, 1), together, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        again, kept = model(tokens[:, :2]).logits[:, -1], model(tokens[:, :1], use_cache=True)
        kept.cache.layers[-1].values.zero_()  # negative control: a pair's own layer of the cache forgets
        forgetful = model(tokens[:, 1:2], cache=kept.cache, use_cache=True).logits[:, -1]
    assert not torch.allclose(forgetful, again, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DECODERS)
def test_generate_with_cache_equals_without(name: str, folders: Folders) -> None:
    model = trained_model(folders(name)[1])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    tokens = inputs(name)["input_ids"]
    attended = torch.ones_like(tokens)
    with_cache = model.generate(tokens, attention_mask=attended, **options)
    assert torch.equal(with_cache, model.generate(tokens, attention_mask=attended, use_cache=False, **options))
    assert with_cache.shape[1] == tokens.shape[1] + 6


def test_a_cache_of_the_parent_has_too_few_layers(folders: Folders) -> None:
    """Negative control: without further layers in the cache there is nowhere to write."""
    model = trained_model(folders("llama")[1])
    cache = transformers().DynamicCache(config=model.config.parent())
    with pytest.raises(IndexError):
        model(**inputs("llama"), cache=cache, use_cache=True)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_masks_reach_the_pairs(name: str, folders: Folders) -> None:
    """Padding on the left changes nothing for the tokens behind it."""
    model = trained_model(folders(name)[1])
    tokens = inputs(name)["input_ids"][:1]
    padded = torch.cat((torch.full((1, 5), 7), tokens), 1)
    mask = torch.cat((torch.zeros(1, 5, dtype=torch.long), torch.ones_like(tokens)), 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        alone = model(tokens).logits
        behind = model(padded, attention_mask=mask, position_ids=positions).logits[:, 5:]
        unmasked = model(padded, position_ids=positions).logits[:, 5:]
    torch.testing.assert_close(behind, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(unmasked, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_saving_and_loading_is_stable(name: str, folders: Folders, tmp_path: Path) -> None:
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


def test_a_fresh_process_without_ppdgrow_loads_it(folders: Folders, tmp_path: Path) -> None:
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
def test_it_is_never_loaded_as_its_parent(
    name: str, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma3_text", "gpt2", "bert", "modernbert"])
def test_old_gradients_are_the_parents_and_those_of_the_members_opposite(name: str, folders: Folders) -> None:
    parent, grown = folders(name)
    gradients = []
    for model in (load(parent, name), load_pretrained(grown).eval()):
        model(**inputs(name), labels=inputs(name)["input_ids"]).loss.backward()
        gradients.append({key: parameter.grad for key, parameter in model.named_parameters()})
    before, after = gradients
    assert all(torch.equal(after[key], gradient) for key, gradient in before.items() if gradient is not None)
    new = {key: gradient for key, gradient in after.items() if "_plus." in key}
    assert new
    for key, gradient in new.items():
        assert gradient is not None, key
        assert gradient.abs().sum() > 0, key
        other = after[key.replace("_plus.", "_minus.")]
        sign = 1 if _is_output(key) else -1  # both signs turned: of the weight and of the term
        assert torch.equal(other, sign * gradient), key


def _is_output(key: str) -> bool:
    return any(f".{end}." in key for end in ("o_proj", "down_proj", "c_proj", "output", "Wo"))


def train(model: Any, name: str, steps: int = 3) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**inputs(name), labels=inputs(name)["input_ids"]).loss.backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["llama", "phi3", "roberta"])
def test_pairs_train_while_the_parent_stays(name: str, folders: Folders, tmp_path: Path) -> None:
    parent, grown = folders(name)
    model = load_pretrained(grown)
    pairs = pair_parameters(model)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key in pairs)
    before = {key: parameter.detach().clone() for key, parameter in pairs.items()}
    train(model, name)
    assert all(not torch.equal(before[key], parameter) for key, parameter in pairs.items())
    model.save_pretrained(tmp_path / "out")
    old, new = tensors(parent), tensors(tmp_path / "out")
    assert all(torch.equal(new[key], tensor) for key, tensor in old.items())
    assert not torch.equal(logits(model.eval(), name), logits(load(parent, name), name))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable.*:FutureWarning")
def test_gradient_checkpointing_changes_no_gradient(reentrant: bool, folders: Folders) -> None:
    found = []
    for checkpointing in (False, True):
        model = trained_model(folders("llama")[1]).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        calls = _count_calls(model.model.layers[0].pairs["p1"])
        model(**inputs("llama"), labels=inputs("llama")["input_ids"], use_cache=False).loss.backward()
        assert len(calls) == (2 if checkpointing else 1)  # once more in the backward pass
        found.append({key: parameter.grad for key, parameter in model.named_parameters()})
    assert all(torch.equal(found[0][key], found[1][key]) for key in found[0])


def _count_calls(module: Any) -> list[int]:
    calls: list[int] = []
    module.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # of PEFT against this Transformers
def test_adapters_of_peft_go_into_pairs_too(folders: Folders) -> None:
    peft = pytest.importorskip("peft")
    model = trained_model(folders("llama")[1])
    before = logits(model, "llama")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    )
    assert torch.equal(logits(adapted, "llama"), before)
    inside = [key for key, parameter in adapted.named_parameters() if ".pairs." in key and parameter.requires_grad]
    assert any("f_minus.attention.q_proj.lora_A" in key for key in inside)
    train(adapted, "llama")
    assert not torch.equal(logits(adapted.eval(), "llama"), before)
    assert not any(parameter.requires_grad for key, parameter in adapted.named_parameters() if "lora_" not in key)


def test_a_trainer_of_transformers_takes_it(folders: Folders, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    library = transformers()
    model = load_pretrained(folders("llama")[1])
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    rows = [{"input_ids": row, "labels": row} for row in inputs("llama")["input_ids"]]
    arguments = library.TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[]
    )
    trainer = library.Trainer(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    assert all(not torch.equal(before[key], value) for key, value in pair_parameters(model).items())
    trainer.save_model(str(tmp_path / "out"))
    assert torch.equal(logits(load_pretrained(tmp_path / "out").eval(), "llama"), logits(model.eval(), "llama"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit", "gemma3_text"])
def test_the_implementation_of_attention_is_switched_in_pairs_too(name: str, folders: Folders) -> None:
    model = trained_model(folders(name)[1])
    before = logits(model, name)
    model.set_attn_implementation("eager")
    branch = next(module for module in model.modules() if isinstance(module, modeling.CouplingPair)).f_plus
    assert {module.config._attn_implementation for module in branch.modules() if hasattr(module, "config")} == {"eager"}
    with torch.no_grad():
        output = model(**inputs(name), output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(output.logits, before, rtol=1e-4, atol=1e-5)
    assert len(output.attentions) == LAYERS
    assert {attention.shape[1] for attention in output.attentions} == {4}  # heads: none of half a layer among them
    assert len(output.hidden_states) == LAYERS + 1


def test_the_vocabulary_can_be_enlarged(folders: Folders, tmp_path: Path) -> None:
    model = trained_model(folders("llama")[1])
    model.resize_token_embeddings(120, mean_resizing=False)
    model.save_pretrained(tmp_path)
    assert read_config(tmp_path)["base"]["vocab_size"] == 120
    assert torch.equal(logits(load_pretrained(tmp_path).eval(), "llama"), logits(model, "llama"))


CLASSIFIERS: Mapping[str, str] = {"llama": "model", "gpt2": "transformer", "bert": "bert"}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_it_is_loaded_below_another_head(name: str, folders: Folders) -> None:
    grown = folders(name)[1]
    model = load_pretrained(grown, "AutoModelForSequenceClassification").eval()
    whole = load_pretrained(grown).eval()
    below, expected = getattr(model, CLASSIFIERS[name]), getattr(whole, CLASSIFIERS[name])
    found, wanted = below.state_dict(), expected.state_dict()
    assert sum(".pairs." in key for key in wanted) > 0
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
    with torch.no_grad():
        assert model(**inputs(name)).logits.shape == (2, 2)


def test_a_model_made_of_the_configuration_alone_has_pairs_that_are_the_identity(folders: Folders) -> None:
    parent, grown = folders("llama")
    config = modeling.PPDGrowConfig.from_pretrained(grown)
    model = modeling.PPDGrowForCausalLM._from_config(config).eval()
    model.load_state_dict(load(parent, "llama").state_dict(), strict=False)
    assert all(parameter.abs().sum() > 0 for parameter in pair_parameters(model).values())
    assert torch.equal(logits(model, "llama"), logits(load(parent, "llama"), "llama"))


def test_what_transformers_records_of_a_configuration_is_nested(folders: Folders) -> None:
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
def test_a_model_that_was_saved_without_a_head(name: str, folders: Folders, tmp_path: Path) -> None:
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


def test_the_identity_holds_under_autocast(folders: Folders) -> None:
    parent, grown = folders("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits(load_pretrained(grown).eval(), "llama"), logits(load(parent, "llama"), "llama"))


@pytest.mark.parametrize("options", [{"cache_implementation": "static", "disable_compile": True}, {"num_beams": 3}])
def test_other_ways_to_generate(options: dict[str, Any], folders: Folders) -> None:
    model = trained_model(folders("llama")[1])
    tokens = inputs("llama")["input_ids"]
    common: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    common["attention_mask"] = torch.ones_like(tokens)
    beams = {"num_beams": options["num_beams"]} if "num_beams" in options else {}
    expected = model.generate(tokens, use_cache=False, **common, **beams)
    assert torch.equal(model.generate(tokens, **common, **options), expected)


def test_options_of_auto_classes_reach_model_and_pairs(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = folders("llama")[1]
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    auto, options = transformers().AutoModelForSequenceClassification, {"num_labels": 5, "dtype": torch.bfloat16}
    model = auto.from_pretrained(grown, trust_remote_code=True, attn_implementation="eager", **options)
    branch = model.model.layers[0].pairs["p1"].f_plus["attention"]
    assert branch.config._attn_implementation == "eager"
    assert (model.score.weight.shape[0], branch.q_proj.weight.dtype) == (5, torch.bfloat16)


def test_a_copy_is_a_model_of_its_own(folders: Folders) -> None:
    model = trained_model(folders("llama")[1])
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, "llama"), logits(model, "llama"))
    other.set_attn_implementation("eager")
    found = [each.model.layers[0].pairs["p1"].f_plus["attention"].config for each in (model, other)]
    assert [config._attn_implementation for config in found] == ["sdpa", "eager"]


def test_its_tokenizer_needs_no_remote_code(folders: Folders, tmp_path: Path) -> None:
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
