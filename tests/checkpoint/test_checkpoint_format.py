"""The bytes of a checkpoint are its content's alone, and what the manifest cannot vouch for is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tiny_checkpoints import edit_json, file_bytes, largest_file, raw_safetensors, relist, tiny_checkpoint, with_tensors

from ppdgrow.checkpoint import (
    RunFolder,
    manifest_digest,
    read_checkpoint,
    read_config,
    read_jsonl,
    read_state,
    weight_files,
    write_checkpoint,
)
from ppdgrow.checkpoint.shards import read_weights
from ppdgrow.errors import InvalidInputError, StorageError

WEIGHTS, TRAINER, INDEX = "model.safetensors", "trainer_state.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943\nsize 12345\n"
ONE = '"dtype":"F32","shape":[1],"data_offsets":[0,4]'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "c", tiny_checkpoint())
    return tmp_path / "c"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "s", tiny_checkpoint(), shard_bytes=80)
    return tmp_path / "s"


def refused(folder: Path, says: str, way_out: str = "older checkpoint") -> None:
    """One line for a full read, and the walk back to a valid checkpoint passes it over for the same reason."""
    with pytest.raises(InvalidInputError, match=says) as caught:
        read_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert way_out in message
    with pytest.raises(InvalidInputError, match=says):
        read_checkpoint(folder, optimizer=False)


# --- what is written


def test_bytes_do_not_depend_on_the_order_of_names_or_the_layout_in_memory(folder: Path, tmp_path: Path) -> None:
    whole = tiny_checkpoint()
    backwards = {name: whole.tensors[name].t().contiguous().t() for name in reversed(whole.tensors)}
    assert not next(iter(backwards.values())).is_contiguous()
    moments = {name: dict(reversed(whole.moments[name].items())) for name in reversed(whole.moments)}
    write_checkpoint(tmp_path / "other", replace(whole, tensors=backwards, moments=moments))
    assert file_bytes(tmp_path / "other") == file_bytes(folder)


def test_control_other_content_gives_other_bytes_and_another_identity(folder: Path, tmp_path: Path) -> None:
    whole = tiny_checkpoint()
    whole.tensors["t0"][0, 0] = torch.nextafter(whole.tensors["t0"][0, 0], torch.tensor(torch.inf))
    write_checkpoint(tmp_path / "other", whole)
    changed = {name for name, data in file_bytes(folder).items() if (tmp_path / "other" / name).read_bytes() != data}
    assert changed == {WEIGHTS, "manifest.json"}
    assert manifest_digest(tmp_path / "other") != manifest_digest(folder)


def test_a_checkpoint_holds_these_files_and_no_other(folder: Path, tmp_path: Path) -> None:
    names = {"config.json", WEIGHTS, TRAINER, "trainer_state.json", "manifest.json"}
    assert set(file_bytes(folder)) == names
    write_checkpoint(tmp_path / "t", tiny_checkpoint(tokenizer="{}\r\n"))
    assert set(file_bytes(tmp_path / "t")) == names | {"tokenizer.json"}
    assert read_checkpoint(tmp_path / "t").tokenizer == "{}\r\n"
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
    with safe_open(folder / TRAINER, framework="pt") as file:
        assert {"exp_avg.t0", "exp_avg_sq.t0", "step.t0", "rng.cpu"} <= set(file.keys())
    for name in names - {WEIGHTS, TRAINER}:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.startswith("{\n  ")
        assert text.endswith("}\n")


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", ["config.json", "trainer_state.json", "tokenizer.json", WEIGHTS, TRAINER])
def test_a_git_lfs_pointer_is_named_as_what_it_is(folder: Path, name: str, sealed: bool) -> None:
    write_checkpoint(folder, tiny_checkpoint(tokenizer="{}"))
    (folder / name).write_bytes(POINTER)
    if sealed:
        relist(folder)
    refused(folder, rf"{name}' is a git-lfs pointer, not the file itself", "run git lfs pull")


@pytest.mark.parametrize("name", ["manifest.json", INDEX, "model-00002.safetensors"])
def test_a_pointer_in_place_of_the_manifest_or_a_shard(sharded: Path, name: str) -> None:
    (sharded / name).write_bytes(POINTER)
    refused(sharded, rf"{name}' is a git-lfs pointer", "run git lfs pull")


@pytest.mark.parametrize("name", ["metrics.jsonl", "growth.jsonl", "test.jsonl"])
def test_a_pointer_in_place_of_a_log(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(InvalidInputError, match=rf"{name}' is a git-lfs pointer"):
        read_jsonl(tmp_path / name)


def test_a_state_without_moments_and_streams_comes_back(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", replace(tiny_checkpoint(), moments={}, rng={}))
    found = read_checkpoint(tmp_path / "c")
    assert found.moments == {}
    assert found.rng == {}


def test_the_cheap_reads_need_no_tensors(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / TRAINER).unlink()
    assert read_config(folder) == tiny_checkpoint().architecture
    assert read_state(folder) == tiny_checkpoint().state
    assert len(manifest_digest(folder)) == 64


def test_dtypes_and_extremes_come_back_to_the_bit(tmp_path: Path) -> None:
    values = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45])
    odd = {
        str(dtype).replace("torch.", ""): values.to(dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    }
    write_checkpoint(tmp_path / "c", with_tensors(tiny_checkpoint(), **odd, empty=torch.zeros(0, 3)))
    found = read_weights(tmp_path / "c")
    for name, tensor in odd.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8))
    assert found["empty"].shape == (0, 3)


def test_a_disk_that_fills_up_midway_leaves_the_old_checkpoint(folder: Path) -> None:
    before = file_bytes(folder)
    large = with_tensors(tiny_checkpoint(2), large=torch.zeros(4000))
    with largest_file(8000), pytest.raises(StorageError, match=r"cannot write .*/c': .*File too large") as caught:
        write_checkpoint(folder, large)
    assert "\n" not in str(caught.value)
    assert file_bytes(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["c"]


def test_a_rename_that_fails_gives_the_old_checkpoint_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file_bytes(folder)
    rename = Path.replace

    def refuse_the_new_one(self: Path, target: Path) -> Path:
        if Path(target) == folder and (self / "manifest.json").read_bytes() != before["manifest.json"]:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", refuse_the_new_one)
    monkeypatch.setattr("ppdgrow.atomic._exchange", lambda one, other: False)
    with pytest.raises(StorageError, match="Input/output error"):
        write_checkpoint(folder, tiny_checkpoint(2))
    assert file_bytes(folder) == before
    assert [path.name for path in folder.parent.iterdir()] == ["c"]


# --- what is refused, though the manifest agrees

BEHIND: dict[str, tuple[str, bytes, str]] = {
    "a tensor named twice": (
        WEIGHTS,
        raw_safetensors(f'{{"t0":{{"dtype":"F32","shape":[9],"data_offsets":[0,36]}},"t0":{{{ONE}}}}}', bytes(4)),
        "occurs twice",
    ),
    "trailing bytes": (WEIGHTS, raw_safetensors(f'{{"t0":{{{ONE}}}}}', bytes(5)), "not a whole safetensors file"),
    "data cut": (WEIGHTS, raw_safetensors(f'{{"t0":{{{ONE}}}}}', bytes(3)), "not a whole safetensors file"),
    "an empty file": (WEIGHTS, b"", "not a whole safetensors file"),
    "8 bytes": (WEIGHTS, bytes(8), "not a whole safetensors file"),
    "an unknown dtype": (
        WEIGHTS,
        raw_safetensors('{"t0":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        "not a whole safetensors file",
    ),
    "optimizer state of no weight": (TRAINER, raw_safetensors(f'{{"step.t9":{{{ONE}}}}}', bytes(4)), "step.t9"),
    "a trainer tensor of no kind": (TRAINER, raw_safetensors(f'{{"lr.t0":{{{ONE}}}}}', bytes(4)), "lr.t0"),
    "half an optimizer state": (TRAINER, raw_safetensors(f'{{"step.t0":{{{ONE}}}}}', bytes(4)), "incomplete .*t0"),
    "config is a list": ("config.json", b"[]", "the document: "),
    "config is not UTF-8": ("config.json", b"\xff\xfe{}", "not UTF-8"),
    "config with infinity": ("config.json", b'{"width": Infinity}', "Infinity is not a JSON number"),
    "tokenizer is not UTF-8": ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
}


@pytest.mark.parametrize("name", BEHIND)
def test_a_bad_file_is_refused_though_the_manifest_agrees(folder: Path, name: str) -> None:
    file, data, says = BEHIND[name]
    (folder / file).write_bytes(data)
    relist(folder)
    refused(folder, says)


def test_control_a_sound_file_made_by_hand_is_read(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(raw_safetensors(f'{{"t0":{{{ONE}}}}}', bytes(4)))
    (folder / TRAINER).write_bytes(raw_safetensors(f'{{"rng.cpu":{{{ONE}}}}}', bytes(4)))
    relist(folder)
    assert read_checkpoint(folder).tensors.keys() == {"t0"}


def test_an_unknown_key_with_a_line_break_still_gives_one_line(folder: Path) -> None:
    edit_json(folder / "config.json", **{"a\nb": 1})
    relist(folder)
    refused(folder, "Extra inputs")


@pytest.mark.parametrize("name", ["config.json", "trainer_state.json", WEIGHTS, TRAINER])
def test_a_file_that_the_manifest_does_not_list_is_not_used(folder: Path, name: str) -> None:
    relist(folder, drop=(name,))
    refused(folder, "not listed")


def test_an_index_or_shard_that_the_manifest_does_not_list_is_not_used(sharded: Path) -> None:
    for name in (INDEX, "model-00002.safetensors"):
        relist(sharded, drop=(name,))
        refused(sharded, "not listed")


@pytest.mark.parametrize("entry", [{"sha256": "0", "bytes": True}, {"sha256": 1, "bytes": 1}, {"bytes": 1}, None, []])
def test_a_manifest_entry_without_digest_and_size_is_refused(folder: Path, entry: object) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    edit_json(folder / "manifest.json", files=files | {WEIGHTS: entry})
    refused(folder, "no sha256 and size")


@pytest.mark.parametrize("key", ["sha256", "bytes"])
def test_a_manifest_that_lies_is_refused(folder: Path, key: str) -> None:
    files = json.loads((folder / "manifest.json").read_text())["files"]
    files[WEIGHTS][key] = files["config.json"][key]
    edit_json(folder / "manifest.json", files=files)
    refused(folder, WEIGHTS)


# --- shards


def test_shards_hold_at_most_the_bytes_asked_for_and_read_as_one(sharded: Path, folder: Path) -> None:
    found, single = read_checkpoint(sharded).tensors, read_checkpoint(folder).tensors
    assert sorted(set(weight_files(sharded).values())) == ["model-00001.safetensors", "model-00002.safetensors"]
    assert weight_files(folder) == {}
    assert found.keys() == single.keys()
    assert all(torch.equal(found[name], single[name]) for name in single)
    assert json.loads((sharded / INDEX).read_text())["metadata"] == {"total_size": 160}


def test_growth_and_its_removal_give_the_sharded_parent_back_byte_for_byte(sharded: Path, tmp_path: Path) -> None:
    parent = read_checkpoint(sharded)
    grown = with_tensors(parent, n0=torch.ones(20), n1=torch.ones(20))
    write_checkpoint(tmp_path / "grown", grown, shard_bytes=80)
    files = weight_files(tmp_path / "grown")
    assert {files["n0"], files["n1"]} == {"model-00003.safetensors", "model-00004.safetensors"}
    write_checkpoint(tmp_path / "back", replace(parent, shards=files), shard_bytes=80)
    assert file_bytes(tmp_path / "back") == file_bytes(sharded)


def test_a_shard_without_tensors_is_dropped_and_its_number_is_free_again(sharded: Path, tmp_path: Path) -> None:
    parent = read_checkpoint(sharded)
    kept = {name: tensor for name, tensor in parent.tensors.items() if name in ("t2", "t3")}
    moments = {name: parent.moments[name] for name in kept}
    write_checkpoint(tmp_path / "less", replace(parent, tensors=kept, moments=moments))
    assert not (tmp_path / "less" / "model-00001.safetensors").exists()
    assert read_checkpoint(tmp_path / "less").tensors.keys() == {"t2", "t3"}


INDEX_DAMAGE: dict[str, tuple[Callable[[dict[str, str]], object], str]] = {
    "up": (lambda files: files.update(t0="../x.safetensors"), "not plain"),
    "absolute": (lambda files: files.update(t0="/x.safetensors"), "not plain"),
    "a separator of Windows": (lambda files: files.update(t0="a\\x.safetensors"), "not plain"),
    "hidden": (lambda files: files.update(t0=".x.safetensors"), "not plain"),
    "a pickle": (lambda files: files.update(t0="pytorch_model.bin"), "not a .safetensors file"),
    "the optimizer's file": (lambda files: files.update(t0=TRAINER), "optimizer"),
    "a missing shard": (lambda files: files.update(t0="model-00009.safetensors"), "missing"),
    "the other shard": (lambda files: files.update(t0="model-00002.safetensors"), "'t0' is not listed for this file"),
    "a tensor too many": (lambda files: files.update(t9="model-00001.safetensors"), "'t9' is listed but in no shard"),
    "a tensor too few": (lambda files: files.pop("t0"), "'t0' is not listed for this file"),
    "no tensors": (lambda files: files.clear(), "weight_map"),
    "a number": (lambda files: files.update(t0=7), "weight_map"),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", INDEX_DAMAGE)
def test_an_index_that_is_wrong_is_refused(sharded: Path, name: str) -> None:
    change, says = INDEX_DAMAGE[name]
    files = weight_files(sharded)
    change(files)
    edit_json(sharded / INDEX, weight_map=files)
    relist(sharded)
    refused(sharded, says)


def test_one_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    (sharded / "model-00002.safetensors").write_bytes((sharded / "model-00001.safetensors").read_bytes())
    relist(sharded)
    refused(sharded, "is not listed for this file")


def test_a_single_file_beside_an_index_is_ambiguous(sharded: Path, folder: Path) -> None:
    (sharded / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    relist(sharded)
    refused(sharded, "which is meant is unclear")


@pytest.mark.parametrize("name", ["../x.safetensors", "/x.safetensors", "x.bin", TRAINER])
def test_an_assignment_cannot_write_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a shard"):
        write_checkpoint(tmp_path / "run" / "c", replace(tiny_checkpoint(), shards={"t0": name}))
    assert list(tmp_path.iterdir()) == []


# --- links


def linked(file: Path, target: Path) -> None:
    """Move a file to `target` and leave a relative link in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    file.rename(target)
    file.symlink_to(os.path.relpath(target, file.parent))


def test_links_stay_inside_a_run_a_hub_repository_or_the_checkpoint(tmp_path: Path) -> None:
    in_run = RunFolder(tmp_path / "run").checkpoint_path(1)
    write_checkpoint(in_run, tiny_checkpoint())
    linked(in_run / WEIGHTS, tmp_path / "run" / "blobs" / "1")
    read_checkpoint(in_run)
    in_hub = RunFolder(tmp_path / "hub" / "snapshots" / "rev").checkpoint_path(1)
    write_checkpoint(in_hub, tiny_checkpoint())
    for name in (WEIGHTS, "manifest.json"):
        linked(in_hub / name, tmp_path / "hub" / "blobs" / name)
    read_checkpoint(in_hub)


@pytest.mark.parametrize("name", [WEIGHTS, "manifest.json", "config.json"])
def test_a_link_out_of_a_lone_checkpoint_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    linked(folder / name, tmp_path / "elsewhere")
    refused(folder, "leads out")


def test_a_chain_of_links_counts_by_where_it_ends(folder: Path, tmp_path: Path) -> None:
    (folder / WEIGHTS).rename(tmp_path / "elsewhere")
    (folder / "inside").symlink_to(tmp_path / "elsewhere")
    (folder / WEIGHTS).symlink_to("inside")
    refused(folder, "leads out")


def test_a_link_to_itself_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)
    refused(folder, "missing or not a file")


def test_a_folder_reached_by_a_link_is_read_as_the_folder_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert read_checkpoint(tmp_path / "alias").state.step == 1
