"""One checkpoint folder: written atomically, verified against its manifest before anything is used.

config.json, model.safetensors (or shards), trainer_state.safetensors, trainer_state.json, tokenizer.json where
there is one, and manifest.json with the sha256 of each, written last: its presence makes the checkpoint valid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from ppdgrow.atomic import free_bytes, new_folder, sha256_file, storage_errors
from ppdgrow.checkpoint.safe_read import invalid, json_text, one_line, plain_file, read_json, readable
from ppdgrow.checkpoint.shards import (
    INDEX,
    SINGLE,
    TRAINER_TENSORS,
    TensorHeader,
    read_safetensors,
    read_weights,
    safetensors_bytes,
    tensor_headers,
    weight_files,
    weight_layout,
    write_safetensors,
    write_weights,
)
from ppdgrow.config.architecture import Architecture, PretrainedArchitecture
from ppdgrow.config.base import FORMAT, FormatNumber
from ppdgrow.config.state import TrainerState
from ppdgrow.errors import InvalidInputError, StorageError
from ppdgrow.nn.model import check_shapes
from ppdgrow.nn.parts import NAMES
from ppdgrow.units import format_bytes

MANIFEST = "manifest.json"
CONFIG = "config.json"
STATE = "trainer_state.json"
TOKENIZER = "tokenizer.json"
SHARD_BYTES = 5_000_000_000
STEP_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,})")
FLOATING = ("F32", "BF16", "F16", "F64")
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True)
class Checkpoint:
    """A model in training, as named tensors on the CPU.

    `moments` holds optimizer state by parameter name and key (AdamW: `exp_avg`, `exp_avg_sq`, `step`), `rng` the random
    streams by name, `tokenizer` the JSON of the tokenizer, None where the data needs no file for it. Of the file that
    the weights were read from, `stored` is their type, `shards` which file holds which tensor, empty for a single one:
    a tensor keeps its shard for life. `files` are further ones that belong to the model, by name.
    """

    architecture: Architecture
    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    rng: dict[str, Tensor]
    state: TrainerState
    tokenizer: str | None
    stored: torch.dtype = torch.float32
    shards: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


class _ListedFile(BaseModel, strict=True):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]


class _Manifest(BaseModel, strict=True):
    format: FormatNumber
    files: dict[str, _ListedFile]


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a checkpoint folder, whole or not at all; one that exists is replaced.

    Weights larger than `shard_bytes` are cut into shards.

    Raises:
        StorageError: not enough space, or the file system refused; what was there is as it was.
    """
    _check_space(folder, checkpoint_bytes(checkpoint))
    with new_folder(folder) as temporary:
        for name, text in _texts(checkpoint).items():
            (temporary / name).write_text(text, encoding="utf-8", newline="")
        for name, content in checkpoint.files.items():
            (temporary / name).write_bytes(content)
        write_safetensors(_trainer_tensors(checkpoint), temporary / TRAINER_TENSORS)
        write_weights(checkpoint.tensors, temporary, shard_bytes=shard_bytes, assignment=checkpoint.shards)
        sizes = {path.name: path.stat().st_size for path in temporary.iterdir()}
        manifest = _manifest_text(sizes, {name: sha256_file(temporary / name) for name in sizes})
        (temporary / MANIFEST).write_text(manifest, encoding="utf-8", newline="")


def checkpoint_bytes(checkpoint: Checkpoint) -> int:
    """Bytes that `write_checkpoint` would take for this checkpoint, whose tensors may be without memory.

    Exact for weights in one file; shards have a header each and an index, a few hundred bytes a tensor.
    """
    sizes = {name: len(text.encode("utf-8")) for name, text in _texts(checkpoint).items()}
    sizes |= {name: len(content) for name, content in checkpoint.files.items()}
    sizes[TRAINER_TENSORS] = safetensors_bytes(_trainer_tensors(checkpoint))
    sizes[SINGLE] = safetensors_bytes(checkpoint.tensors)
    return sum(sizes.values()) + len(_manifest_text(sizes, dict.fromkeys(sizes, "0" * 64)))


def _texts(checkpoint: Checkpoint) -> dict[str, str]:
    texts = {
        CONFIG: json_text(config_document(checkpoint.architecture)),
        STATE: json_text(checkpoint.state.model_dump(mode="json")),
    }
    return texts if checkpoint.tokenizer is None else texts | {TOKENIZER: checkpoint.tokenizer}


def _trainer_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    streams = {f"rng.{name}": state for name, state in checkpoint.rng.items()}
    moments = checkpoint.moments
    return streams | {f"{key}.{name}": moments[name][key] for name in moments for key in moments[name]}


def _manifest_text(sizes: Mapping[str, int], digests: Mapping[str, str]) -> str:
    files = {name: {"sha256": digests[name], "bytes": sizes[name]} for name in sorted(sizes)}
    return json_text({"format": FORMAT, "files": files})


def _check_space(folder: Path, needed: int) -> None:
    with storage_errors(folder):
        free = free_bytes(folder)
    if free < needed:
        raise StorageError(
            f"the checkpoint {str(folder)!r} needs {format_bytes(needed)}, but only {format_bytes(free)} are free: "
            "free some space or choose another folder with --out"
        )


def read_checkpoint(folder: Path, *, optimizer: bool = True) -> Checkpoint:
    """Read and verify a checkpoint folder; weights and optimizer state are fp32, whatever they are stored in.

    The weights of a model of Transformers, of which frozen ones keep the type of their folder, are as they are stored.

    Args:
        folder: the checkpoint folder.
        optimizer: also read optimizer state and random streams.

    Raises:
        InvalidInputError: one line that names the file, what was found and what was expected.
    """
    architecture, state, tokenizer = verify(folder)
    moments: dict[str, dict[str, Tensor]] = {}
    rng: dict[str, Tensor] = {}
    for key, tensor in (read_safetensors(folder / TRAINER_TENSORS) if optimizer else {}).items():
        kind, _, name = key.partition(".")
        if kind == "rng":
            rng[name] = tensor
        else:
            moments.setdefault(name, {})[kind] = tensor.float()
    weights = read_weights(folder)
    stored = next((tensor.dtype for tensor in weights.values()), torch.float32)
    foreign = isinstance(architecture, PretrainedArchitecture)
    tensors = weights if foreign else {name: tensor.float() for name, tensor in weights.items()}
    shards = weight_files(folder)
    own = {MANIFEST, CONFIG, STATE, TRAINER_TENSORS, TOKENIZER, INDEX, SINGLE, *shards.values()}
    files = {name: plain_file(folder, name).read_bytes() for name in _listed_files(folder) if name not in own}
    return Checkpoint(architecture, tensors, moments, rng, state, tokenizer, stored, shards, files)


def verify(folder: Path) -> tuple[Architecture, TrainerState, str | None]:
    """Hold every file of a checkpoint against the manifest, and its content against the format.

    All that `read_checkpoint` would refuse is refused here, with an `InvalidInputError`, without loading a tensor; what
    it reads beside them is returned: architecture, state, tokenizer.
    """
    listed = _listed_files(folder)
    for name, expected in listed.items():
        _verify_bytes(plain_file(folder, name), expected)
    architecture, state = read_config(folder), read_state(folder)
    if STEP_NAME.fullmatch(folder.name) and step_of(folder) != state.step:
        raise invalid(folder / STATE, f"step is {state.step}, expected that of the folder's name")
    if isinstance(architecture, PretrainedArchitecture) and TOKENIZER not in listed:
        raise invalid(folder / TOKENIZER, f"not listed in {MANIFEST}")
    tokenizer = _read_text(folder / TOKENIZER) if TOKENIZER in listed else None
    layout = weight_layout(folder)
    for name in (*layout, *([] if SINGLE in layout else [INDEX])):
        if name not in listed:
            raise invalid(folder / name, f"not listed in {MANIFEST}")
    weights = {name: header for headers in layout.values() for name, header in headers.items()}
    _verify_weights(folder / next(iter(layout)), architecture, weights)
    _verify_moments(folder / TRAINER_TENSORS, weights)
    return architecture, state, tokenizer


def _listed_files(folder: Path) -> dict[str, _ListedFile]:
    path = _manifest(folder)
    document = read_json(path)
    _refuse_newer(path, document)
    try:
        files = _Manifest.model_validate(document).files
    except ValidationError as error:
        key, *entry = (*error.errors(include_url=False)[0]["loc"], "")
        if key != "files" or entry == [""]:
            raise invalid(path, f"expected format {FORMAT} with a list of files") from None
        found = f"entry {entry[0]!r} has no sha256 and size, expected 64 digits of 0-9 and a-f, and a number of bytes"
        raise invalid(path, found) from None
    if MANIFEST in files:
        raise invalid(path, "it lists itself")
    for required in (CONFIG, STATE, TRAINER_TENSORS):
        if required not in files:
            raise invalid(path, f"{required} is not listed")
    return files


def _verify_bytes(path: Path, expected: _ListedFile) -> None:
    with readable(path):
        size = path.stat().st_size
        if size != expected.bytes:
            raise invalid(path, f"{size} bytes, expected {expected.bytes}: cut off or altered")
        digest = sha256_file(path)
    if digest != expected.sha256:
        raise invalid(path, f"sha256 {digest[:12]}.., expected {expected.sha256[:12]}..: altered")


def _verify_weights(path: Path, architecture: Architecture, weights: Mapping[str, TensorHeader]) -> None:
    """Hold the headers of weights against the architecture, without allocating what either of them claims."""
    if isinstance(architecture, PretrainedArchitecture):
        return  # whoever builds it with Transformers says which tensor is missing
    dtypes = sorted({header.dtype for header in weights.values()})
    if not any(map(NAMES.block_of, weights)):
        return  # not weights of a model; whoever builds one says which tensor is missing
    if len(dtypes) > 1 or dtypes[0] not in FLOATING:
        raise invalid(path, f"weights of type {', '.join(dtypes)}, expected one of {', '.join(FLOATING)} for all")
    try:
        check_shapes(architecture, {name: header.shape for name, header in weights.items()})
    except InvalidInputError as error:
        raise invalid(path, str(error)) from None


def _verify_moments(path: Path, weights: Mapping[str, TensorHeader]) -> None:
    """Optimizer state is of any kind, as long as each tensor is one number or of the weight's shape."""
    moments: dict[str, dict[str, TensorHeader]] = {}
    for key, header in tensor_headers(path).items():
        kind, _, name = key.partition(".")
        if kind == "rng":
            continue
        if name not in weights:
            raise invalid(path, f"unexpected tensor {key!r}")
        if header.dtype not in FLOATING or (header.shape != weights[name].shape and math.prod(header.shape) != 1):
            expected = f"floating point {weights[name].shape}"
            raise invalid(path, f"{key!r} is {header.dtype} {header.shape}, expected {expected}")
        moments.setdefault(name, {})[key] = header
    for name, state in moments.items():
        if all(header.shape != weights[name].shape for header in state.values()):
            raise invalid(path, f"incomplete optimizer state of {name!r}: only {', '.join(state)}")


def _manifest(folder: Path) -> Path:
    with readable(folder):
        if not (folder / MANIFEST).exists():
            raise invalid(folder, f"no {MANIFEST}: not a whole checkpoint")
    return plain_file(folder, MANIFEST)


def _read_text(path: Path) -> str:
    try:
        with readable(path):
            return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise invalid(path, "not UTF-8 text") from None


def read_config(folder: Path) -> Architecture:
    """The architecture of a checkpoint, without its tensors; an `InvalidInputError` if config.json is not one."""
    path = plain_file(folder, CONFIG)
    document = read_json(path)
    if not isinstance(document, dict) or "model_type" not in document:
        return _validated(Architecture.model_validate, path, document)
    return _validated(PretrainedArchitecture.from_document, path, document)


def config_document(architecture: Architecture) -> dict[str, Any]:
    """What config.json says of it: for a model of Transformers its own config, else the architecture itself."""
    if isinstance(architecture, PretrainedArchitecture):
        return architecture.document()
    return architecture.model_dump(mode="json")


def read_state(folder: Path) -> TrainerState:
    """The trainer state of a checkpoint, without its tensors; an `InvalidInputError` if the file is not one."""
    path = plain_file(folder, STATE)
    return _validated(TrainerState.model_validate, path, read_json(path))


def _validated(make: Callable[[Any], _Model], path: Path, document: Any) -> _Model:
    _refuse_newer(path, document)
    try:
        return make(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise invalid(path, f"{one_line(where)}: {first['msg']}") from None


def _refuse_newer(path: Path, document: Any) -> None:
    found = document.get("format") if isinstance(document, dict) else None
    if type(found) is int and found > FORMAT:
        raise InvalidInputError(
            f"{str(path)!r}: format {found}, expected {FORMAT}: a newer version of ppdgrow wrote it; upgrade"
        )


def manifest_digest(folder: Path) -> str:
    """The identity of a checkpoint: sha256 of its manifest, and so of all that the manifest lists."""
    path = _manifest(folder)
    with readable(path):
        return sha256_file(path)
