"""Hostile checkpoints at every command: one line, exit 4, no code run, nothing written, memory bounded."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import TINY, Command, snapshot
from safetensors.torch import load_file, save_file
from tampering import seal

import ppdgrow as package
from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.errors import InvalidInputError

COMMANDS = [
    "train g --steps 1 --dry-run --out o",
    "train g --steps 1 --out o --quiet",
    "grow g --out o",
    "grow g --remove last --out o",
    "probe g",
    "compare g h",
    "compare g h --test",
]
CONFIG, STATE, WEIGHTS, TRAINER = "config.json", "trainer_state.json", "model.safetensors", "trainer_state.safetensors"
Damage = Callable[[Path], object]
ROOT = str(Path(package.__file__).parents[1])


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def edit(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return damage


def text(name: str, old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        before = (folder / name).read_text()
        assert old in before
        (folder / name).write_text(before.replace(old, new, 1))

    return damage


def weights(change: Callable[[dict[str, torch.Tensor]], object], name: str = WEIGHTS) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / name)
        change(tensors)
        save_file(tensors, folder / name, metadata={"format": "pt"})

    return damage


def raw(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def header(document: object, data: bytes = b"", length: int | None = None) -> bytes:
    encoded = json.dumps(document).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def cast(dtype: torch.dtype) -> Damage:
    return weights(lambda t: t.update({name: tensor.to(dtype) for name, tensor in t.items()}))


def blocks(number: int) -> Damage:
    layer = {"type": "layer", "kind": "attention", "state": None, "born": 0}
    return edit(CONFIG, lambda d: d.update(blocks=[{"id": f"l{i + 1}", **layer} for i in range(number)]))


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HUGE = {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 2**60]}
BEHIND: dict[str, Damage] = {
    "config: width": edit(CONFIG, lambda d: d.update(width=2**40)),
    "config: ffn": edit(CONFIG, lambda d: d.update(ffn_multiplier=2**40)),
    "config: vocabulary": edit(CONFIG, lambda d: d["input"].update(vocabulary_size=2**40)),
    "config: sequence length": edit(CONFIG, lambda d: d["input"].update(sequence_length=2**40)),
    "config: heads": edit(CONFIG, lambda d: d.update(heads=2**40)),
    "config: 65536 blocks": blocks(65536),
    "config: negative": edit(CONFIG, lambda d: d.update(width=-2)),
    "config: unknown key": edit(CONFIG, lambda d: d.update(news=1)),
    "config: long key": edit(CONFIG, lambda d: d.update({"x\n\x1b" * 9999: 1})),
    "config: many keys": edit(CONFIG, lambda d: d.update({f"k{i}": i for i in range(10**5)})),
    "config: 10**400": text(CONFIG, '"width": 16', '"width": 1' + "0" * 400),
    "config: 10**5000": text(CONFIG, '"width": 16', '"width": 1' + "0" * 5000),
    "config: 1e999": text(CONFIG, '"dropout": 0.0', '"dropout": 1e999'),
    "config: NaN": text(CONFIG, '"dropout": 0.0', '"dropout": NaN'),
    "config: surrogate": edit(CONFIG, lambda d: d["blocks"][0].update(kind="\ud800")),
    "config: nul": edit(CONFIG, lambda d: d["blocks"][0].update(kind="\0")),
    "config: nested": raw(CONFIG, b"[" * 10**6),
    "config: 64 MB of lists": raw(CONFIG, b"[" + b"[]," * (21 * 2**20) + b"[]]"),
    "config: another block": edit(CONFIG, lambda d: d["blocks"][0].update(id="l999999999")),
    "config: newer": edit(CONFIG, lambda d: d.update(format=2)),
    "state: step": edit(STATE, lambda d: d.update(step=7)),
    "state: step 10**30": edit(STATE, lambda d: d.update(step=10**30)),
    "state: flops 10**400": edit(STATE, lambda d: d["ledger"].update(flops=10**400)),
    "state: flops 10**99": edit(STATE, lambda d: d["ledger"].update(flops=10**98)),
    "state: tokens 10**99": edit(STATE, lambda d: d["ledger"].update(tokens=10**98)),
    "state: surrogate": edit(STATE, lambda d: d["data"].update(name="\ud800")),
    "weights: header of 2**60": raw(WEIGHTS, header({}, length=2**60)),
    "weights: absurd shape": raw(WEIGHTS, header({"head.out.weight": HUGE}, bytes(8))),
    "weights: overlap": raw(WEIGHTS, header({"a": ONE, "b": ONE}, bytes(4))),
    "weights: nested header": raw(WEIGHTS, struct.pack("<Q", 10**5) + b"[" * 10**5),
    "weights: int8": cast(torch.int8),
    "weights: bool": cast(torch.bool),
    "weights: float8": cast(torch.float8_e4m3fn),
    "weights: complex": cast(torch.complex64),
    "weights: one fp16": weights(lambda t: t.update({"head.out.weight": t["head.out.weight"].half()})),
    "weights: 0-dim": weights(lambda t: t.update({"head.out.bias": torch.tensor(1.0)})),
    "weights: zero size": weights(lambda t: t.update({"head.out.bias": torch.zeros(0)})),
    "weights: one more": weights(lambda t: t.update(extra=torch.zeros(1))),
    "optimizer: integers": weights(lambda t: t.update({"exp_avg.head.out.bias": torch.zeros(256).int()}), TRAINER),
    "optimizer: shape": weights(lambda t: t.update({"exp_avg.head.out.bias": torch.zeros(3)}), TRAINER),
    "pickle as weights": raw(WEIGHTS, pickle.dumps(Bomb())),
    "pickle as optimizer": raw(TRAINER, pickle.dumps(Bomb())),
    "pickle as config": raw(CONFIG, pickle.dumps(Bomb())),
}


def flip(name: str) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[-2] ^= 1
        (folder / name).write_bytes(data)

    return damage


def entries(change: Callable[[dict[str, Any]], object]) -> Damage:
    return edit("manifest.json", lambda d: change(d["files"]))


ALTERED: dict[str, Damage] = {
    **{f"one bit of {name}": flip(name) for name in (CONFIG, STATE, WEIGHTS, TRAINER)},
    "manifest: no format": edit("manifest.json", lambda d: d.pop("format")),
    "manifest: newer": edit("manifest.json", lambda d: d.update(format=2)),
    "manifest: format true": edit("manifest.json", lambda d: d.update(format=True)),
    "manifest: itself": entries(lambda f: f.update({"manifest.json": f[CONFIG]})),
    "manifest: a file that is not there": entries(lambda f: f.update(gone=f[CONFIG])),
    "manifest: a name with a separator": entries(lambda f: f.update({"a/b": f[CONFIG]})),
    "manifest: a long name": entries(lambda f: f.update({"a" * 300: f[CONFIG]})),
    "manifest: negative size": entries(lambda f: f[CONFIG].update(bytes=-1)),
    "manifest: boolean size": entries(lambda f: f[CONFIG].update(bytes=True)),
    "manifest: huge size": entries(lambda f: f[CONFIG].update(bytes=10**90)),
    "manifest: upper case": entries(lambda f: f[CONFIG].update(sha256=f[CONFIG]["sha256"].upper())),
    "manifest: twice": text("manifest.json", '"config.json"', '"config.json": {}, "config.json"'),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grown run `g`, its copy `h`, over a small text."""
    place = tmp_path_factory.mktemp("template")
    with contextlib.chdir(place):
        Path("words.txt").write_text("some words of a text\n" * 400)
        train = ["train", "--data", "words.txt", "--layers", "2", "--steps", "10", "--no-decay", "--out", "s", *TINY]
        for line in (train, ["grow", "s", "--out", "g"]):
            assert run(build_app(), line) == 0
        shutil.rmtree("s")
        shutil.copytree("g", "h")
    return place


@pytest.fixture
def folder(template: Path, ppdgrow: Command) -> Path:
    shutil.copytree(template, Path(), dirs_exist_ok=True)
    (found,) = RunFolder(Path("g")).checkpoints()
    return found


def refused(line: str) -> str:
    before = snapshot()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(build_app(), line.split())
    told = err.getvalue()
    assert code == 4, f"{line}: {code}\n{told}"
    assert told.startswith("error: "), told
    assert told.count("\n") == 1, told
    assert len(told) < 1200, told
    assert "'g/" in told, told
    assert told.isprintable() or told[:-1].isprintable()
    assert not out.getvalue()
    assert snapshot() == before
    return told


EVERY = pytest.param(True, marks=pytest.mark.slow, id="every command")


def refused_everywhere(name: str, every: bool) -> None:
    """By every command, or by three of them that change from damage to damage."""
    turn = sum(map(ord, name))
    for line in COMMANDS if every else [COMMANDS[(turn + step) % len(COMMANDS)] for step in (0, 2, 5)]:
        assert any(word in refused(line) for word in ("older checkpoint", "upgrade", "restore"))
    with pytest.raises(InvalidInputError):
        package.load("g")
    assert not Path("executed").exists()


LARGE = ("config: 65536 blocks", "config: many keys", "config: 64 MB of lists")


@pytest.mark.parametrize("every", [pytest.param(False, id="some"), EVERY])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in BEHIND])
def test_content_that_is_wrong_behind_an_agreeing_manifest(folder: Path, name: str, every: bool) -> None:
    BEHIND[name](folder)
    seal(folder)
    refused_everywhere(name, every)


@pytest.mark.parametrize("every", [pytest.param(False, id="some"), EVERY])
@pytest.mark.parametrize("name", ALTERED)
def test_what_the_manifest_finds_and_a_manifest_that_lies(folder: Path, name: str, every: bool) -> None:
    ALTERED[name](folder)
    refused_everywhere(name, every)


@pytest.mark.parametrize("every", [pytest.param(False, id="some"), EVERY])
@pytest.mark.parametrize("name", ["index", "shard"])
def test_sharded_checkpoints(folder: Path, name: str, every: bool) -> None:
    whole = read_checkpoint(folder)
    write_checkpoint(folder, whole, shard_bytes=5000)
    index, shard = folder / "model.safetensors.index.json", folder / "model-00002.safetensors"
    assert shard.exists()
    if name == "shard":
        weights(lambda t: t.update({key: tensor.half() for key, tensor in t.items()}), shard.name)(folder)
    else:
        edit(index.name, lambda d: d["weight_map"].update({"head.out.bias": "../x.safetensors"}))(folder)
    seal(folder)
    refused_everywhere(name, every)


def test_control_the_template_is_taken_by_every_command(folder: Path) -> None:
    seal(folder)
    for line in COMMANDS:
        shutil.rmtree("o", ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert run(build_app(), line.split()) == 0, line
    assert package.load("g") is not None


def test_control_the_bomb_is_one(folder: Path) -> None:
    pickle.loads(pickle.dumps(Bomb()))
    assert Path("executed").exists()


LIMITED = """
import resource, sys
import ppdgrow.api
import ppdgrow.cli.probe
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 700 * 2**20,) * 2)
sys.exit(run(build_app(), sys.argv[1:]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads its own size from /proc")
@pytest.mark.parametrize("name", ["config: width", "config: 64 MB of lists", "weights: absurd shape"])
def test_little_memory_is_enough_to_refuse(folder: Path, name: str) -> None:
    BEHIND[name](folder)
    seal(folder)
    child = subprocess.run(
        [sys.executable, "-c", LIMITED, "probe", "g"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": ROOT},
    )
    assert child.returncode == 4, child.stderr
    assert child.stderr.count("\n") == 1, child.stderr


@pytest.mark.parametrize("name", ["config: ffn", "config: newer", "weights: one fp16", "optimizer: shape"])
def test_resume_walks_back_and_says_so(folder: Path, name: str, ppdgrow: Command) -> None:
    line = "train g --steps 12 --no-decay --out o -o train.save_every=5 -o train.keep=3 --quiet"
    done = ppdgrow(line, "--json").document
    newest = RunFolder(Path("o")).checkpoints()[-1]
    BEHIND[name](newest)
    seal(newest)
    again = ppdgrow(line)
    assert f"skipped a damaged checkpoint: '{newest}" in again.stderr
    assert ppdgrow(line, "--json").document["validation"] == done["validation"]


LINES: dict[str, tuple[str, str]] = {
    "a list": ("metrics", "[1]"),
    "NaN": ("metrics", '{"step": 99, "train_loss": NaN}'),
    "1e999": ("metrics", '{"step": 99, "train_loss": 1, "x": 1e999}'),
    "no step": ("metrics", '{"train_loss": 1.0}'),
    "out of order": ("metrics", '{"step": 3, "train_loss": 1.0}'),
    "no loss": ("metrics", '{"step": 99}'),
    "huge": ("metrics", '{"step": 99, "train_loss": "' + "x" * 10**6 + '"}'),
    "ids of numbers": ("growth", '{"event": "grow", "step": 10, "ids": [1]}'),
    "ids null": ("growth", '{"event": "grow", "step": 10, "ids": null}'),
    "until text": ("growth", '{"event": "decision", "step": 10, "until": "x"}'),
    "trial a list": ("growth", '{"event": "decision", "step": 10, "trial": []}'),
    "step huge": ("growth", '{"event": "grow", "step": 1' + "0" * 400 + "}"),
    "surrogate": ("growth", '{"event": "grow", "step": 10, "method": "\\ud800"}'),
    "parent a number": ("growth", '{"event": "train", "step": 10, "parent": 3}'),
}


@pytest.mark.parametrize("name", LINES)
def test_bad_lines_of_the_logs(folder: Path, name: str) -> None:
    log, line = LINES[name]
    with Path(f"g/{log}.jsonl").open("a") as file:
        file.write(line + "\n")
    for command in ("train g --steps 1 --out o --quiet", "grow g --out o", "compare g h"):
        assert f"g/{log}.jsonl" in refused(command)


def test_control_an_unknown_event_is_left_alone(folder: Path, ppdgrow: Command) -> None:
    with Path("g/growth.jsonl").open("a") as file:
        file.write('{"event": "news", "step": 10, "method": 3}\n')
    ppdgrow("train g --steps 1 --out o --quiet")


def test_a_pipe_in_place_of_a_log_does_not_hang(folder: Path) -> None:
    Path("g/metrics.jsonl").unlink()
    os.mkfifo("g/metrics.jsonl")
    with pytest.raises(InvalidInputError, match="not a file"):
        package.compare("g", "h")


def test_weights_that_are_not_finite_are_no_bug(folder: Path) -> None:
    weights(lambda t: t.update({name: tensor * torch.nan for name, tensor in t.items()}))(folder)
    seal(folder)
    for line, expected in zip(COMMANDS, (0, 5, 7, 5, 7, 0, 5), strict=True):
        shutil.rmtree("o", ignore_errors=True)
        err = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
            assert run(build_app(), line.split()) == expected, line
        assert "Traceback" not in err.getvalue()
