"""`grow_plain`: folders that Transformers loads by itself, with what was there before as it was, to the byte."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import (
    DECODERS,
    LAYERS,
    MODELS,
    POST_NORM,
    PRE_NORM,
    inputs,
    load,
    logits,
    make_folder,
    read_config,
    tensors,
    transformers,
)

from ppdgrow.atomic import sha256_file
from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.plain import PLAIN_METHODS, grow_plain, plan_stack
from ppdgrow.pretrained.recognition import is_pretrained
from ppdgrow.pretrained.write import Grown

POSITIONS = (1, 2, 2, 4)
# Of the 12 layers at POSITIONS: which of the parent's each is, or is made after. ModernBERT's first layer has no norm.
SOURCES = (0, 0, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3)
NEW = (1, 2, 4, 5, 6, 7, 10, 11)
VARIANTS = (
    ("float32", True, False),
    ("bfloat16", False, True),
    ("float16", True, True),
    ("float32", False, True),
)


def grow(folder: Path, method: Any, out: Path, positions: tuple[int, ...] = POSITIONS, seed: int = 0) -> Grown:
    return grow_plain(read_folder(folder), method=method, positions=positions, out=out, seed=seed)


def stack_of(folder: Path, positions: tuple[int, ...] = POSITIONS) -> tuple[tuple[int, ...], tuple[int, ...]]:
    stack = plan_stack(read_folder(folder), positions)
    return stack.sources, stack.new


def digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256_file(file) for file in folder.iterdir()}


@pytest.mark.parametrize(("dtype", "tied", "shards"), VARIANTS)
@pytest.mark.parametrize("name", PRE_NORM)
def test_zero_keeps_the_function_to_the_bit(name: str, dtype: str, tied: bool, shards: bool, tmp_path: Path) -> None:
    options = {} if name == "vit" else {"tie_word_embeddings": tied}
    parent = make_folder(name, tmp_path / "parent", dtype=dtype, shards=shards, **options)
    before = digests(parent)
    grown = grow(parent, "zero", tmp_path / "grown")
    assert grown.preserves
    assert digests(parent) == before
    old, new = load(parent, name), load(tmp_path / "grown", name)
    assert new.dtype == getattr(torch, dtype)
    assert torch.equal(logits(old, name), logits(new, name))
    assert grown.parameters_before == old.num_parameters()
    assert grown.parameters_after == new.num_parameters()
    assert (grown.layers_before, grown.layers_after) == (LAYERS, LAYERS + 2 * len(POSITIONS))


@pytest.mark.parametrize("name", MODELS)
def test_copies_are_copies_and_all_else_is_as_it_was(name: str, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent", shards=True)
    grow(parent, "copy", tmp_path / "grown")
    old, new = tensors(parent), tensors(tmp_path / "grown")
    prefix = read_folder(parent).layers
    sources, added = stack_of(parent)
    if name != "modernbert":
        assert (sources, added) == (SOURCES, NEW)
    layer = re.compile(re.escape(prefix) + r"(\d+)\.")
    named = {}
    for full, tensor in new.items():
        match = layer.match(full)
        named[full] = tensor
        source = layer.sub(f"{prefix}{sources[int(match[1])]}.", full) if match else full
        assert torch.equal(tensor, old[source]), full
        assert tensor.dtype == old[source].dtype
    kept = [number for number in range(len(sources)) if number not in added]
    expected = {
        layer.sub(f"{prefix}{kept[int(match[1])]}.", full) if (match := layer.match(full)) else full for full in old
    }
    assert expected <= new.keys()
    assert not torch.equal(logits(load(parent, name), name), logits(load(tmp_path / "grown", name), name))


@pytest.mark.parametrize("name", PRE_NORM)
def test_zero_leaves_all_but_the_maps_into_the_stream(name: str, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent")
    grow(parent, "copy", tmp_path / "copy")
    grow(parent, "zero", tmp_path / "zero")
    copied, zeroed = tensors(tmp_path / "copy"), tensors(tmp_path / "zero")
    changed = [full for full in copied if not torch.equal(copied[full], zeroed[full])]
    assert all(not zeroed[full].any() for full in changed)
    maps = {full for full in changed if full.endswith(".weight")}
    assert len(maps) == 2 * len(NEW), "attention and MLP of each new layer"
    numbers = {int(re.sub(r"\D*(\d+)\..*", r"\1", full)) for full in changed}
    assert numbers == set(stack_of(parent)[1])


@pytest.mark.parametrize("name", POST_NORM)
def test_zero_is_refused_where_the_stream_is_normalised(name: str, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent")
    with pytest.raises(ConfigError, match=r"normalises the stream.*pairs"):
        grow(parent, "zero", tmp_path / "grown")
    assert not (tmp_path / "grown").exists()


@pytest.mark.parametrize("name", MODELS)
def test_fresh_layers_are_drawn_as_the_model_draws_its_own(name: str, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent", dtype="bfloat16")
    grown = grow(parent, "fresh", tmp_path / "one")
    grow(parent, "fresh", tmp_path / "same")
    grow(parent, "fresh", tmp_path / "other", seed=1)
    assert not grown.preserves
    one, same, other = (tensors(tmp_path / each) for each in ("one", "same", "other"))
    assert all(torch.equal(one[full], same[full]) for full in one)
    model = load(tmp_path / "one", name)
    assert model.num_parameters() == grown.parameters_after
    new_layers = tuple(f"{prefix}." for prefix in grown.ids)
    drawn = {full: tensor.float() for full, tensor in one.items() if full.startswith(new_layers)}
    for full, tensor in one.items():
        matrix = full.startswith(new_layers) and tensor.dim() == 2
        assert torch.equal(tensor, other[full]) != matrix, full
    spread = torch.cat([tensor.flatten() for tensor in drawn.values() if tensor.dim() == 2]).std()
    assert 0.005 < spread < 0.03, "initializer_range is 0.02, of some maps divided by the root of the depth"
    assert all(torch.unique(tensor).numel() == 1 for tensor in drawn.values() if tensor.dim() == 1)


@pytest.mark.parametrize("name", DECODERS)
def test_the_cache_has_a_place_for_each_layer(name: str, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent")
    grow(parent, "zero", tmp_path / "grown")
    given = {**inputs(name), "max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    old, new = load(parent, name), load(tmp_path / "grown", name)
    cached = new.generate(**given, use_cache=True)
    assert torch.equal(cached, new.generate(**given, use_cache=False))
    assert torch.equal(cached, old.generate(**given, use_cache=True))
    tokens = inputs(name)["input_ids"]
    cache, steps = transformers().DynamicCache(config=new.config), []
    key = next(name for name in ("cache", "past_key_values") if name in signature(new.forward).parameters)
    with torch.no_grad():
        for at in range(tokens.shape[1]):
            steps.append(new(input_ids=tokens[:, at : at + 1], **{key: cache}, use_cache=True).logits)
    assert len(cache.layers) == LAYERS + len(NEW)
    assert torch.allclose(torch.cat(steps, dim=1), logits(new, name), atol=1e-5)


LOADER = """
import hashlib, json, sys
import torch, transformers
sys.modules["ppdgrow"] = None  # not to be had, as where it is not installed
torch.set_num_threads(1)
digests = {}
for folder, auto, given in json.load(sys.stdin):
    model = getattr(transformers, auto).from_pretrained(folder).eval()
    given = {key: torch.tensor(value) for key, value in given.items()}
    with torch.no_grad():
        logits = model(**given).logits
    digests[folder] = hashlib.sha256(logits.numpy().tobytes()).hexdigest()
print(json.dumps(digests))
"""
AUTO = {"vit": "AutoModelForImageClassification", "modernbert": "AutoModelForMaskedLM"}


def test_a_fresh_process_without_ppdgrow_loads_all_by_the_auto_classes(tmp_path: Path) -> None:
    work = []
    for name in PRE_NORM:
        parent = make_folder(name, tmp_path / name)
        grow(parent, "zero", tmp_path / f"{name}-grown")
        given = {key: value.tolist() for key, value in inputs(name).items()}
        work += [
            (str(folder), AUTO.get(name, "AutoModelForCausalLM"), given)
            for folder in (parent, tmp_path / f"{name}-grown")
        ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOADER],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(set(found.values())) == len(PRE_NORM), "the models differ, parent and grown do not"
    assert all(found[str(tmp_path / name)] == found[str(tmp_path / f"{name}-grown")] for name in PRE_NORM)


@pytest.mark.parametrize("name", ["llama", "gpt2", "vit"])
def test_it_is_saved_and_loaded_again_as_it_is(name: str, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent")
    grow(parent, "zero", tmp_path / "grown")
    model = load(tmp_path / "grown", name)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(logits(load(tmp_path / "saved", name), name), logits(model, name))
    assert read_config(tmp_path / "saved")["ppdgrow"] == read_config(tmp_path / "grown")["ppdgrow"]
    again = grow(tmp_path / "saved", "zero", tmp_path / "again", positions=(0,))
    assert torch.equal(logits(load(tmp_path / "again", name), name), logits(model, name))
    lineage = read_config(tmp_path / "again")["ppdgrow"]["lineage"]
    assert [entry["new_layers"] for entry in lineage] == [[number + 2 for number in NEW], [0, 1]]
    assert again.ids == tuple(f"{read_folder(parent).layers}{number}" for number in (0, 1))


@pytest.mark.parametrize("name", [name for name in PRE_NORM if name != "modernbert"])
@pytest.mark.parametrize("place", [0, LAYERS])
def test_zero_at_both_ends(name: str, place: int, tmp_path: Path) -> None:
    parent = make_folder(name, tmp_path / "parent")
    grow(parent, "zero", tmp_path / "grown", positions=(place,))
    assert torch.equal(logits(load(parent, name), name), logits(load(tmp_path / "grown", name), name))


def test_a_first_layer_of_its_own_make_stays_the_first(tmp_path: Path) -> None:
    parent = make_folder("modernbert", tmp_path / "parent")
    with pytest.raises(ConfigError, match=r"layer 2 is not the same at another place.*--position"):
        grow(parent, "zero", tmp_path / "grown", positions=(0,))
    grow(parent, "zero", tmp_path / "grown", positions=(1,))
    assert stack_of(parent, (1,))[0] == (0, 1, 2, 1, 2, 3)


def test_copies_at_the_end_are_a_stack(tmp_path: Path) -> None:
    parent = make_folder("llama", tmp_path / "parent")
    assert stack_of(parent, (LAYERS,) * 2)[0] == (0, 1, 2, 3, 0, 1, 2, 3)
    assert stack_of(parent, (0,))[0] == (0, 1, 0, 1, 2, 3)
    assert stack_of(parent, (1,) * 3)[0] == (0, *(0,) * 6, 1, 2, 3)


@pytest.mark.parametrize("positions", [(), (5,), (-1,)])
def test_places_that_do_not_exist(positions: tuple[int, ...], tmp_path: Path) -> None:
    parent = make_folder("llama", tmp_path / "parent")
    with pytest.raises(ConfigError, match="expected numbers from 0 to 4"):
        grow(parent, "copy", tmp_path / "grown", positions=positions)


def test_plain_layers_are_not_put_between_pairs(tmp_path: Path) -> None:
    parent = make_folder("llama", tmp_path / "parent")
    base = {key: value for key, value in read_config(parent).items() if key != "model_type"}
    config = {"model_type": "ppdgrow", "base_model_type": "llama", "base": base, "pairs": {}}
    (parent / "config.json").write_text(json.dumps(config))
    folder = read_folder(parent)
    assert (folder.model_type, folder.num_layers, folder.has_pairs) == ("llama", LAYERS, True)
    with pytest.raises(ConfigError, match="has pairs"):
        grow(parent, "zero", tmp_path / "grown")


def test_only_zero_claims_to_keep_the_function() -> None:
    assert {name for name, method in PLAIN_METHODS.items() if method.preserves} == {"zero"}


def test_the_output_is_recognised_and_the_parents_cache_layout_too(tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    make_folder("llama", snapshot)
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / f"blob{number}")
        file.symlink_to(Path("../../blobs") / f"blob{number}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    assert is_pretrained(repository)
    assert is_pretrained(snapshot)
    grown = grow(repository, "zero", tmp_path / "grown")
    assert not any(file.is_symlink() for file in grown.out.iterdir())
    assert is_pretrained(grown.out)
    assert torch.equal(logits(load(snapshot, "llama"), "llama"), logits(load(grown.out, "llama"), "llama"))
    assert "owner/name" in (grown.out / "README.md").read_text()
    assert not is_pretrained(tmp_path)
