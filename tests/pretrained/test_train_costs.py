"""What training a folder costs, foretold and charged, and what a finished run says of itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import Command, snapshot
from text_folders import LENGTH, TINY, VALUES, plain_model, step_folder, text_folder, tiny, trained, write_text
from tiny_models import LAYERS, VOCABULARY

from ppdgrow.checkpoint import read_checkpoint, read_config, read_state
from ppdgrow.checkpoint.format import checkpoint_bytes
from ppdgrow.nn.cost import count_parameters, flops_per_token

WIDTH, INNER, KEYS = 32, 48, 16  # of the tiny Llama: the stream, the MLP, keys and values of two of four heads


def llama_flops() -> int:
    """A multiply-add is two; scores and values over all tokens of a sequence, by the width of all heads."""
    maps = 2 * WIDTH * (2 * WIDTH + 2 * KEYS) + 2 * 3 * WIDTH * INNER
    attention = 2 * 2 * LENGTH * WIDTH
    return LAYERS * (maps + attention) + 2 * WIDTH * VOCABULARY


def test_flops_are_those_of_a_count_by_hand() -> None:
    _, run = trained("llama")
    assert flops_per_token(read_config(step_folder(run, 2))) == llama_flops()
    tokens = VALUES["train.batch_size"] * LENGTH * 2
    ledger = read_state(step_folder(run, 2)).ledger
    assert (ledger.tokens, ledger.flops) == (tokens, 3 * tokens * llama_flops())


def test_pairs_add_their_maps_and_their_attention() -> None:
    """Both members of a pair work on half of the stream, and half of the heads."""
    _, run = trained("llama", pairs=True)
    checkpoint = read_checkpoint(step_folder(run, 2), optimizer=False)
    maps = sum(2 * t.numel() for name, t in checkpoint.tensors.items() if ".pairs." in name and t.ndim == 2)
    attention = 2 * (2 * 2 * LENGTH * WIDTH // 2)
    assert flops_per_token(checkpoint.architecture) == llama_flops() + maps + attention


@pytest.mark.parametrize("name", ["gpt2", "phi3", "roberta"])
def test_parameters_are_those_that_transformers_counts(name: str) -> None:
    folder, run = trained(name)
    expected = plain_model(folder, name).num_parameters()
    assert count_parameters(read_config(step_folder(run, 2))) == expected


@pytest.mark.parametrize(
    ("name", "dtype", "more"),
    [
        ("llama", "float32", ("-o", "train.optimizer=muon")),
        ("gpt2", "bfloat16", ("--only", "pairs", "-o", "train.accumulate=2")),
        pytest.param("bert", "float16", ("--only", "pairs"), marks=pytest.mark.slow),
    ],
)
def test_a_dry_run_foretells_the_run(name: str, dtype: str, more: tuple[str, ...], ppdgrow: Command) -> None:
    write_text()
    folder = text_folder(name, Path("parent"), dtype=dtype)
    if "--only" in more:
        ppdgrow("grow parent --pair ffn --no-eval --out grown --quiet")
        folder = Path("grown")
    line, before = f"train {folder} --steps 2 --out run", snapshot()
    foretold = ppdgrow(f"{line} --dry-run --json", *tiny(*more)).document
    assert snapshot() == before
    done = ppdgrow(f"{line} --json", *tiny(*more)).document
    for key in ("flops", "tokens", "parameters", "run"):
        assert foretold[key] == done[key], key
    step = Path(done["checkpoint"])
    size = sum(file.stat().st_size for file in step.iterdir())
    checkpoint = read_checkpoint(step)
    assert checkpoint_bytes(checkpoint) == size
    assert abs(foretold["checkpoint_bytes"] - size) < 200
    held = sum(tensor.nbytes for state in checkpoint.moments.values() for tensor in state.values())
    memory = foretold["memory"]
    assert memory["optimizer_bytes"] == held
    assert memory["weights_bytes"] == 4 * done["parameters"]
    trained_numbers = sum(checkpoint.tensors[name].numel() for name in checkpoint.moments)
    assert memory["gradients_bytes"] == 4 * trained_numbers
    assert (memory["activations_bytes"] > 0, foretold["layers"]) == (True, read_config(step).num_layers)
    assert ppdgrow(f"{line} --dry-run --json", *tiny(*more)).document["state"] == "finished"


def test_a_dry_run_draws_a_head_without_memory(ppdgrow: Command) -> None:
    write_text()
    folder = text_folder("llama", Path("parent"))
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("LlamaForCausalLM", "LlamaModel"))
    document = ppdgrow("train parent --steps 2 --dry-run --json", *tiny("-o", "model.task=lm")).document
    assert document["parameters"] == count_parameters(read_config(step_folder(trained("llama")[1], 2)))


def test_the_document_and_the_card(ppdgrow: Command) -> None:
    folder, whole = trained("gpt2", pairs=True)
    shutil.copytree(whole, "run")
    state = read_state(step_folder(whole, 2))
    assert state.validation is not None
    document = ppdgrow("train run --steps 1 --out on --json").document
    assert {key: document[key] for key in ("schema", "run", "checkpoint", "step")} == {
        "schema": 1,
        "run": "on",
        "checkpoint": "on/checkpoints/step-00000003",
        "step": 3,
    }
    assert document["validation"].keys() >= {"loss", "accuracy", "perplexity", "bits_per_byte"}
    assert document["validation"]["bits_per_byte"] > 0
    assert [(entry["ids"], entry["layers_after"]) for entry in document["growth"]] == [(["p1", "p2"], 8)]
    card = Path("run/README.md").read_text()
    for part in (
        "A gpt2 of Transformers, for the task lm, trained with ppdgrow.",
        "| layers | 8 |",
        f"| parameters | {count_parameters(read_config(step_folder(whole, 2))):,} |",
        f"| validation loss | {state.validation.loss:.6f} nats |",
        "AutoModelForCausalLM.from_pretrained('run/checkpoints/step-00000002', trust_remote_code=True)",
        "- step 0: grown from 4 to 8 layers by method pair, blocks p1, p2\n",
        f"- step 0: training from {folder.as_posix()} for 2 steps, seed 0",
        "family: pretrained",
    ):
        assert part in card
    assert "None" not in card
    masked = trained("bert")[1]
    assert "bits_per_byte" not in (masked / "README.md").read_text()
    figures = read_state(step_folder(masked, 2)).validation
    assert figures is not None
    assert figures.bits_per_byte is None
    assert "AutoModelForMaskedLM.from_pretrained('run/checkpoints/step-00000002')" in (masked / "README.md").read_text()


def test_what_is_said_of_a_new_run(ppdgrow: Command) -> None:
    write_text()
    text_folder("llama", Path("hf/tiny"), dtype="bfloat16")
    said = ppdgrow("train hf/tiny --steps 1", *TINY)
    run = said.stdout.strip()
    assert run.startswith("runs/tiny-trained-")
    assert "llama of Transformers, 4 layers, width 32, 37.3 k parameters" in said.stderr
    assert "the weights of hf/tiny are stored as bf16: read as fp32" in said.stderr
    assert f"ppdgrow compare hf/tiny {run}" in said.stderr
