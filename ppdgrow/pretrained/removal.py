"""Take pairs out of a folder again: every other tensor keeps its name and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.card import model_card, parent_name
from ppdgrow.pretrained.deeper_config import Stack, with_lineage
from ppdgrow.pretrained.expected_tensors import refuse_other_tensors
from ppdgrow.pretrained.folder import PretrainedFolder
from ppdgrow.pretrained.pairs import LOADING, known_pairs
from ppdgrow.pretrained.plain import DTYPES
from ppdgrow.pretrained.write import CODE, Grown, NewTensor, refuse_output, write_grown


def remove_pairs(
    folder: PretrainedFolder, ids: Sequence[str], *, out: Path, finish: Callable[[Path, Grown], None] | None = None
) -> Grown:
    """Write a folder without some of its pairs; without any, it is an ordinary folder of the parent's architecture.

    Args:
        folder: the folder with pairs, which is only read.
        ids: those of the pairs, such as `p2`; `last` is the one that was added last.
        out: the new folder.
        finish: called with the whole folder before it gets its name; what it raises leaves nothing behind.

    Raises:
        ConfigError: there is no such pair.
        StorageError: the file system refused; nothing is left of `out`.
    """
    refuse_output(folder, out)
    known = known_pairs(folder)
    refuse_other_tensors(folder)
    wanted = [known[-1]["id"] if known and each == "last" else each for each in ids]
    gone = [block for block in known if block["id"] in wanted]
    if not gone or {block["id"] for block in gone} != set(wanted):
        there = ", ".join(block["id"] for block in known) or "none"
        raise ConfigError(f"--remove {','.join(ids)}: {str(folder.path)!r} has the pairs {there}")
    left = [block for block in known if block not in gone]
    prefixes = tuple(_prefix(folder, block) for block in gone)
    kept = {name: entry for name, entry in folder.entries.items() if not name.startswith(prefixes)}
    cut_files = {entry.file for name, entry in folder.entries.items() if name not in kept}
    whole = {name: entry for name, entry in kept.items() if entry.file not in cut_files}
    moved = [
        NewTensor(name, entry.dtype, entry.shape, entry.stop - entry.start, partial(folder.read, name))
        for name, entry in kept.items()
        if name not in whole
    ]
    names = {entry.file for entry in whole.values()}
    rest = replace(
        folder, entries=whole, metadata={file: folder.metadata[file] for file in folder.files if file in names}
    )
    grown = Grown(
        out=out,
        method="remove",
        layers_before=folder.num_layers + 2 * len(known),
        layers_after=folder.num_layers + 2 * len(left),
        parameters_before=folder.parameters,
        parameters_after=folder.parameters
        - sum(folder.entries[name].size for name in folder.entries if name not in kept),
        positions=tuple(block["after"] for block in gone),
        ids=tuple(block["id"] for block in gone),
        theta_0="none",
        notes=(),
        preserves=all(_is_identity(folder, block) for block in gone),
    )
    event = {"method": "remove", "parent": parent_name(folder.path), "ids": list(grown.ids)}
    base = {key: value for key, value in folder.parent_config.items() if key != "model_type"}
    base = with_lineage(base, Stack(tuple(range(folder.num_layers)), ()), event, trained=folder.is_trained)
    pairs = {**folder.config["pairs"], "blocks": left}
    config = modeling.grown_dict(folder.model_type, base, pairs) if left else {"model_type": folder.model_type, **base}
    notes = write_grown(
        rest,
        out,
        config=config,
        new=moved,
        card=model_card(folder, grown, base) + (LOADING if left else ""),
        texts={CODE: Path(modeling.__file__).read_text(encoding="utf-8")} if left else {},
        finish=None if finish is None else lambda fresh: finish(fresh, grown),
    )
    return replace(grown, notes=notes)


def _prefix(folder: PretrainedFolder, block: Mapping[str, Any]) -> str:
    return f"{folder.layers}{modeling.layer_of(block)}.pairs.{block['id']}."


def _is_identity(folder: PretrainedFolder, block: Mapping[str, Any]) -> bool:
    """Whether the members of a pair are equal, which they are until it is trained."""
    prefix = _prefix(folder, block)
    first = [name for name in folder.entries if name.startswith(prefix) and _second(name) != name]
    return bool(first) and all(_cancel(folder, name) for name in first)


def _second(name: str) -> str:
    """What the second member calls a tensor of the first."""
    head, _, inside = name.partition(".pairs.")
    return f"{head}.pairs.{inside.replace('_plus.', '_minus.', 1).replace('.plus', '.minus', 1)}"


def _cancel(folder: PretrainedFolder, name: str) -> bool:
    """Whether a tensor of both members is the same, or of the other sign where it is an output projection."""
    dtype = DTYPES[folder.entries[name].dtype]
    outputs = (*folder.config["pairs"]["outputs"].values(), "taps")
    inside = name.partition("_plus.")[2].rpartition(".")[0]
    sign = -1 if inside in outputs else 1
    return all(
        torch.equal(torch.frombuffer(bytearray(one), dtype=dtype), sign * torch.frombuffer(bytearray(two), dtype=dtype))
        for one, two in zip(folder.read(name), folder.read(_second(name)), strict=True)
    )
