"""Weight files: one `model.safetensors`, or shards with an index as Hugging Face writes them.

A tensor keeps its shard for life: growth puts new tensors into new shards, removal drops empty ones. What cannot be
read is an `InvalidInputError` of one line that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppdgrow.atomic import follow_umask
from ppdgrow.checkpoint.safe_read import PLAIN_NAME, invalid, json_text, plain_file, read_json, strict_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = "model-{:05d}.safetensors"
TRAINER_TENSORS = "trainer_state.safetensors"
SAFETENSORS_NAMES = {torch.uint8: "U8", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}


def weight_files(folder: Path) -> dict[str, str]:
    """Which file of a sharded checkpoint holds which tensor, by its index; empty for a single file."""
    if not (folder / INDEX).exists():
        return {}
    document = read_json(plain_file(folder, INDEX))
    mapping = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(name, str) for name in mapping.values()):
        raise invalid(folder / INDEX, "expected a 'weight_map' from tensor names to file names")
    for name in set(mapping.values()):
        if not name.endswith(".safetensors"):
            raise invalid(folder / INDEX, f"shard {name!r} is not a .safetensors file")
        if name == TRAINER_TENSORS:
            raise invalid(folder / INDEX, f"{name!r} as a shard: it holds the optimizer's state")
        plain_file(folder, name)
    return mapping


class TensorHeader(NamedTuple):
    """What a safetensors file says of a tensor: its type, such as `F32`, its shape, and its place in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def weight_layout(folder: Path) -> dict[str, dict[str, TensorHeader]]:
    """The tensors of each weight file of a checkpoint, from the headers alone; each is where the index says."""
    mapping = weight_files(folder)
    if not mapping:
        return {SINGLE: tensor_headers(plain_file(folder, SINGLE))}
    if (folder / SINGLE).exists():
        raise invalid(folder / SINGLE, f"both a single weight file and {INDEX}: which is meant is unclear")
    layout = {name: tensor_headers(plain_file(folder, name)) for name in sorted(set(mapping.values()))}
    for name, tensors in layout.items():
        for tensor in tensors:
            if mapping.get(tensor) != name:
                raise invalid(folder / name, f"tensor {tensor!r} is not listed for this file in {INDEX}")
    missing = mapping.keys() - {tensor for tensors in layout.values() for tensor in tensors}
    if missing:
        raise invalid(folder / INDEX, f"tensor {min(missing)!r} is listed but in no shard")
    return layout


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights of a checkpoint on the CPU."""
    return {name: tensor for file in weight_layout(folder) for name, tensor in read_safetensors(folder / file).items()}


def tensor_headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors in a safetensors file, from a header that fits the file's size and names nothing twice."""
    return read_header(path)[0]


def read_header(path: Path) -> tuple[dict[str, TensorHeader], dict[str, str]]:
    """The tensors in a safetensors file as `tensor_headers`, and the file's metadata."""
    with _whole_safetensors(path), safe_open(path, framework="pt") as file:
        names = list(file.keys())
        metadata = dict(file.metadata() or {})
        with path.open("rb") as raw:
            # The library keeps the last of two tensors with one name, silently.
            length = int.from_bytes(raw.read(8), "little")
            header = strict_json(raw.read(length))
    headers = {}
    for name in names:
        start, stop = header[name]["data_offsets"]
        headers[name] = TensorHeader(
            header[name]["dtype"], tuple(header[name]["shape"]), 8 + length + start, 8 + length + stop
        )
    return headers, metadata


def read_safetensors(path: Path) -> dict[str, Tensor]:
    with _whole_safetensors(path):
        return load_file(path)


@contextmanager
def _whole_safetensors(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise invalid(path, f"not a whole safetensors file ({' '.join(str(error).split())})") from None


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save one file with the mode that the umask asks for; what the file system refuses is an `OSError`."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    try:
        save_file(whole, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # The library wraps "no space left on device" and its like in an error of its own.
        raise OSError(f"{path.name}: {' '.join(str(error).split())}") from error
    follow_umask(path)


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> int:
    """The size of a file: a length of 8 bytes, a JSON header that is filled up to a multiple of 8, the content."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        tensor, start = tensors[name], end
        end += tensor.nbytes
        dtype = SAFETENSORS_NAMES.get(tensor.dtype, "F32")
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8"))
    return 8 + length + -length % 8 + end


def write_weights(
    tensors: Mapping[str, Tensor], folder: Path, *, shard_bytes: int, assignment: Mapping[str, str]
) -> None:
    """Write the weights into an existing folder, in several files if they are larger than `shard_bytes`.

    `assignment` names the shard of each tensor that already has one; a `ValueError` if that is no plain name.
    """
    taken = set(assignment.values())
    for file in taken:
        if not PLAIN_NAME.fullmatch(file) or not file.endswith(".safetensors") or file == TRAINER_TENSORS:
            raise ValueError(f"{file!r} cannot be a shard")
    size = sum(tensor.nbytes for tensor in tensors.values())
    if not assignment and size <= shard_bytes:
        write_safetensors(tensors, folder / SINGLE)
        return
    shards: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name in assignment:
            shards.setdefault(assignment[name], {})[name] = tensor
    numbers = (number for number in range(1, 100_000) if SHARD.format(number) not in taken)
    current: dict[str, Tensor] = {}
    for name in sorted(name for name in tensors if name not in assignment):
        full = sum(tensor.nbytes for tensor in current.values()) + tensors[name].nbytes > shard_bytes
        if not current or full:
            current = shards.setdefault(SHARD.format(next(numbers)), {})
        current[name] = tensors[name]
    for file, members in shards.items():
        write_safetensors(members, folder / file)
    weight_map = dict(sorted((name, file) for file in shards for name in shards[file]))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / INDEX).write_text(json_text(index), encoding="utf-8")
