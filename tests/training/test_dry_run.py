"""The dry run: what it foresees is what a run does, and it leaves no trace."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_recipes import BAD_TRAINING
from command_line import TINY, Command
from torch._subclasses.fake_tensor import FakeTensorMode

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_config, read_jsonl
from ppdgrow.config.architecture import Architecture, ImageInput, InputSpec, TokenInput, new_architecture
from ppdgrow.config.schema import ModelConfig, Recipe, TrainConfig
from ppdgrow.config.state import Ledger
from ppdgrow.data.batches import Batch
from ppdgrow.engine.device import Precision
from ppdgrow.errors import ConfigError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import Model, build_model
from ppdgrow.optim.schedule import make_schedule, phases, schedule_line
from ppdgrow.surgery import GrowthRequest, plan_growth, untie
from ppdgrow.training.context import Setting
from ppdgrow.training.resource_estimate import memory_estimate, saved_bytes
from ppdgrow.training.resume import Start

CPU = torch.device("cpu")
GROWTH = "growth=[{at: 10, pair: [attention, ffn], trial: {steps: 5, epsilon: 1e9}, candidates: [pair, zero]}]"
LINE = "train --layers 2 --steps 20 --out a"


def tree() -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(Path().rglob("*"))
    }


def test_it_leaves_no_trace_and_names_what_the_run_would_have(ppdgrow: Command) -> None:
    shown = ppdgrow(f"{LINE} --dry-run", *TINY)
    assert tree() == {}
    assert shown.stdout.splitlines()[-1] == "a"
    assert "a, new" in shown.stdout
    assert "train.warmup_steps 2" in shown.stdout
    assert "train.lr" not in shown.stdout, "a default is not listed"
    document = ppdgrow(f"{LINE} --dry-run --json", *TINY).document
    assert (document["dry_run"], document["state"], document["run"]) == (True, "new", "a")
    assert (document["first_step"], document["last_step"]) == (1, 20)
    trained = ppdgrow(f"{LINE} --json", *TINY).document
    assert {key: document[key] for key in ("parameters", "tokens", "flops")} == {
        key: trained[key] for key in ("parameters", "tokens", "flops")
    }
    assert document["sources"]["model.layers"] == "--layers"
    assert document["recipe"]["model"]["width"] == 16


@pytest.mark.parametrize(("line", "code", "says"), BAD_TRAINING, ids=[line for line, _, _ in BAD_TRAINING])
def test_it_refuses_what_a_run_refuses(ppdgrow: Command, line: str, code: int, says: str) -> None:
    refused = ppdgrow(f"train {line}", code=code)
    assert ppdgrow(f"train {line} --dry-run", code=code).stderr == refused.stderr
    assert tree() == {}


def test_it_refuses_too_little_data_and_growths_without_room(ppdgrow: Command) -> None:
    for more, code, says in (
        ("train.batch_size=16000000", 4, "expected at least one batch of 16000000"),
        ("data.sequence_length=1048576", 4, "windows of 1048577 tokens, expected at least one batch"),
        ("growth=[{at: 19, pair: ffn}]", 2, "the run ends at step 20"),
    ):
        line = [LINE, "--width", "16", "--precision", "fp32", "--quiet", "-o", "train.warmup_steps=2", "-o", more]
        refused = ppdgrow(*line, code=code).stderr
        assert says in refused
        assert ppdgrow(*line, "--dry-run", code=code).stderr == refused
        assert tree() == {}, "nor does a run leave anything then"


def test_a_folder_that_holds_the_run_or_another(ppdgrow: Command, stop_at: Any) -> None:
    stop_at(7, 15)
    ppdgrow(LINE, *TINY, code=143)
    (Path("a") / ".lock").unlink()
    before = tree()
    document = ppdgrow(f"{LINE} --dry-run --json", *TINY).document
    assert (document["state"], document["resumes_at_step"]) == ("resumes", 7)
    assert "go on from step 7" in ppdgrow(f"{LINE} --dry-run", *TINY).stdout
    for more in (["--seed", "1"], ["--resume", "never"]):
        refused = ppdgrow(LINE, *more, *TINY, code=2)
        assert ppdgrow(f"{LINE} --dry-run", *more, *TINY, code=2).stderr == refused.stderr
    assert tree() == before
    ppdgrow(LINE, *TINY)
    before = tree()
    assert ppdgrow(f"{LINE} --dry-run --json", *TINY).document["state"] == "finished"
    with RunFolder(Path("a")).lock():
        assert "another process" in ppdgrow(f"{LINE} --dry-run", *TINY, code=2).stderr
    assert tree() == before


def test_data_that_changed_is_refused(ppdgrow: Command, stop_at: Any, tmp_path: Path) -> None:
    (tmp_path / "data/wikitext-2").mkdir(parents=True)
    for name in ("train", "valid", "test"):
        (tmp_path / f"data/wikitext-2/{name}.txt").write_text(f"some {name} text of a few words\n" * 50)
    line = f"{LINE} --data wikitext2 --data-dir data -o data.tokenizer=byte"
    stop_at(7, 15)
    ppdgrow(line, *TINY, code=143)
    ppdgrow(f"{line} --dry-run", *TINY)
    with (tmp_path / "data/wikitext-2/valid.txt").open("a") as file:
        file.write("one line more\n")
    assert "validation split of wikitext2" in ppdgrow(f"{line} --dry-run", *TINY, code=4).stderr


def test_a_growth_plan_is_told_and_costed(ppdgrow: Command) -> None:
    document = ppdgrow(f"{LINE} --dry-run --json", *TINY, "-o", GROWTH).document
    shown = ppdgrow(f"{LINE} --dry-run", *TINY, "-o", GROWTH).stdout
    assert (
        "at step 10: 2 -> 6 layers, 2 candidates: 2 attention/ffn pairs, interleave (after blocks 1, 2 of 2)" in shown
    )
    assert "after growth" in shown
    (planned,) = document["growth"]
    assert (planned["earliest_step"], planned["layers_before"], planned["trial_steps"]) == (10, 2, 5)
    assert [candidate["method"] for candidate in planned["candidates"]] == ["pair", "zero"]

    ppdgrow(LINE, *TINY, "-o", GROWTH.replace("pair, zero", "pair"), "--quiet")
    one = ppdgrow(f"{LINE} --dry-run --json", *TINY, "-o", GROWTH.replace("pair, zero", "pair")).document
    newest = RunFolder(Path("a")).newest_valid()
    assert newest is not None
    state = read_checkpoint(newest).state
    assert one["layers_after_growth"] == read_config(newest).num_layers == 6
    assert one["flops"] == state.ledger.flops
    assert one["trial_flops"] == state.ledger.trials.flops < document["trial_flops"]
    size = sum(file.stat().st_size for file in newest.iterdir())
    assert abs(one["checkpoint_bytes_after_growth"] - size) < 200


def test_a_growth_that_is_always_kept_costs_no_trial(ppdgrow: Command) -> None:
    growth = "growth=[{at: 10, trial: {steps: 5, rule: always}}]"
    document = ppdgrow(f"{LINE} --dry-run --json", *TINY, "-o", growth).document
    assert document["trial_flops"] == 0
    assert document["growth"][0]["rule"] == "always"
    assert "rule always: kept without a judgement" in ppdgrow(f"{LINE} --dry-run", *TINY, "-o", growth).stdout
    ppdgrow(LINE, *TINY, "-o", growth, "--quiet")
    newest = RunFolder(Path("a")).newest_valid()
    assert newest is not None
    assert read_checkpoint(newest).state.ledger.flops == document["flops"]


def test_the_size_of_a_checkpoint_is_that_on_the_disk(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --pair attention,orthogonal --pairs 2 --out g --quiet")
    for line in (
        "train --layers 2 --steps 10 --out s",
        "train --layers 2 --steps 10 --out w -o data.tokenizer=bpe:300",
        "train g --steps 6 --out t",
        "train g --steps 6 --out u --only pairs",
        "train g --steps 6 --out m -o train.optimizer=muon",
        "train m --steps 6 --out n --only pairs -o train.optimizer=adamw",
    ):
        foreseen = ppdgrow(f"{line} --dry-run --json", *TINY).document
        ppdgrow(f"{line} --quiet", *TINY)
        newest = RunFolder(Path(foreseen["run"])).newest_valid()
        assert newest is not None
        size = sum(file.stat().st_size for file in newest.iterdir())
        assert abs(foreseen["checkpoint_bytes"] - size) < 200
        newest_ids = read_config(newest).newest_ids if "--only" in line else {}
        trained = [
            state
            for name, state in read_checkpoint(newest).moments.items()
            if not newest_ids or name.split(".")[1] in newest_ids
        ]
        held = sum(tensor.nbytes for state in trained for tensor in state.values())
        assert foreseen["memory"]["optimizer_bytes"] == held


def test_on_from_a_checkpoint_its_tied_pairs_count_twice(ppdgrow: Command, shallow: Path) -> None:
    grown = ppdgrow("grow shallow --pairs 2 --out g --json").document
    for more in ("", "--only pairs"):
        document = ppdgrow(f"train g --steps 6 --dry-run --json {more}").document
        assert document["parameters"] == grown["parameters_untied"] > grown["parameters_after"]
        assert (document["first_step"], document["last_step"]) == (11, 16)
    memory = document["memory"]
    assert memory["gradients_bytes"] < memory["weights_bytes"] == 4 * document["parameters"]
    everything = ppdgrow("train g --steps 6 --dry-run --json").document["memory"]
    assert everything["activations_bytes"] > memory["activations_bytes"]
    assert everything["gradients_bytes"] == everything["weights_bytes"]
    assert everything["optimizer_bytes"] > 2 * everything["weights_bytes"] > memory["optimizer_bytes"]


FAMILIES: dict[str, tuple[Any, str, InputSpec]] = {
    "transformer": ({}, "lm", TokenInput(vocabulary_size=50, sequence_length=70)),
    "masked": ({"norm": "rms"}, "mlm", TokenInput(vocabulary_size=50, sequence_length=12)),
    "tied": ({"tie_embeddings": True, "dropout": 0.1}, "lm", TokenInput(vocabulary_size=50, sequence_length=12)),
    "images": ({}, "classify", ImageInput(channels=3, height=8, width=8, patch_size=4, num_classes=5)),
    "mlp": ({"family": "mlp"}, "classify", ImageInput(channels=3, height=8, width=8, patch_size=1, num_classes=5)),
    "recurrence": ({"family": "sequence"}, "lm", TokenInput(vocabulary_size=50, sequence_length=70)),
    "convolution": (
        {"family": "sequence", "mixer": "convolution"},
        "lm",
        TokenInput(vocabulary_size=50, sequence_length=12),
    ),
}


def architecture_of(name: str, stream: str, pairs: tuple[str, ...] = ()) -> Architecture:
    keys, task, spec = FAMILIES[name]
    model = ModelConfig.model_validate({"layers": 2, "width": 16, "heads": 2, "stream": stream} | keys)
    architecture = new_architecture(model, task, spec)  # type: ignore[arg-type]
    if not pairs:
        return architecture
    plan = plan_growth(architecture, GrowthRequest(pairs, len(pairs), source="random"), step=1)
    return untie(plan.architecture, {}, {})[0]


def batch_of(architecture: Architecture, examples: int = 3) -> Batch:
    spec = architecture.input
    if isinstance(spec, TokenInput):
        ids = torch.zeros(examples, spec.sequence_length, dtype=torch.int64)
        return Batch(ids, ids.clone())
    assert isinstance(spec, ImageInput)
    shape = (examples, spec.channels, spec.height, spec.width)
    return Batch(torch.zeros(shape), torch.zeros(examples, dtype=torch.int64))


def fake_activations(architecture: Architecture, precision: Precision, batch: Batch, **train: Any) -> int:
    fake = FakeTensorMode()
    with fake:
        start = Start(architecture, dict(initial_tensors(architecture, 0)), {}, {}, 0, 0.0, Ledger())
    recipe = Recipe(train=TrainConfig(batch_size=len(batch.targets), **train))
    setting = Setting(CPU, precision, None, recipe)  # type: ignore[arg-type]
    found = memory_estimate(start, setting=setting, batch=batch, device=CPU, data_bytes=0, fake=fake)
    return found["activations_bytes"]


def real_model(architecture: Architecture) -> Model:
    return build_model(architecture, initial_tensors(architecture, 0), CPU)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize("name", FAMILIES)
def test_activations_are_counted_as_a_real_forward_keeps_them(name: str, stream: str, precision: Precision) -> None:
    pairs = {"transformer": ("attention", "ffn"), "mlp": ("ffn", "depthwise")}.get(name, ())
    architecture = architecture_of(name, stream, pairs)
    batch = batch_of(architecture)
    real = saved_bytes(real_model(architecture), batch.inputs, batch.targets, device=CPU, precision=precision)
    assert fake_activations(architecture, precision, batch) == real
    assert fake_activations(architecture, precision, batch_of(architecture, 4)) > real


def test_activations_of_linear_pairs_and_of_a_piece() -> None:
    architecture = architecture_of("transformer", "coupled", ("orthogonal", "linear"))
    batch = batch_of(architecture, 4)
    real = saved_bytes(real_model(architecture), batch.inputs, batch.targets, device=CPU, precision="fp32")
    assert fake_activations(architecture, "fp32", batch) == real
    microbatches = zip(batch.inputs.tensor_split(3), batch.targets.tensor_split(3), strict=True)
    kept = [
        saved_bytes(real_model(architecture), *microbatch, device=CPU, precision="fp32") for microbatch in microbatches
    ]
    assert fake_activations(architecture, "fp32", batch, accumulate=3) == max(kept) < real


def test_sizes_beyond_counting_are_refused() -> None:
    ids = torch.empty(2**24, 2**20, dtype=torch.int64, device="meta")
    architecture = architecture_of("transformer", "coupled").model_copy(
        update={"input": TokenInput(vocabulary_size=2**30, sequence_length=2**20)}
    )
    with pytest.raises(ConfigError, match=r"cannot even be counted .*: use a smaller train\.batch_size"):
        fake_activations(architecture, "fp32", Batch(ids, ids))


def test_a_huge_recipe_takes_neither_time_nor_memory(ppdgrow: Command) -> None:
    line = "train --layers 20 --width 65536 --out a --dry-run"
    document = ppdgrow(f"{line} --json").document
    assert document["precision_is_measured_at_start"] is True
    assert document["precision"] == "fp32"
    assert document["memory"]["weights_bytes"] == 4 * document["parameters"] > 10**12
    assert document["disk_bytes"] == 3 * document["checkpoint_bytes"] > document["free_bytes"]
    shown = ppdgrow(line)
    assert "warning: 3 checkpoints need" in shown.stderr
    assert "measured at the start of the run, counted as fp32" in shown.stdout
    assert tree() == {}


SCHEDULES = [
    {},
    {"schedule": "cosine"},
    {"decay": False},
    {"warmup_steps": 0},
    {"decay_fraction": 1.0},
    {"decay_fraction": 0.0},
    {"horizon": 2000},
    {"horizon": 2000, "schedule": "cosine"},
]


@pytest.mark.parametrize("initial", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("values", SCHEDULES, ids=str)
@pytest.mark.parametrize("first", [0, 300])
def test_the_phases_of_the_learning_rate_are_those_of_its_factor(
    first: int, values: dict[str, Any], initial: float
) -> None:
    config = TrainConfig(steps=1000, **values)
    last = first + 1000
    schedule, _ = make_schedule(config, first=first, last=last, initial=initial)
    found = phases(schedule, config.lr, first=first, last=last)
    assert [step for phase in found for step in range(phase.first_step, phase.last_step + 1)] == [
        *range(first + 1, last + 1)
    ]
    for phase in found:
        rates = [config.lr * schedule.factor(step) for step in range(phase.first_step, phase.last_step + 1)]
        assert (phase.first_lr, phase.last_lr) == (rates[0], rates[-1])
        steps = list(pairwise(rates))
        if phase.name == "peak":
            assert set(rates) == {config.lr}
        elif phase.name == "decay":
            assert all(earlier > later for earlier, later in steps)
        elif values.get("decay_fraction") != 1.0:
            assert all(earlier < later for earlier, later in steps)


def test_the_learning_rate_as_a_line() -> None:
    schedule, _ = make_schedule(TrainConfig(), first=0, last=1000, initial=0.0)
    line = schedule_line(schedule, 2e-3, first=0, last=1000)
    assert line == "warm-up to 2.0e-03 at step 100, 2.0e-03 to step 700, decay to 6.6e-06 at step 1000"
    schedule, _ = make_schedule(TrainConfig(horizon=2000), first=500, last=1500, initial=1.0)
    line = schedule_line(schedule, 2e-3, first=500, last=1500)
    assert line == "2.0e-03 to step 1400, decay to 1.7e-03 at step 1500 (part of a schedule over steps 1-2000)"
    schedule, _ = make_schedule(TrainConfig(decay=False), first=10, last=20, initial=1.0)
    assert schedule_line(schedule, 2e-3, first=10, last=20) == "2.0e-03 to step 20, no decay"


def test_the_document_is_the_runs_metrics_to_be(ppdgrow: Command) -> None:
    document = ppdgrow(f"{LINE} --dry-run --json", *TINY).document
    ppdgrow(f"{LINE} --quiet", *TINY)
    rates = {line["step"]: line["lr"] for line in read_jsonl(Path("a/metrics.jsonl")) if "train_loss" in line}
    for phase in document["learning_rate"]:
        assert phase["first_lr"] == rates[phase["first_step"]]
        assert phase["last_lr"] == rates[phase["last_step"]]
    assert json.dumps(document)
