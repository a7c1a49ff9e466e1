"""`train` of a folder computes what Transformers computes, and what it saves is what Transformers loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from text_folders import FAMILIES, LENGTH, MASK, plain_loss, plain_model, setting_of, step_folder, trained
from tiny_models import inputs, logits, read_config, transformers

from ppdgrow.checkpoint import read_checkpoint, read_state
from ppdgrow.nn.cost import count_parameters
from ppdgrow.training.models import build_model

CPU = torch.device("cpu")
FEW = ("gpt2", "llama", "bert")  # of which the runs with pairs are not slow tests
CASES = [
    pytest.param(name, pairs, id=f"{name}{'-pairs' * pairs}", marks=[pytest.mark.slow] * (pairs and name not in FEW))
    for name in FAMILIES
    for pairs in (False, True)
]
of_each = pytest.mark.parametrize(("name", "pairs"), CASES)


def gradients(run: Path, name: str) -> dict[str, torch.Tensor]:
    """What plain Transformers makes of the run's first batch, from the folder that it started from."""
    folder = run.parent / ("grown" if (run.parent / "grown").exists() else "parent")
    model = plain_model(folder, name).train()
    torch.manual_seed(0)
    plain_loss(model, setting_of(run).training().at(1)).backward()  # type: ignore[no-untyped-call]
    return {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}


@of_each
def test_the_losses_are_those_of_transformers(name: str, pairs: bool) -> None:
    _, run = trained(name, pairs=pairs)
    batches = setting_of(run).evaluation()
    assert {batch.inputs.shape[1] for batch in batches} == {LENGTH}
    for step in (1, 2):
        with torch.no_grad():
            losses = [plain_loss(plain_model(step_folder(run, step), name), batch) for batch in batches]
        counts = [int((batch.targets >= 0).sum()) for batch in batches]
        expected = sum(float(loss) * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
        found = read_state(step_folder(run, step)).validation
        assert found is not None
        assert found.loss == pytest.approx(expected, rel=1e-6)


@of_each
def test_the_first_gradients_are_those_of_transformers(name: str, pairs: bool) -> None:
    """AdamW's first moment after one step is the gradient by 1 - beta; dropout draws alike from the seed."""
    _, run = trained(name, pairs=pairs)
    moments = read_checkpoint(step_folder(run, 1)).moments
    expected = gradients(run, name)
    trained_names = {key for key in expected if ".pairs." in key} if pairs else set(expected)
    assert moments.keys() == trained_names
    for key in trained_names:
        assert torch.equal(moments[key]["exp_avg"], torch.zeros(()).lerp(expected[key], 1 - 0.9)), key


def test_control_other_dropout_gives_other_gradients() -> None:
    _, run = trained("gpt2")
    setting, model = setting_of(run), plain_model(run.parent / "parent", "gpt2").train()
    torch.manual_seed(1)
    plain_loss(model, setting.training().at(1)).backward()  # type: ignore[no-untyped-call]
    one, other = model.lm_head.weight.grad, gradients(run, "gpt2")["transformer.wte.weight"]
    assert not torch.equal(one, other)


@of_each
def test_a_step_is_a_folder_that_transformers_loads(name: str, pairs: bool) -> None:
    folder, run = trained(name, pairs=pairs)
    step = step_folder(run, 2)
    checkpoint = read_checkpoint(step, optimizer=False)
    model = plain_model(step, name)
    ours = build_model(checkpoint.architecture, checkpoint.tensors, CPU).eval()
    with torch.no_grad():
        assert torch.equal(ours(inputs(name)["input_ids"]), logits(model, name))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    stored = load_file(step / "model.safetensors")
    assert stored.keys() == {key for key, _ in model.named_parameters()}
    assert count_parameters(checkpoint.architecture) == sum(parameter.numel() for parameter in model.parameters())
    config = read_config(step)
    assert (config["base"] if pairs else config)["dtype"] == "float32"
    assert (step / "modeling_ppdgrow.py").exists() == pairs
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (step / file).exists() == (folder / file).exists()
        assert not (folder / file).exists() or (step / file).read_bytes() == (folder / file).read_bytes()
    tokenizer = transformers().AutoTokenizer.from_pretrained(step)
    assert tokenizer("w7 [MASK]", add_special_tokens=False)["input_ids"] == [7 + MASK + 1, MASK]


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text", "bert", "roberta", "modernbert"])
def test_tied_embeddings_stay_tied(name: str) -> None:
    _, run = trained(name)
    model = plain_model(step_folder(run, 2), name)
    outputs, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert outputs is embedding
    vocabulary = [key for key, t in load_file(step_folder(run, 2) / "model.safetensors").items() if len(t) == 99]
    assert len([key for key in vocabulary if not key.endswith("bias")]) == 1
