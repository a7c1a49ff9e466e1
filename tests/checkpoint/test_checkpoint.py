"""Checkpoints: the same bytes for the same content, and every kind of damage found before anything is used."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ppdgrow.atomic import sha256_file
from ppdgrow.checkpoint import (
    Checkpoint,
    RunFolder,
    locate_checkpoint,
    manifest_digest,
    read_checkpoint,
    weight_files,
    write_checkpoint,
)
from ppdgrow.config.architecture import TokenInput, new_architecture
from ppdgrow.config.schema import ModelConfig
from ppdgrow.config.state import DataIdentity, Environment, Ledger, TrainerState, Validation
from ppdgrow.errors import ConfigError, InvalidInputError, StorageError
from ppdgrow.optim.update_rules import AdamW, Muon, Update


def checkpoint(step: int = 3, update: type[Update] = AdamW) -> Checkpoint:
    torch.manual_seed(step)
    tensors = {"b.weight": torch.randn(4, 3), "a.weight": torch.randn(5), "c.weight": torch.randn(2, 2)}
    moments = {
        name: {entry: zero + torch.rand(()) for entry, zero in update.new_state(t).items()}
        for name, t in tensors.items()
    }
    state = TrainerState(
        step=step,
        lr_factor=1.0,
        ledger=Ledger(tokens=10, flops=100, seconds=1.5),
        validation=Validation(loss=1.25, accuracy=0.5),
        train_loss=1.5,
        data=DataIdentity(name="toy", tokenizer="byte", sequence_length=4, sha256={}, validation_examples=2),
        environment=Environment(torch="2", device="cpu", threads=1, cpu_capability="AVX2", precision="fp32"),
    )
    architecture = new_architecture(
        ModelConfig(layers=1, width=8), "lm", TokenInput(vocabulary_size=5, sequence_length=4)
    )
    return Checkpoint(architecture, tensors, moments, {"cpu": torch.get_rng_state()}, state, '{"a": "\u00e9"}')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = RunFolder(tmp_path / "a run [red]")
    write_checkpoint(run.checkpoint_path(3), checkpoint())
    return run.checkpoint_path(3)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256_file(path) for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("update", [AdamW, Muon])
def test_round_trip_gives_the_same_values_and_the_same_bytes(tmp_path: Path, update: type[Update]) -> None:
    folder = tmp_path / "once"
    write_checkpoint(folder, checkpoint(update=update))
    found, expected = read_checkpoint(folder), checkpoint(update=update)
    assert {frozenset(state) for state in found.moments.values()} == {frozenset(update.entries)}
    assert found.architecture == expected.architecture
    assert found.state == expected.state
    assert found.tokenizer == expected.tokenizer
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)
    assert all(
        torch.equal(found.moments[name][key], expected.moments[name][key])
        for name in expected.moments
        for key in expected.moments[name]
    )
    assert torch.equal(found.rng["cpu"], expected.rng["cpu"])
    write_checkpoint(tmp_path / "again", found)
    assert hashes(tmp_path / "again") == hashes(folder)
    assert read_checkpoint(folder, optimizer=False).moments == {}


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_checkpoint(tmp_path / "run" / "step", checkpoint())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "run" / "step").iterdir()} == {0o640}
    assert (tmp_path / "run" / "step").stat().st_mode & 0o777 == 0o750


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def edit_json(path: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def honest_manifest(folder: Path) -> None:
    """Make the manifest agree with the damaged files, so that the next line of defence is reached."""

    def update(document: dict) -> None:  # type: ignore[type-arg]
        for name, entry in document["files"].items():
            if (folder / name).is_file():
                entry |= {"sha256": sha256_file(folder / name), "bytes": (folder / name).stat().st_size}

    edit_json(folder / "manifest.json", update)


def append_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "no manifest.json"),
    "manifest cut": (lambda f: cut(f / "manifest.json", 50), "not valid JSON"),
    "manifest is a list": (lambda f: (f / "manifest.json").write_text("[]"), "expected format 1"),
    "missing weights": (lambda f: (f / "model.safetensors").unlink(), "missing"),
    "weights empty": (lambda f: cut(f / "model.safetensors", 0), "0 bytes, expected"),
    "weights 8 bytes": (lambda f: cut(f / "model.safetensors", 8), "8 bytes, expected"),
    "weights cut": (lambda f: cut(f / "model.safetensors", 300), "300 bytes, expected"),
    "weights longer": (lambda f: append_byte(f / "model.safetensors"), "cut off or altered"),
    "one bit": (lambda f: flip(f / "model.safetensors"), "sha256"),
    "one bit of the optimizer": (lambda f: flip(f / "trainer_state.safetensors"), "sha256"),
    "config changed": (lambda f: edit_json(f / "config.json", lambda d: d.update(width=10)), "config.json"),
    "manifest lists another folder": (
        lambda f: edit_json(f / "manifest.json", lambda d: d["files"].update({"../x": d["files"]["config.json"]})),
        "not plain",
    ),
}
BEHIND_THE_MANIFEST: dict[str, tuple[Callable[[Path], object], str]] = {
    "header cut": (lambda f: cut(f / "model.safetensors", 20), "not a whole safetensors file"),
    "absurd header": (
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}"),
        "not a whole safetensors file",
    ),
    "a pickle renamed": (
        lambda f: (f / "model.safetensors").write_bytes(pickle.dumps({"a": 1})),
        "not a whole safetensors file",
    ),
    "config with a negative value": (lambda f: edit_json(f / "config.json", lambda d: d.update(width=-8)), "width"),
    "config with an unknown key": (lambda f: edit_json(f / "config.json", lambda d: d.update(x=1)), "x: Extra inputs"),
    "config with duplicate keys": (
        lambda f: (f / "config.json").write_text('{"a": 1, "a": 2}'),
        "a key occurs twice",
    ),
    "config with a bomb": (lambda f: (f / "config.json").write_text("[" * 100_000), "nested too deeply"),
    "state with NaN": (
        lambda f: (f / "trainer_state.json").write_text((f / "trainer_state.json").read_text().replace("1.25", "NaN")),
        "NaN is not a JSON number",
    ),
    "state of another format": (
        lambda f: edit_json(f / "trainer_state.json", lambda d: d.update(format=2)),
        "format",
    ),
}


def refused(folder: Path, says: str) -> None:
    before = hashes(folder)
    with pytest.raises(InvalidInputError, match=says) as caught:
        read_checkpoint(folder)
    assert "\n" not in str(caught.value)
    assert hashes(folder) == before


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused(folder: Path, name: str) -> None:
    damage, says = DAMAGE[name]
    damage(folder)
    refused(folder, says)


@pytest.mark.parametrize("name", BEHIND_THE_MANIFEST)
def test_damage_with_a_manifest_that_agrees_is_refused(folder: Path, name: str) -> None:
    damage, says = BEHIND_THE_MANIFEST[name]
    damage(folder)
    honest_manifest(folder)
    refused(folder, says)


@pytest.mark.parametrize("name", ["config.json", "trainer_state.json", "manifest.json"])
@pytest.mark.parametrize("number", [True, 1.0, 0])
def test_no_other_value_passes_for_format_1(folder: Path, name: str, number: object) -> None:
    """In Python `True == 1.0 == 1`."""
    edit_json(folder / name, lambda d: d.update(format=number))
    honest_manifest(folder)
    refused(folder, "format")


def test_control_the_undamaged_checkpoint_reads_with_a_rewritten_manifest(folder: Path) -> None:
    honest_manifest(folder)
    read_checkpoint(folder)


def test_large_weights_are_cut_into_shards_and_keep_them_as_the_model_grows(tmp_path: Path) -> None:
    old = checkpoint()
    write_checkpoint(tmp_path / "old", old, shard_bytes=50)
    assert len(set(weight_files(tmp_path / "old").values())) == 3
    before = hashes(tmp_path / "old")
    read = read_checkpoint(tmp_path / "old")
    write_checkpoint(tmp_path / "grown", replace(read, tensors=read.tensors | {"new": torch.ones(3)}))
    after = hashes(tmp_path / "grown")
    shards = [name for name in before if name.startswith("model-")]
    assert all(after[name] == before[name] for name in shards)
    assert len([name for name in after if name.startswith("model-")]) == len(shards) + 1
    assert torch.equal(read_checkpoint(tmp_path / "grown").tensors["new"], torch.ones(3))


@pytest.mark.parametrize(
    ("shard", "says"),
    [("../x.safetensors", "not plain"), ("/etc/passwd", "not a .safetensors"), ("gone.safetensors", "missing")],
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, shard: str, says: str) -> None:
    write_checkpoint(tmp_path / "c", checkpoint(), shard_bytes=50)
    (tmp_path / "x.safetensors").write_bytes((tmp_path / "c" / "model-00001.safetensors").read_bytes())
    edit_json(
        tmp_path / "c" / "model.safetensors.index.json",
        lambda d: d["weight_map"].update({next(iter(d["weight_map"])): shard}),
    )
    honest_manifest(tmp_path / "c")
    refused(tmp_path / "c", says)


def test_a_symlink_inside_the_tree_loads_and_one_out_of_it_does_not(tmp_path: Path) -> None:
    """The layout of hub caches: snapshots/REV/file -> ../../blobs/HASH."""
    snapshot = tmp_path / "hub" / "snapshots" / "rev"
    write_checkpoint(snapshot, checkpoint())
    blobs = tmp_path / "hub" / "blobs"
    blobs.mkdir()
    shutil.move(snapshot / "model.safetensors", blobs / "1234")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1234")
    read_checkpoint(snapshot)
    shutil.move(blobs / "1234", tmp_path / "outside")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "outside")
    refused_link = pytest.raises(InvalidInputError, match="leads out of the checkpoint's own tree")
    with refused_link:
        read_checkpoint(snapshot)


def test_the_newest_valid_checkpoint_is_found_and_why_newer_ones_are_not(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (3, 6, 9):
        write_checkpoint(run.checkpoint_path(step), checkpoint(step))
    flip(run.checkpoint_path(9) / "model.safetensors")
    skipped: list[str] = []
    assert run.newest_valid(skipped) == run.checkpoint_path(6)
    assert len(skipped) == 1
    assert "step-00000009" in skipped[0]
    assert locate_checkpoint(tmp_path) == (run, run.checkpoint_path(6))
    assert locate_checkpoint(run.checkpoint_path(3)) == (run, run.checkpoint_path(3))


def test_pruning_keeps_the_newest_and_of_equal_losses_the_earliest(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step in (1, 2, 3, 4):
        write_checkpoint(run.checkpoint_path(step), checkpoint(step))
    run.prune(2)
    assert [path.name for path in run.checkpoints()] == ["step-00000001", "step-00000003", "step-00000004"]


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name, says in (("gone", "does not exist"), ("file", "is a file"), ("empty", "has no checkpoints")):
        with pytest.raises(InvalidInputError, match=says):
            locate_checkpoint(tmp_path / name)


def test_a_failing_write_leaves_the_old_checkpoint_and_no_leftovers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, digest = hashes(folder), manifest_digest(folder)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ppdgrow.checkpoint.format.write_weights", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_checkpoint(folder, checkpoint(4))
    assert hashes(folder) == before
    assert manifest_digest(folder) == digest
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_too_little_space_is_said_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(StorageError, match=r"needs \d\.\d+ kB, but only 10 B are free"):
        write_checkpoint(folder, checkpoint(4))


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with run.lock(), pytest.raises(ConfigError, match="another process"), RunFolder(tmp_path).lock():
        pass
    with run.lock():
        pass
