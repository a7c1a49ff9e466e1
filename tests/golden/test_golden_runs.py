"""Golden runs: every family, stream, kind and method at a tiny size, growth with decisions, and a run that is resumed.

A change that is not meant to change numbers leaves `golden.json` as it is. Final losses are held to 0.1 % on every
machine; the sha256 of weights, optimizer state, random streams, metrics and events where torch and the processor are
those of the recording. After a change that is meant (CHANGELOG, Numerics): `python tests/golden/test_golden_runs.py`.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import ppdgrow
from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_jsonl
from ppdgrow.config.kinds import FAMILIES, Family

GOLDEN = Path(__file__).with_name("golden.json")
EVENT_KEYS = ("event", "step", "until", "growth", "trial", "decision", "ids", "kinds", "positions", "method", "theta_0")
EVENT_FIGURES = ("loss_before", "loss_after", "bit_exact", "passed", "pair_lr", "attempt", "retry", "kept")
TINY = {
    "model.width": 16,
    "model.heads": 2,
    "model.layers": 2,
    "data.sequence_length": 16,
    "train.batch_size": 4,
    "train.eval_batches": 2,
    "train.eval_every": 4,
    "train.save_every": 6,
    "train.warmup_steps": 2,
    "train.lr": 1e-2,
}
MODELS: dict[str, dict[str, Any]] = {
    "transformer-coupled": {"data.name": "corpus.txt"},
    "transformer-residual": {"data.name": "corpus.txt", "model.stream": "residual"},
    "transformer-mlm": {"data.name": "corpus.txt", "model.task": "mlm", "model.norm": "rms"},
    "transformer-images": {"data.name": "images", "model.stream": "residual"},
    "mlp-coupled": {"data.name": "images", "model.family": "mlp"},
    "mlp-residual": {"data.name": "images", "model.family": "mlp", "model.stream": "residual"},
    "recurrence-coupled": {"data.name": "corpus.txt", "model.family": "sequence"},
    "recurrence-residual": {"data.name": "corpus.txt", "model.family": "sequence", "model.stream": "residual"},
    "convolution-coupled": {"data.name": "corpus.txt", "model.family": "sequence", "model.mixer": "convolution"},
}
Case = Callable[[], str]


def _shallow(model: str, **more: Any) -> None:
    values = TINY | {"train.steps": 6, "train.decay": False} | MODELS[model] | more
    ppdgrow.train(values=values, out="shallow", quiet=True)


def _continued(parent: str, steps: int = 6, **more: Any) -> str:
    ppdgrow.train(parent, values={"train.steps": steps, **more}, out="final", quiet=True)
    return "final"


def _all_kinds(model: str) -> str:
    _shallow(model)
    family: Family = MODELS[model].get("model.family", "transformer")
    ppdgrow.grow("shallow", pair=list(FAMILIES[family].pairs), out="grown", quiet=True)
    return _continued("grown")


def _method(method: Any, position: str, moments: Any) -> str:
    _shallow("transformer-coupled")
    ppdgrow.grow("shallow", method=method, position=position, moments=moments, out="grown", quiet=True)
    return _continued("grown")


def _random_pairs() -> str:
    _shallow("transformer-residual", **{"model.dropout": 0.1})
    only: dict[str, Any] = {"train.only": "pairs", "train.pair_lr": 0.5}
    ppdgrow.grow(
        "shallow", pair="attention", pairs=2, position="end", source="random", scale=0.3, out="grown", quiet=True
    )
    return _continued("grown", **only)


def _decisions() -> str:
    """One growth that is kept, one that harms and is tried again at a lower rate before it is rejected."""
    _shallow("transformer-coupled")
    kept = {"at": 8, "pair": "attention", "trial": {"steps": 3, "rule": "twin", "margin": 1.0}}
    harmful = {"at": 14, "method": "fresh", "scale": 30.0, "trial": {"steps": 3, "epsilon": -1.0}}
    entries = [kept, harmful | {"on_reject": {"lower_lr": 0.5, "retries": 1}}]
    run = _continued("shallow", 16, growth=entries)
    made = [event["decision"] for event in read_jsonl(Path(run) / "growth.jsonl") if event["event"] == "decision"]
    assert made == ["accept", "reject", "reject"]
    return run


def _resumed() -> str:
    """Ended in the middle by the first signal, and taken up again by the same call."""
    _shallow("transformer-coupled")
    values = {"train.steps": 12, "train.accumulate": 2}
    with pytest.MonkeyPatch.context() as patch:
        save = RunFolder.prune

        def interrupted(self: RunFolder, keep: int) -> None:
            save(self, keep)
            raise ppdgrow.InterruptedRunError("stopped by the test", 2)

        patch.setattr(RunFolder, "prune", interrupted)
        with pytest.raises(ppdgrow.InterruptedRunError):
            ppdgrow.train("shallow", values=values, out="final", quiet=True)
    assert ppdgrow.train("shallow", values=values, out="final", quiet=True)["step"] == 18
    return "final"


CASES: dict[str, Case] = {
    **{f"all kinds, {model}": partial(_all_kinds, model) for model in MODELS},
    "zero": lambda: _method("zero", "interleave", "copy_v"),
    "copy at the end": lambda: _method("copy", "end", "copy"),
    "fresh at the start": lambda: _method("fresh", "start", "fresh"),
    "random pairs": _random_pairs,
    "decisions": _decisions,
    "resumed": _resumed,
}


def write_data() -> None:
    """Text and images of their own, so that no interpreter and no data set decides the numbers."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(60)]
    lines = (" ".join(draw.choices(words, k=9)) for _ in range(600))
    Path("corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for label in ("one", "two"):
        Path("images", label).mkdir(parents=True)
        for number in range(24):
            pixels = bytes(draw.randrange(256) for _ in range(8 * 8 * 3))
            Image.frombytes("RGB", (8, 8), pixels).save(Path("images", label, f"{number}.png"))


def digest(run: str) -> str:
    """sha256 of all that a run left behind, but for clock and place."""
    folder = RunFolder(Path(run))
    newest = folder.newest_valid()
    assert newest is not None
    checkpoint = read_checkpoint(newest)
    tensors = {f"weight.{name}": tensor for name, tensor in checkpoint.tensors.items()}
    tensors |= {f"{key}.{name}": t for name, state in checkpoint.moments.items() for key, t in state.items()}
    tensors |= {f"rng.{name}": tensor for name, tensor in checkpoint.rng.items()}
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(name.encode() + tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    steps: dict[int, dict[str, Any]] = {}
    for line in read_jsonl(folder.metrics_path):  # figures of one step may stand on one line or on several
        steps.setdefault(line["step"], {}).update({key: value for key, value in line.items() if key != "timing"})
    events = [
        {key: event[key] for key in (*EVENT_KEYS, *EVENT_FIGURES) if key in event}
        for event in read_jsonl(folder.growth_path)
    ]
    for document in (steps, events, checkpoint.state.ledger.flops, checkpoint.state.ledger.trials.flops):
        total.update(json.dumps(document, sort_keys=True).encode())
    return total.hexdigest()


def final_loss(run: str) -> float:
    newest = RunFolder(Path(run)).newest_valid()
    assert newest is not None
    figures = read_checkpoint(newest).state.validation
    assert figures is not None
    return figures.loss


def machine() -> str:
    """What the bits depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch {torch.__version__.partition('+')[0]}, {platform.machine()} {capability}, {_vendor()}"


def _vendor() -> str:
    """The processor's maker: its libraries take other kernels by it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    found = {key.strip(): value.strip() for key, value in fields.items()}
    return f"{found.get('vendor_id', '?')} family {found.get('cpu family', '?')} model {found.get('model', '?')}"


@pytest.mark.parametrize("name", CASES)
def test_a_golden_run_ends_as_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data()
    run = CASES[name]()
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert final_loss(run) == pytest.approx(recorded["losses"][name], rel=1e-3)
    if machine() in recorded["sha256"]:
        assert digest(run) == recorded["sha256"][machine()][name]


def test_control_another_seed_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data()
    for name, seed in (("one", 0), ("two", 1)):
        values = TINY | MODELS["transformer-coupled"] | {"train.steps": 4, "train.seed": seed}
        ppdgrow.train(values=values, out=name, quiet=True)
    assert digest("one") != digest("two")


def record() -> None:
    """Run all cases and write `golden.json`: losses anew, the sha256 of this machine beside those of others."""
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {"losses": {}, "sha256": {}}
    torch.set_num_threads(1)
    hashes: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, case in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                patch.chdir(folder)
                patch.setenv("PPDGROW_CACHE", folder)
                write_data()
                run = case()
                hashes[name], loss = digest(run), final_loss(run)
                before = recorded["losses"].get(name)
                if before is None or abs(loss / before - 1) > 1e-3:
                    recorded["losses"][name] = loss
            patch.undo()
    if any(recorded["losses"].get(name) is None for name in CASES):
        sys.exit("a case has no loss")
    recorded["sha256"][machine()] = hashes
    GOLDEN.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
