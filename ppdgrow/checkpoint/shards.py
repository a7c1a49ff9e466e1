"""Weight files: one `model.safetensors`, or shards with an index as Hugging Face writes them.

A tensor keeps its shard for life: growth puts new tensors into new shards, removal drops empty ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppdgrow.atomic import follow_umask
from ppdgrow.checkpoint.files import invalid, json_text, plain_file, read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = "model-{:05d}.safetensors"


def weight_files(folder: Path) -> dict[str, str]:
    """Which file of a sharded checkpoint holds which tensor; empty for a single file.

    Raises:
        InvalidInputError: the index is not what it should be, or names a file that is not plain.
    """
    if not (folder / INDEX).exists():
        return {}
    document = read_json(plain_file(folder, INDEX))
    mapping = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(name, str) for name in mapping.values()):
        raise invalid(folder / INDEX, "expected a 'weight_map' from tensor names to file names")
    for name in set(mapping.values()):
        if not name.endswith(".safetensors"):
            raise invalid(folder / INDEX, f"shard {name!r} is not a .safetensors file")
        plain_file(folder, name)
    return mapping


def read_weights(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """All weights of a checkpoint on the CPU, and the names of the files that they came from.

    Raises:
        InvalidInputError: a file is missing, cut off or not safetensors, or a tensor is not where the index says.
    """
    mapping = weight_files(folder)
    if not mapping:
        return read_safetensors(plain_file(folder, SINGLE)), [SINGLE]
    if (folder / SINGLE).exists():
        raise invalid(folder / SINGLE, f"both a single weight file and {INDEX}: which is meant is unclear")
    tensors: dict[str, Tensor] = {}
    names = sorted(set(mapping.values()))
    for name in names:
        for tensor, value in read_safetensors(folder / name).items():
            if mapping.get(tensor) != name:
                raise invalid(folder / name, f"tensor {tensor!r} is not listed for this file in {INDEX}")
            tensors[tensor] = value
    missing = mapping.keys() - tensors.keys()
    if missing:
        raise invalid(folder / INDEX, f"tensor {min(missing)!r} is listed but in no shard")
    return tensors, [INDEX, *names]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Load one file.

    Raises:
        InvalidInputError: it is not a whole safetensors file.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise invalid(path, f"not a whole safetensors file ({reason})") from None


def write_safetensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Save one file with the mode that the umask asks for."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    follow_umask(path)


def write_weights(
    tensors: Mapping[str, Tensor], folder: Path, *, shard_bytes: int, assignment: Mapping[str, str]
) -> list[str]:
    """Write the weights and return the names of the files.

    Args:
        tensors: by name.
        folder: an existing folder.
        shard_bytes: a set of tensors larger than this is cut into several files.
        assignment: shard files of tensors that already have one.
    """
    size = sum(tensor.nbytes for tensor in tensors.values())
    if not assignment and size <= shard_bytes:
        write_safetensors(tensors, folder / SINGLE)
        return [SINGLE]
    shards: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name in assignment:
            shards.setdefault(assignment[name], {})[name] = tensor
    taken = set(assignment.values())
    numbers = (number for number in range(1, 100_000) if SHARD.format(number) not in taken)
    current: dict[str, Tensor] = {}
    for name in sorted(name for name in tensors if name not in assignment):
        full = sum(tensor.nbytes for tensor in current.values()) + tensors[name].nbytes > shard_bytes
        if not current or full:
            current = shards.setdefault(SHARD.format(next(numbers)), {})
        current[name] = tensors[name]
    for file, members in shards.items():
        write_safetensors(members, folder / file)
    weight_map = {name: file for file in sorted(shards) for name in sorted(shards[file])}
    (folder / INDEX).write_text(
        json_text({"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}), encoding="utf-8"
    )
    return [INDEX, *sorted(shards)]
