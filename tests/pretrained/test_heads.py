"""Pairs below every head that an auto class gives, and the others refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from models_with_pairs import trained_model
from tiny_models import MODELS, inputs, transformers

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.load import load_pretrained
from ppdgrow.pretrained.pairs import grow_pairs

ELECTRA = {"embedding_size": 32}
HEADS: Mapping[str, tuple[str, str]] = {
    "BertForQuestionAnswering": ("bert", "AutoModelForQuestionAnswering"),
    "LlamaForQuestionAnswering": ("llama", "AutoModelForQuestionAnswering"),
    "GPT2ForQuestionAnswering": ("gpt2", "AutoModelForQuestionAnswering"),
    "ModernBertForQuestionAnswering": ("modernbert", "AutoModelForQuestionAnswering"),
    "BertForPreTraining": ("bert", "AutoModelForPreTraining"),
    "ElectraForPreTraining": ("electra", "AutoModelForPreTraining"),
    "ViTForMaskedImageModeling": ("vit", "AutoModelForMaskedImageModeling"),
}
OTHERS = {
    "GPT2DoubleHeadsModel": ("gpt2", "GPT2LMHeadModel"),
    "BertForMultipleChoice": ("bert", "BertForPreTraining"),
    "BertForNextSentencePrediction": ("bert", "BertForPreTraining"),
}


def saved(head: str, family: str, path: Path) -> Path:
    config = (
        transformers().ElectraConfig(**{**vars_of_bert(), **ELECTRA})
        if family == "electra"
        else MODELS[family].config(**({"encoder_stride": 4} if family == "vit" else {}))
    )
    getattr(transformers(), head)(config).save_pretrained(path)
    return path


def vars_of_bert() -> dict[str, Any]:
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    return {key: getattr(MODELS["bert"].config(), key) for key in kept}


def outputs(model: Any, family: str) -> list[torch.Tensor]:
    given = inputs("bert" if family == "electra" else family)
    with torch.no_grad():
        found = [value for value in model.eval()(**given).values() if isinstance(value, torch.Tensor)]
    assert found
    return found


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize("head", HEADS)
def test_it_is_the_same_model_and_is_saved_whole(head: str, tmp_path: Path) -> None:
    family, auto = HEADS[head]
    parent = saved(head, family, tmp_path / "parent")
    grow_pairs(read_folder(parent), kinds=("attention", "ffn"), positions=(1, 4), out=tmp_path / "grown")
    before = outputs(getattr(transformers(), head).from_pretrained(parent), family)
    model = load_pretrained(tmp_path / "grown")
    assert type(model).__name__ == f"PPDGrow{head}"
    assert equal(outputs(model, family), before)
    trained = trained_model(tmp_path / "grown")
    trained.save_pretrained(tmp_path / "trained")
    after = outputs(trained, family)
    assert not equal(after, before)
    for again in (load_pretrained(tmp_path / "trained"), load_pretrained(tmp_path / "trained", auto)):
        assert equal(outputs(again, family), after)
    assert (
        read_folder(tmp_path / "trained").config["architectures"]
        == read_folder(tmp_path / "grown").config["architectures"]
    )


@pytest.mark.parametrize("head", OTHERS)
def test_another_head_is_refused_by_name(head: str, tmp_path: Path) -> None:
    family, supported = OTHERS[head]
    parent = saved(head, family, tmp_path / "parent")
    with pytest.raises(ConfigError, match=rf"built into a {head}, expected one of .*{supported}.*AutoModel") as found:
        grow_pairs(read_folder(parent), kinds=("ffn",), positions=(1,), out=tmp_path / "grown")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "grown").exists()
