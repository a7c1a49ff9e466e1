"""A loaded model with pairs runs as its parent does: cache, masks, ways to generate, implementations of attention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from models_with_pairs import folders, trained_model
from tiny_models import (
    DECODERS,
    LAYERS,
    inputs,
    load,
    logits,
    transformers,
)

from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.load import load_pretrained

CACHED = {"attention": 2, "ffn": 0, "orthogonal": 0}  # layers of the cache that a pair has for itself


@pytest.mark.parametrize("name", DECODERS)
def test_token_by_token_equals_all_at_once(name: str) -> None:
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
def test_generate_with_cache_equals_without(name: str) -> None:
    model = trained_model(folders(name)[1])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    tokens = inputs(name)["input_ids"]
    attended = torch.ones_like(tokens)
    with_cache = model.generate(tokens, attention_mask=attended, **options)
    assert torch.equal(with_cache, model.generate(tokens, attention_mask=attended, use_cache=False, **options))
    assert with_cache.shape[1] == tokens.shape[1] + 6


def test_a_cache_of_the_parent_has_too_few_layers() -> None:
    """Negative control: without further layers in the cache there is nowhere to write."""
    model = trained_model(folders("llama")[1])
    cache = transformers().DynamicCache(config=model.config.parent())
    with pytest.raises(IndexError):
        model(**inputs("llama"), cache=cache, use_cache=True)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_masks_reach_the_pairs(name: str) -> None:
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


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit", "gemma3_text"])
def test_the_implementation_of_attention_is_switched_in_pairs_too(name: str) -> None:
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


def test_the_identity_holds_under_autocast() -> None:
    parent, grown = folders("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(logits(load_pretrained(grown).eval(), "llama"), logits(load(parent, "llama"), "llama"))


@pytest.mark.parametrize("options", [{"cache_implementation": "static", "disable_compile": True}, {"num_beams": 3}])
def test_other_ways_to_generate(options: dict[str, Any]) -> None:
    model = trained_model(folders("llama")[1])
    tokens = inputs("llama")["input_ids"]
    common: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    common["attention_mask"] = torch.ones_like(tokens)
    beams = {"num_beams": options["num_beams"]} if "num_beams" in options else {}
    expected = model.generate(tokens, use_cache=False, **common, **beams)
    assert torch.equal(model.generate(tokens, **common, **options), expected)


def test_a_copy_is_a_model_of_its_own() -> None:
    model = trained_model(folders("llama")[1])
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, "llama"), logits(model, "llama"))
    other.set_attn_implementation("eager")
    found = [each.model.layers[0].pairs["p1"].f_plus["attention"].config for each in (model, other)]
    assert [config._attn_implementation for config in found] == ["sdpa", "eager"]
