"""A loaded model with pairs trains: its gradients, checkpointing, adapters, the library's own trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from models_with_pairs import folders, pair_parameters, trained_model
from tiny_models import (
    inputs,
    load,
    logits,
    tensors,
    transformers,
)

from ppdgrow.pretrained.load import load_pretrained

CACHED = {"attention": 2, "ffn": 0, "orthogonal": 0}  # layers of the cache that a pair has for itself


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma3_text", "gpt2", "bert", "modernbert"])
def test_old_gradients_are_the_parents_and_those_of_the_members_opposite(name: str) -> None:
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
def test_pairs_train_while_the_parent_stays(name: str, tmp_path: Path) -> None:
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
def test_gradient_checkpointing_changes_no_gradient(reentrant: bool) -> None:
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
def test_adapters_of_peft_go_into_pairs_too() -> None:
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


def test_a_trainer_of_transformers_takes_it(tmp_path: Path) -> None:
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
