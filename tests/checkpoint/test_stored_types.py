"""Weights that another program stored in another type are read as fp32, by every command, and that is said once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from command_line import TINY, Command
from safetensors.torch import load_file
from tampering import seal
from test_hostile_checkpoints import TRAINER, WEIGHTS, weights

import ppdgrow as package

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


def store_as(dtype: torch.dtype, checkpoint: Path, *files: str) -> None:
    for name in files or (WEIGHTS,):
        floating = weights(
            lambda t: t.update({key: x.to(dtype) for key, x in t.items() if x.is_floating_point()}), name
        )
        floating(checkpoint)
    seal(checkpoint)


def files_of(run: Path) -> dict[Path, bytes]:
    """All but the one file that `compare --test` adds."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "test.jsonl"}


@pytest.mark.parametrize("name", TYPES)
def test_every_command_reads_them_as_fp32_and_says_so(name: str, shallow: Path, ppdgrow: Command) -> None:
    step = shallow / "checkpoints" / "step-00000010"
    store_as(TYPES[name], step, WEIGHTS, TRAINER)
    before = files_of(shallow)
    says = f"the weights of {step} are stored as {name}: read as fp32"
    stored = {key: tensor.float() for key, tensor in load_file(step / WEIGHTS).items()}

    for more in ("", " --no-eval"):
        grown = ppdgrow(f"grow {shallow} --out grown{len(more)}{more}")
        assert grown.stderr.count(says) == 1
        assert "identical to the last bit" in grown.stdout
        written = load_file(Path(f"grown{len(more)}") / "checkpoints" / step.name / WEIGHTS)
        assert {tensor.dtype for tensor in written.values()} == {torch.float32}
        assert all(torch.equal(written[key], tensor) for key, tensor in stored.items())
    assert ppdgrow("probe grown0 --dtype fp32").stderr.count("stored as") == 0, "what is written is fp32"
    assert ppdgrow(f"probe {shallow} --dtype fp32").stderr.count(says) == 1
    assert ppdgrow(f"train {shallow} --steps 5 --out on").stderr.count(says) == 1
    ppdgrow("train grown0 --steps 5 --out grown-on --quiet")
    assert says in ppdgrow("compare on shallow --test").stderr
    assert {p.dtype for p in package.load(shallow).parameters()} == {torch.float32}
    assert files_of(shallow) == before


def test_a_run_goes_on_from_them(ppdgrow: Command) -> None:
    line = "train --layers 2 --steps 10 --no-decay --out run"
    ppdgrow(f"{line} --quiet", *TINY)
    checkpoints = Path("run") / "checkpoints"
    shutil.rmtree(checkpoints / "step-00000010")
    store_as(torch.bfloat16, checkpoints / "step-00000006")
    assert "step-00000006 are stored as bf16: read as fp32" in ppdgrow(line, *TINY).stderr
    assert load_file(checkpoints / "step-00000010" / WEIGHTS)["head.out.weight"].dtype == torch.float32


@pytest.mark.parametrize("name", TYPES)
def test_theta_0_that_was_rounded_is_no_changed_one(name: str, shallow: Path, ppdgrow: Command) -> None:
    ppdgrow(f"grow {shallow} --out grown --quiet")
    store_as(TYPES[name], Path("grown") / "checkpoints" / "step-00000010")
    found = ppdgrow("probe grown --dtype fp32 --json").document
    assert found["passed"] is True
    assert found["pairs"][0]["theta_0"] == ("as recorded" if name == "fp64" else "rounded")
    assert any("rounded" in note for note in found["notes"]) == (name != "fp64")


def test_control_fp32_is_not_worth_a_word(shallow: Path, ppdgrow: Command) -> None:
    assert "stored as" not in ppdgrow(f"grow {shallow} --out grown").stderr
