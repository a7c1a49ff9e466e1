"""What users of other expanders complain about, each as something that cannot happen here: repository#thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import PRE_NORM, inputs, load, logits, make_folder, read_config, tensors, transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from ppdgrow.errors import InvalidInputError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.plain import grow_plain
from ppdgrow.pretrained.write import Grown

TIED_PAIR = ("lm_head.weight", "model.embed_tokens.weight")


def grow(parent: Path, out: Path, method: Any = "zero", positions: tuple[int, ...] = (2,)) -> Grown:
    return grow_plain(read_folder(parent), method=method, positions=positions, out=out)


def layer_size(path: Path) -> int:
    return sum(tensor.numel() for name, tensor in tensors(path).items() if name.startswith("model.layers.0."))


def test_no_config_index_or_tokenizer_is_left_to_the_user(tmp_path: Path) -> None:
    """LLaMA-Pro#11, #30: the script writes one pickled file, and the user edits the number of layers by hand."""
    parent = make_folder("llama", tmp_path / "parent")
    words = Tokenizer(WordLevel({"<unk>": 0, "a": 3, "b": 4}, unk_token="<unk>"))
    tokenizer = transformers().PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(parent)
    grow(parent, tmp_path / "grown")
    loaded = transformers().AutoTokenizer.from_pretrained(tmp_path / "grown")
    assert loaded.encode("a") == tokenizer.encode("a") == [3]
    assert loaded.chat_template == tokenizer.chat_template
    model = transformers().AutoModelForCausalLM.from_pretrained(tmp_path / "grown").eval()
    assert model.config.num_hidden_layers == len(model.model.layers) == 6
    assert model.generation_config.to_dict() == load(parent, "llama").generation_config.to_dict()
    assert torch.equal(logits(model, "llama"), logits(load(parent, "llama"), "llama")), "#30: is it still the same?"
    assert not list((tmp_path / "grown").glob("*.bin"))


@pytest.mark.parametrize("name", PRE_NORM)
def test_what_is_zero_gets_a_gradient_and_the_rest_after_one_step(name: str, tmp_path: Path) -> None:
    """LLaMA-Pro#28: which tensors to zero, and do they train?"""
    parent = make_folder(name, tmp_path / "parent")
    grown = grow(parent, tmp_path / "grown", positions=(2, 4))
    zeroed = {key for key, tensor in tensors(grown.out).items() if tensor.dim() > 1 and not tensor.any()}
    assert len(zeroed) == 2 * len(grown.ids)
    model = load(grown.out, name)
    numbers = {f".{identity.rpartition('.')[2]}." for identity in grown.ids}
    new = {key: each for key, each in model.named_parameters() if any(number in key for number in numbers)}
    new = {key: each for key, each in new.items() if "k_proj.bias" not in key}  # the softmax does not see it
    for step in range(2):
        model.zero_grad()
        model(**inputs(name)).logits.logsumexp(-1).sum().backward()
        trained = {key for key, each in new.items() if each.grad is not None and each.grad.any()}
        zero = {key for key, each in new.items() if each.dim() > 1 and not each.any()}
        assert len(zero) == (2 * len(grown.ids) if step == 0 else 0)
        assert zero <= trained
        assert (trained == new.keys()) == (step == 1)
        with torch.no_grad():
            for each in new.values():
                each.add_(torch.zeros_like(each) if each.grad is None else each.grad, alpha=-0.01)


def test_a_tied_model_neither_shrinks_nor_gains(tmp_path: Path) -> None:
    """LlamaFactory#2492, mergekit#385, #390, #445: the size after is that before and the new layers, ties included."""
    parent = make_folder("llama", tmp_path / "parent", tie_word_embeddings=True)
    grown = grow(parent, tmp_path / "grown")
    assert grown.parameters_after - grown.parameters_before == 2 * layer_size(parent)
    assert "lm_head.weight" not in tensors(grown.out)
    model = load(grown.out, "llama")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.num_parameters() == grown.parameters_after
    assert read_config(grown.out)["tie_word_embeddings"] is True
    stored = sum(tensor.numel() for tensor in tensors(grown.out).values())
    assert stored == grown.parameters_after


def test_an_untied_model_keeps_both_ends(tmp_path: Path) -> None:
    """The converse: an output map of its own must not be lost to a tie."""
    parent = make_folder("llama", tmp_path / "parent", tie_word_embeddings=False)
    grown = grow(parent, tmp_path / "grown")
    model = load(grown.out, "llama")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    assert model.num_parameters() == grown.parameters_after == grown.parameters_before + 2 * layer_size(parent)


@pytest.mark.parametrize("equal", [True, False])
def test_a_tied_model_that_was_saved_with_both_ends(equal: bool, tmp_path: Path) -> None:
    """mergekit#445 and others: tools that write the tied map a second time; it is counted once where it is the same."""
    parent = make_folder("llama", tmp_path / "parent", tie_word_embeddings=True)
    held = load_file(parent / "model.safetensors")
    held[TIED_PAIR[0]] = held[TIED_PAIR[1]].clone() if equal else held[TIED_PAIR[1]] + 1
    save_file(held, parent / "model.safetensors", metadata={"format": "pt"})
    grown = grow(parent, tmp_path / "grown")
    old, new = (transformers().LlamaForCausalLM.from_pretrained(path).eval() for path in (parent, grown.out))
    assert torch.equal(logits(old, "llama"), logits(new, "llama"))
    assert (grown.parameters_before, grown.parameters_after) == (old.num_parameters(), new.num_parameters())
    assert (new.lm_head.weight is new.model.embed_tokens.weight) == equal


def test_a_tied_head_that_was_saved_in_three_names(tmp_path: Path) -> None:
    """RoBERTa's head has its bias under two names, and older versions saved each of them."""
    parent = make_folder("roberta", tmp_path / "parent")
    held = load_file(parent / "model.safetensors")
    held["lm_head.decoder.weight"] = held["roberta.embeddings.word_embeddings.weight"].clone()
    held["lm_head.decoder.bias"] = held["lm_head.bias"].clone()
    save_file(held, parent / "model.safetensors", metadata={"format": "pt"})
    grown = grow(parent, tmp_path / "grown", "copy")
    old, new = (transformers().RobertaForMaskedLM.from_pretrained(path) for path in (parent, grown.out))
    assert (grown.parameters_before, grown.parameters_after) == (old.num_parameters(), new.num_parameters())


def test_indices_of_new_layers_are_where_they_were_inserted(tmp_path: Path) -> None:
    """LlamaFactory#9010: the layers taken to be trainable are not those that were inserted."""
    parent = make_folder("llama", tmp_path / "parent")
    grown = grow(parent, tmp_path / "grown", positions=(1, 3))
    zero = {
        int(name.split(".")[2]) for name, tensor in tensors(grown.out).items() if "o_proj" in name and not tensor.any()
    }
    config = transformers().AutoConfig.from_pretrained(grown.out)
    assert set(config.ppdgrow["lineage"][-1]["new_layers"]) == zero
    assert {int(name.rpartition(".")[2]) for name in grown.ids} == zero == {1, 2, 5, 6}


@pytest.mark.parametrize("name", ["mistral", "qwen3", "gpt2"])
def test_no_tensor_is_expected_that_the_model_does_not_have(name: str, tmp_path: Path) -> None:
    """mergekit#398: k_norm of layer 86 required but not present, in a model without."""
    parent = make_folder(name, tmp_path / "parent")
    grown = grow(parent, tmp_path / "grown", "copy", positions=(0, 2, 4, 4))
    makes = {frozenset(read_folder(grown.out).layer_tensors(index)) for index in range(grown.layers_after)}
    assert makes == {frozenset(read_folder(parent).layer_tensors(0))}
    assert any("k_norm" in suffix for make in makes for suffix in make) == (name == "qwen3")
    load(grown.out, name)


def test_an_index_cannot_reach_out_of_its_folder(tmp_path: Path) -> None:
    """transformers#47176: file names of an index are joined to the folder unchecked."""
    parent = make_folder("llama", tmp_path / "parent", shards=True)
    index = parent / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    name, file = next(iter(document["weight_map"].items()))
    (tmp_path / file).write_bytes((parent / file).read_bytes())
    index.write_text(json.dumps({**document, "weight_map": {**document["weight_map"], name: f"../{file}"}}))
    with pytest.raises(InvalidInputError, match="is not plain"):
        read_folder(parent)
    index.write_text(json.dumps(document))
    grow(parent, tmp_path / "grown")
    written = json.loads((tmp_path / "grown" / "model.safetensors.index.json").read_text())
    assert all((tmp_path / "grown" / each).name == each for each in written["weight_map"].values())
