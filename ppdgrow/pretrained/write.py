"""Writing a grown folder beside its parent: the parent's bytes as they are, new tensors in shards of their own.

Weights are streamed, so that memory does not depend on their size. What belongs to the model goes along: tokenizer,
generation settings, chat template, licence; not its weights in other formats, which would be the parent's.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ppdgrow.atomic import free_bytes, new_folder, storage_errors
from ppdgrow.checkpoint.format import MANIFEST, STATE
from ppdgrow.checkpoint.safe_read import PLAIN_NAME, json_text, plain_file, read_json
from ppdgrow.checkpoint.shards import INDEX
from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.folder import CONFIG, PretrainedFolder, TensorEntry, read_range, reading

CARD = "README.md"
PARENT_CARD = "README.parent.md"
SHARD = "model-{:05d}-of-{:05d}.safetensors"
NAME_BYTES = 200  # of a tensor in the header of its file and in the index, beside its name
SHARD_BYTES = 5 * 10**9  # as Transformers splits
# Of weights in whatever format, and of the optimizer's state.
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".gguf", ".ot")
CODE = "modeling_ppdgrow.py"  # of a model with pairs
REWRITTEN = (CONFIG, CARD, INDEX, CODE, MANIFEST, STATE)  # the last two of a checkpoint


@dataclass(frozen=True)
class NewTensor:
    """A tensor that the parent does not have; `chunks` gives its bytes anew at each call, some at a time."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    chunks: Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class Grown:
    """What a growth did.

    Args:
        out: the new folder.
        method: `zero`, `copy`, `fresh`, or the kinds of pairs.
        layers_before: the parent's layers.
        layers_after: a pair counts as two.
        parameters_before: the parent's, tied ones once.
        parameters_after: the same of the new folder.
        positions: the place of each insertion: after how many of the parent's layers.
        ids: the new layers or pairs, by name.
        theta_0: where the first weights come from, in words.
        notes: what a user should know, a line each.
        preserves: whether the function is that of the parent, to the bit.
    """

    out: Path
    method: str
    layers_before: int
    layers_after: int
    parameters_before: int
    parameters_after: int
    positions: tuple[int, ...]
    ids: tuple[str, ...]
    theta_0: str
    notes: tuple[str, ...]
    preserves: bool


def refuse_output(folder: PretrainedFolder, out: Path) -> None:
    """A `ConfigError` where the new folder would lie in its parent, or the parent in it, or holds something."""
    one, other = folder.path.resolve(), out.resolve()
    if one == other or one in other.parents or other in one.parents:
        raise ConfigError(
            f"--out {str(out)!r} and its parent {str(folder.path)!r} lie in each other: choose another --out"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {str(out)!r} is there and not empty: choose another, or remove it")


def refuse_positions(folder: PretrainedFolder, positions: Sequence[int]) -> None:
    """A `ConfigError` where there is no place after so many of the parent's layers, or none is named."""
    count = folder.num_layers
    if not positions or not all(0 <= place <= count for place in positions):
        raise ConfigError(
            f"positions {list(positions)} of a model of {count} layers: expected numbers from 0 to {count}"
        )


def write_grown(
    folder: PretrainedFolder,
    out: Path,
    *,
    config: Mapping[str, Any],
    new: Sequence[NewTensor],
    renamed: Callable[[str], str] = lambda name: name,
    card: str,
    texts: Mapping[str, str] | None = None,
    finish: Callable[[Path], None] | None = None,
) -> tuple[str, ...]:
    """Write the grown folder whole or not at all; returns notes on what was not taken along.

    Args:
        folder: the parent, which is only read.
        out: a folder that is empty or not there.
        config: the new config.json.
        new: the new tensors, which fill shards in this order.
        renamed: the new name of a tensor of the parent.
        card: the new README.md, below the parent's front matter.
        texts: further files by name, such as code.
        finish: called with the whole folder before it gets its name; what it raises leaves nothing behind.
    """
    refuse_output(folder, out)
    with reading(folder.path):
        files, left = carried_over(folder.path)
        front, old_card = _old_card(folder.path)
        carried = sum(source.stat().st_size for source in files.values())
    written = {CARD: front + card, CONFIG: json_text(dict(config)), **(texts or {})}
    if old_card is not None and PARENT_CARD not in files:
        written[PARENT_CARD] = old_card
    names = sum(NAME_BYTES + 2 * len(name.encode()) for name in (*folder.entries, *(tensor.name for tensor in new)))
    size = _size(folder, new) + carried + names + sum(len(text.encode()) for text in written.values())
    with storage_errors(out, size):
        if free_bytes(out) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with new_folder(out, replace=False) as temporary:
        for name, source in files.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            _write_chunks(temporary / name, read_range(source))
        _write_weights(folder, temporary, new, renamed)
        for name, text in written.items():
            (temporary / name).write_text(text, encoding="utf-8")
        if finish is not None:
            finish(temporary)
    return (f"not taken along, since it is not part of the grown model: {', '.join(left)}",) if left else ()


def _size(folder: PretrainedFolder, new: Sequence[NewTensor]) -> int:
    """Bytes of all tensors of the grown folder."""
    return sum(entry.stop - entry.start for entry in folder.entries.values()) + sum(tensor.nbytes for tensor in new)


def _write_chunks(path: Path, chunks: Iterable[bytes]) -> int:
    with path.open("wb") as file:
        return sum(file.write(chunk) for chunk in chunks)


def _write_weights(
    folder: PretrainedFolder, out: Path, new: Sequence[NewTensor], renamed: Callable[[str], str]
) -> None:
    shards = list(_shards(new))
    total = len(folder.files) + len(shards)
    weight_map: dict[str, str] = {}
    for number, file in enumerate(folder.files, 1):
        name = SHARD.format(number, total)
        entries = {renamed(old): entry for old, entry in folder.entries.items() if entry.file == file}
        weight_map |= dict.fromkeys(entries, name)
        _copy_file(folder.path / file, out / name, entries, folder.metadata[file])
    for number, tensors in enumerate(shards, len(folder.files) + 1):
        name = SHARD.format(number, total)
        weight_map |= {tensor.name: name for tensor in tensors}
        _write_new(out / name, tensors)
    if len(weight_map) != len(folder.entries) + len(new):
        raise RuntimeError("two tensors of the grown folder have one name")
    index = {"metadata": {"total_size": _size(folder, new)}, "weight_map": dict(sorted(weight_map.items()))}
    (out / INDEX).write_text(json_text(index), encoding="utf-8")


def _shards(new: Sequence[NewTensor]) -> Iterator[list[NewTensor]]:
    shard: list[NewTensor] = []
    size = 0
    for tensor in new:
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += tensor.nbytes
    if shard:
        yield shard


def _copy_file(source: Path, target: Path, entries: Mapping[str, TensorEntry], metadata: Mapping[str, str]) -> None:
    """A weight file under new names: another header before the same bytes."""
    first = min((entry.start for entry in entries.values()), default=0)
    places = {
        name: (entry.dtype, entry.shape, entry.start - first, entry.stop - first) for name, entry in entries.items()
    }
    _write_chunks(target, chain((_header(places, metadata),), read_range(source, first)))


def _write_new(target: Path, tensors: Sequence[NewTensor]) -> None:
    """Wide types first, as the library does, so that each tensor is aligned."""
    tensors = sorted(tensors, key=lambda tensor: -tensor.nbytes // max(1, math.prod(tensor.shape)))
    places, at = {}, 0
    for tensor in tensors:
        places[tensor.name] = (tensor.dtype, tensor.shape, at, at + tensor.nbytes)
        at += tensor.nbytes
    header = _header(places, {"format": "pt"})
    written = _write_chunks(target, chain((header,), *(tensor.chunks() for tensor in tensors)))
    if written != len(header) + at:
        raise RuntimeError(f"{target.name}: {written} bytes written, {len(header) + at} expected")


def _header(places: Mapping[str, tuple[str, tuple[int, ...], int, int]], metadata: Mapping[str, str]) -> bytes:
    document: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape, start, stop) in places.items():
        document[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def carried_over(source: Path) -> tuple[dict[str, Path], list[str]]:
    """The files that go along, by their path below the folder, and names of what stays: weights in other formats."""
    modules = _pipeline_folders(source)
    files: dict[str, Path] = {}
    left = []
    for path in sorted(source.iterdir()):
        if path.name.startswith(".") or path.name in REWRITTEN or (path.suffix == ".safetensors" and path.is_file()):
            continue
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        foreign = path.is_dir() and path.is_symlink()  # what is in it may be anybody's
        if foreign or (path.name not in modules and any(file.suffix in WEIGHTS for file in inside)):
            left.append(path.name)
            continue
        for file in inside:
            name = file.relative_to(source).as_posix()
            if not PLAIN_NAME.fullmatch(file.name):
                left.append(name)
            elif not file.is_dir():
                files[name] = plain_file(file.parent, file.name)
    return files, left


def _pipeline_folders(source: Path) -> set[str]:
    """Folders that Sentence Transformers runs after the model, some with weights of their own."""
    if not (source / "modules.json").is_file():
        return set()
    document = read_json(plain_file(source, "modules.json"))
    modules = document if isinstance(document, list) else []
    return {module["path"] for module in modules if isinstance(module, dict) and isinstance(module.get("path"), str)}


def _old_card(source: Path) -> tuple[str, str | None]:
    """The front matter of the parent's card (licence, language, tags), and the card itself; None without one."""
    if not (source / CARD).is_file():
        return "", None
    text = plain_file(source, CARD).read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---\n") or "\n---\n" not in text[3:]:
        return "", text
    end = text.index("\n---\n", 3) + len("\n---\n")
    return text[:end] + "\n", text
