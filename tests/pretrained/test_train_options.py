"""Options of `train` on a folder: optimizers, microbatches, precision, determinism; and that it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import Command
from safetensors.torch import load_file, save_file
from text_folders import (
    TINY,
    VALUES,
    add_tokenizer,
    plain_loss,
    plain_model,
    setting_of,
    step_folder,
    text_folder,
    tiny,
    trained,
    write_text,
)
from tiny_models import transformers

from ppdgrow.checkpoint import read_checkpoint, read_jsonl, read_state
from ppdgrow.optim.update_rules import Muon, updates_of
from ppdgrow.pretrained.language_model import LanguageModel
from ppdgrow.training.models import build_model

CPU = torch.device("cpu")
MATRICES = {
    "gpt2": ("c_attn", "c_fc", "c_proj"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "bert": ("query", "key", "value", "dense"),
}


def model_of(run: Path) -> LanguageModel:
    checkpoint = read_checkpoint(step_folder(run, 2), optimizer=False)
    model = build_model(checkpoint.architecture, checkpoint.tensors, CPU)
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize("name", MATRICES)
def test_muon_takes_the_matrices_of_layers_and_pairs(name: str) -> None:
    model = model_of(trained(name, pairs=name != "bert")[1])
    taken = {key for key, update in updates_of(model, "muon").items() if update is Muon}
    layers = model.architecture.layers_prefix
    ends = tuple(f"{end}.weight" for end in MATRICES[name])
    assert taken == {key for key, _ in model.named_parameters() if key.startswith(layers) and key.endswith(ends)}
    assert all(model.get_parameter(key).ndim == 2 for key in taken)
    others = [key for key, parameter in model.named_parameters() if parameter.ndim == 2 and key not in taken]
    assert not any(key.startswith(layers) for key in others)
    assert others  # embeddings and head


def test_a_step_of_muon_is_that_of_torch(ppdgrow: Command) -> None:
    folder, _ = trained("gpt2")
    write_text()
    ppdgrow(
        f"train {folder} --steps 1 --out run --quiet", *tiny("-o", "train.optimizer=muon", "-o", "train.clip_norm=1e6")
    )
    model, run = plain_model(folder, "gpt2").train(), Path("run")
    torch.manual_seed(0)
    plain_loss(model, setting_of(run).training().at(1)).backward()  # type: ignore[no-untyped-call]
    name = "transformer.h.0.mlp.c_fc.weight"
    weight = model.get_parameter(name)
    rate = next(line["lr"] for line in read_jsonl(run / "metrics.jsonl"))
    torch.optim.Muon([weight], lr=rate, adjust_lr_fn="match_rms_adamw", weight_decay=0.1).step()  # type: ignore[no-untyped-call]
    after = load_file(step_folder(run, 1) / "model.safetensors")
    assert torch.equal(after[name], weight)
    moments = read_checkpoint(step_folder(run, 1)).moments
    assert moments[name].keys() == {"momentum_buffer"}
    assert moments["transformer.wte.weight"].keys() == {"exp_avg", "exp_avg_sq", "step"}


def test_microbatches_change_nothing_but_rounding(ppdgrow: Command) -> None:
    write_text()
    folder, _ = trained("llama")  # which drops nothing
    losses = []
    for microbatches in (1, 2):
        more = ("--steps", "2", "--lr", "1e-2", "-o", f"train.accumulate={microbatches}")
        line = f"train {folder} --json --out in-{microbatches}"
        losses.append(ppdgrow(line, *tiny(*more)).document["validation"]["loss"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_bf16_is_an_autocast_over_fp32_weights(ppdgrow: Command) -> None:
    write_text()
    folder, _ = trained("llama")
    ppdgrow(f"train {folder} --steps 1 --precision bf16 --out run --quiet", *TINY)
    step = step_folder(Path("run"), 1)
    assert {tensor.dtype for tensor in load_file(step / "model.safetensors").values()} == {torch.float32}
    state = read_state(step)
    assert state.validation is not None
    assert state.environment.precision == "bf16"
    model, batches = plain_model(step, "llama"), setting_of(Path("run")).evaluation()
    found = {}
    for enabled in (True, False):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            losses = [float(plain_loss(model, batch)) * len(batch.inputs) for batch in batches]
        found[enabled] = sum(losses) / sum(len(batch.inputs) for batch in batches)
    assert state.validation.loss == pytest.approx(found[True], rel=1e-5)
    assert state.validation.loss != pytest.approx(found[False], rel=1e-6)


def test_a_deterministic_run_learns_and_is_silent(ppdgrow: Command) -> None:
    write_text()
    folder, _ = trained("gpt2")
    more = ("--steps", "40", "--deterministic", "--lr", "1e-2", "-o", "train.eval_every=20")
    said = ppdgrow(f"train {folder} --json --out run", *tiny(*more))
    assert said.stderr == ""
    losses = [line["validation"]["loss"] for line in read_jsonl(Path("run/metrics.jsonl")) if "validation" in line]
    assert losses[-1] < losses[0] - 0.2
    assert read_state(step_folder(Path("run"), 40)).environment.deterministic


def test_padding_is_no_matter_and_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 looks for the padding's token in what it is given, which waits for the device, and warns."""
    _, run = trained("gpt2")
    inputs = torch.full((2, 8), 1)  # the tiny configs' padding

    def wait(*_: Any) -> bool:
        raise AssertionError("waited")

    monkeypatch.setattr(torch.Tensor, "__contains__", wait)
    assert model_of(run)(inputs).isfinite().all()
    with pytest.raises(AssertionError, match="waited"):  # control
        plain_model(step_folder(run, 2), "gpt2")(inputs)


def test_a_pooler_that_no_logits_depend_on_is_left_alone(ppdgrow: Command) -> None:
    write_text()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 99}
    transformers().FNetForMaskedLM(transformers().FNetConfig(**sizes)).save_pretrained("parent")
    add_tokenizer(Path("parent"))
    ppdgrow("train parent --steps 4 --out run --quiet", *TINY)
    before, after = load_file("parent/model.safetensors"), load_file("run/checkpoints/step-00000004/model.safetensors")
    same = {name for name, tensor in before.items() if torch.equal(after[name], tensor)}
    assert same == {"fnet.pooler.dense.weight", "fnet.pooler.dense.bias"}


def test_weights_that_are_not_finite_are_named(ppdgrow: Command) -> None:
    write_text()
    folder = text_folder("llama", Path("parent"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"].fill_(torch.nan)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    failed = ppdgrow(f"train {folder} --steps 4 --out run --quiet", *TINY, code=5)
    assert "first in the weights of model.layers.1.mlp.up_proj.weight" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_the_new_group_has_its_own_rate(ppdgrow: Command) -> None:
    write_text()
    folder = trained("llama", pairs=True)[0]
    for factor in ("1.0", "1e-4"):
        line = f"train {folder} --steps 1 --pair-lr {factor} --out pairs-{factor} --quiet"
        ppdgrow(line, *tiny("-o", "train.weight_decay=0.0"))
    start = load_file(folder / "model-00002-of-00002.safetensors")
    far, near = (load_file(step_folder(Path(f"pairs-{factor}"), 1) / "model.safetensors") for factor in ("1.0", "1e-4"))
    for name in start:
        moved = [float((after[name] - start[name]).abs().max()) for after in (far, near)]
        assert moved[0] == pytest.approx(VALUES["train.lr"], rel=0.1)
        assert moved[1] < 1e-3 * moved[0]
    assert torch.equal(far["lm_head.weight"], near["lm_head.weight"])
