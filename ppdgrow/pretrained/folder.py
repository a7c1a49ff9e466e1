"""Reading a folder of Transformers: config.json and the headers of its safetensors files, never the weights.

What ppdgrow cannot deepen is refused here: one line that says what was found and a way out.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ppdgrow.atomic import sha256_file
from ppdgrow.checkpoint.safe_read import WAY_OUT, invalid, one_line, plain_file, read_json
from ppdgrow.checkpoint.shards import INDEX, SINGLE, read_header, weight_files
from ppdgrow.config.architecture import OWN_KEY
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.families import FAMILIES, Family
from ppdgrow.pretrained.library import load_config
from ppdgrow.pretrained.recognition import snapshot
from ppdgrow.pretrained.refusals import CONFIG as CONFIG
from ppdgrow.pretrained.refusals import (
    FRESH_COPY,
    refuse_other_folders,
    refuse_other_models,
    refuse_quantised_config,
    refuse_without_safetensors,
)

GROWN = "ppdgrow"  # the model_type of a folder with pairs
CHUNK = 2**20
FLOATS = ("F64", "F32", "F16", "BF16")
QUANTISED = ("qweight", "qzeros", "SCB", "absmax", "quant_map", "weight_scale", "weight_packed", "weight_scale_inv")
# What old versions of Transformers saved of buffers; they are not parameters.
BUFFERS = re.compile(r"(^|\.)(inv_freq|masked_bias|position_ids|token_type_ids)$")
OUTPUTS = re.compile(r"(^|\.)(lm_head|embed_out|predictions\.decoder|decoder)\.(weight|bias)$")


class TensorEntry(NamedTuple):
    """A tensor on the disk: its file, its type, such as `BF16`, its shape, and which bytes of the file it is."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class PretrainedFolder:
    """A folder as `read_folder` found it.

    Args:
        path: where it is.
        config: config.json as it is.
        parent_config: that of the model without pairs, with its own `model_type`; `config` itself if there are none.
        layers: what the names of the layers' tensors begin with, before the number, such as `model.layers.`.
        num_layers: how many there are.
        layers_key: the key of config.json that says so.
        tied: whether the output map is the input embedding.
        entries: every tensor by name, in the order of the files.
        metadata: of each weight file, in order.
    """

    path: Path
    config: Mapping[str, Any]
    parent_config: Mapping[str, Any]
    layers: str
    num_layers: int
    layers_key: str
    tied: bool
    entries: Mapping[str, TensorEntry] = field(repr=False)
    metadata: Mapping[str, Mapping[str, str]] = field(repr=False)

    @property
    def model_type(self) -> str:
        """That of the model without pairs, such as `llama`."""
        return str(self.parent_config["model_type"])

    @property
    def has_pairs(self) -> bool:
        return self.config["model_type"] == GROWN

    @property
    def is_trained(self) -> bool:
        """Whether ppdgrow trained it since it was grown: it is a checkpoint of a run, or was saved from one."""
        own = self.config.get(OWN_KEY)
        return isinstance(own, dict) and "training" in own

    @property
    def family(self) -> Family | None:
        return FAMILIES.get(self.model_type)

    @property
    def files(self) -> tuple[str, ...]:
        """The weight files, in order."""
        return tuple(self.metadata)

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, tied ones once."""
        return sum(entry.size for name, entry in self.entries.items() if self.counts(name))

    def counts(self, name: str) -> bool:
        """Whether a tensor is a parameter of its own: no buffer, and no second copy of a tied embedding."""
        entry = self.entries[name]
        if BUFFERS.search(name) or entry.dtype not in FLOATS:
            return False
        if name.endswith(".bias") and len(entry.shape) > 1:  # the causal mask of old GPT-2 files
            return False
        if not self.tied or not OUTPUTS.search(name) or name.startswith(self.layers):
            return True
        return not any(self._same_bytes(name, other) for other in self.entries if other != name)

    def _same_bytes(self, name: str, other: str) -> bool:
        """Whether an output is the same as an input embedding, or as an output that is named before it."""
        one, two = self.entries[name], self.entries[other]
        if (one.dtype, one.shape) != (two.dtype, two.shape) or (OUTPUTS.search(other) and other > name):
            return False
        return all(x == y for x, y in zip(self.read(name), self.read(other), strict=True))

    def layer_tensors(self, index: int) -> dict[str, TensorEntry]:
        """The tensors of a layer, by what follows its number, such as `mlp.up_proj.weight`."""
        prefix = f"{self.layers}{index}."
        return {name.removeprefix(prefix): entry for name, entry in self.entries.items() if name.startswith(prefix)}

    def digest(self) -> str:
        """sha256 over those of config.json and of the weight files."""
        whole = hashlib.sha256()
        with reading(self.path):
            for name in (CONFIG, *self.files):
                whole.update(f"{name} {sha256_file(plain_file(self.path, name))}\n".encode())
        return whole.hexdigest()

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes of a tensor, some at a time."""
        entry = self.entries[name]
        return read_range(self.path / entry.file, entry.start, entry.stop)


def read_range(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Some bytes of a file, a chunk at a time; to its end without `stop`."""
    with reading(path), path.open("rb") as file:
        file.seek(start)
        left = path.stat().st_size - start if stop is None else stop - start
        while left:
            data = file.read(min(CHUNK, left))
            if not data:
                raise invalid(path, "it became shorter while it was read")
            left -= len(data)
            yield data


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of reading a file below `path` with the way out of one who did not make it."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"{str(path)!r}: cannot be read ({error.strerror or error}); {FRESH_COPY}") from None
    except InvalidInputError as error:
        raise InvalidInputError(str(error).replace(WAY_OUT, FRESH_COPY)) from None


def read_folder(path: Path, layer_path: str | None = None) -> PretrainedFolder:
    """Read a folder of Transformers without its weights.

    Args:
        path: the folder; in a hub cache, that of a snapshot or of its repository.
        layer_path: where the layers are, such as `model.layers`; found by the names of the tensors if None.

    Raises:
        InvalidInputError: it is damaged, or a model of a sort that ppdgrow does not deepen.
        ConfigError: Transformers is not installed, or `layer_path` names no layers.
    """
    path = snapshot(path)
    with reading(path):
        refuse_other_folders(path)
        config = read_json(plain_file(path, CONFIG))
        parent_config = _parent_config(path, config)
        refuse_quantised_config(path, parent_config)
        loaded = load_config(path, parent_config)
        refuse_other_models(path, parent_config, loaded)
        layers_key, count = _layer_count(path, loaded)
        refuse_without_safetensors(path)
        if (path / SINGLE).exists():  # what Transformers takes where both are there
            files = [SINGLE]
        else:
            mapping = weight_files(path)
            files = sorted(set(mapping.values()))
        entries: dict[str, TensorEntry] = {}
        metadata = {}
        for file in files:
            headers, metadata[file] = read_header(plain_file(path, file))
            for name, header in headers.items():
                if name in entries:
                    raise invalid(path / file, f"tensor {name!r} is in {entries[name].file!r} too")
                entries[name] = TensorEntry(file, *header)
        if not (path / SINGLE).exists():
            _check_index(path, mapping, entries)
        _refuse_quantised(path, entries)
        family = FAMILIES.get(parent_config["model_type"])
        layers = _find_layers(path, entries, layers_key, count, family, layer_path)
    tied = bool(getattr(loaded, "tie_word_embeddings", False))
    return PretrainedFolder(path, config, parent_config, layers, count, layers_key, tied, entries, metadata)


def _check_index(path: Path, mapping: Mapping[str, str], entries: Mapping[str, TensorEntry]) -> None:
    for name, file in mapping.items():
        if name not in entries or entries[name].file != file:
            raise invalid(path / INDEX, f"tensor {name!r} is listed for {file!r} but not in it")
    for name, entry in entries.items():
        if name not in mapping:
            raise invalid(path / entry.file, f"tensor {name!r} is not listed in {INDEX}")


def _parent_config(path: Path, config: Any) -> Mapping[str, Any]:
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise invalid(path / CONFIG, "expected a 'model_type', as Transformers writes it")
    for document in (config, base := config.get("base")):
        names = document.get("architectures") if isinstance(document, dict) else None
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise invalid(path / CONFIG, f"architectures is {one_line(repr(names))}, expected a list of names")
    if config["model_type"] != GROWN:
        return config
    if not isinstance(base, dict) or not isinstance(config.get("base_model_type"), str):
        raise invalid(path / CONFIG, "expected 'base' and 'base_model_type' beside the pairs")
    return {**base, "model_type": config["base_model_type"]}


def _layer_count(path: Path, loaded: Any) -> tuple[str, int]:
    """The key of config.json that holds the number of layers, and the number, be it Transformers' default."""
    key = type(loaded).attribute_map.get("num_hidden_layers", "num_hidden_layers")
    count = getattr(loaded, key, None)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise invalid(path / CONFIG, f"{key} is {count!r}, expected a whole number of at least 1")
    return key, count


def _refuse_quantised(path: Path, entries: Mapping[str, TensorEntry]) -> None:
    for name, entry in entries.items():
        last = name.rpartition(".")[2]
        if last in QUANTISED or (last == "weight" and entry.dtype not in FLOATS):
            raise InvalidInputError(
                f"{str(path / entry.file)!r}: tensor {name!r} ({entry.dtype}) is quantised: "
                "take the model's original folder, in bf16, fp16 or fp32"
            )


def _find_layers(
    path: Path,
    entries: Mapping[str, TensorEntry],
    key: str,
    count: int,
    family: Family | None,
    layer_path: str | None,
) -> str:
    """What the names of the layers' tensors begin with: the longest run of numbered groups, or what was asked for."""
    groups: dict[str, dict[int, int]] = {}
    for name in entries:
        parts = name.split(".")
        for at, part in enumerate(parts[:-1]):
            if part.isdecimal() and at:
                numbers = groups.setdefault(".".join(parts[:at]) + ".", {})
                numbers[int(part)] = numbers.get(int(part), 0) + 1
    if layer_path is not None:
        wanted = [name for name in groups if ends_with(name[:-1], layer_path.strip("."))]
        if len(wanted) != 1:
            found = ", ".join(sorted(name[:-1] for name in groups)[:5]) or "none"
            raise ConfigError(
                f"--layer-path {layer_path!r} is not one list of layers of {str(path)!r}, which has {found}"
            )
        groups = {wanted[0]: groups[wanted[0]]}
    elif family is not None:
        known = {name: numbers for name, numbers in groups.items() if ends_with(name[:-1], family.layers)}
        groups = known or groups
    if not groups:
        raise invalid(path, "no numbered layers among the names of the tensors")
    prefix = max(groups, key=lambda name: (len(groups[name]), sum(groups[name].values())))
    missing = sorted(set(range(count)) ^ set(groups[prefix]))
    if missing:
        raise InvalidInputError(
            f"{str(path / CONFIG)!r}: {key} is {count}, but the weights have {len(groups[prefix])} layers "
            f"(the first that does not fit is {prefix}{missing[0]}): {FRESH_COPY}"
        )
    return prefix


def ends_with(path: str, end: str) -> bool:
    """Whether the last parts of a dotted path are those of another."""
    return f".{path}".endswith(f".{end}")
