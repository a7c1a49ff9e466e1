"""Deepen a folder of Transformers by pairs: exact at insertion, removable, in shards of their own.

All of the parent's tensors keep their names and bytes. The result declares its own architecture and ships the code that
loads it, `modeling_ppdgrow.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint.safe_read import invalid, one_line
from ppdgrow.config.kinds import ATTENTION_FIRST
from ppdgrow.errors import ConfigError
from ppdgrow.pretrained import modeling_ppdgrow as modeling
from ppdgrow.pretrained.card import model_card, parent_name
from ppdgrow.pretrained.deeper_config import Stack, with_lineage
from ppdgrow.pretrained.expected_tensors import refuse_other_tensors
from ppdgrow.pretrained.folder import CONFIG, PretrainedFolder
from ppdgrow.pretrained.pair_values import PairValues
from ppdgrow.pretrained.parent_model import ParentModel
from ppdgrow.pretrained.write import CODE, Grown, refuse_output, refuse_positions, write_grown

PAIR_KINDS = (*modeling.KINDS, "orthogonal", ATTENTION_FIRST)
LOADING = """
## Loading

    AutoModel.from_pretrained(FOLDER, trust_remote_code=True)    # or the auto class of its head
    ppdgrow.load_pretrained(FOLDER)                              # where ppdgrow is installed
"""
FIXED_TOKENS = ("vit", "deit")  # a convolution along the tokens would run over padding elsewhere


def grow_pairs(
    folder: PretrainedFolder,
    *,
    kinds: Sequence[str],
    positions: Sequence[int],
    out: Path,
    source: str | None = None,
    scale: float = 1.0,
    seed: int = 0,
    finish: Callable[[Path, Grown], None] | None = None,
) -> Grown:
    """Write a folder with a pair at each position.

    Args:
        folder: the parent, which is only read; it may have pairs already.
        kinds: those of the pairs, by position; the last repeats.
        positions: after how many of the parent's layers; one may occur several times.
        out: the new folder.
        source: `slice` cuts the branches from the layer before, `random` draws them as the model draws its own.
        scale: a factor on the output projections of the branches.
        seed: of what is drawn.
        finish: called with the whole folder before it gets its name; what it raises leaves nothing behind.

    Raises:
        ConfigError: pairs cannot be built into this model, or not at these places.
        StorageError: the file system refused; nothing is left of `out`.
    """
    refuse_output(folder, out)
    if source not in (None, "slice", "random"):
        raise ConfigError(f"--source {source!r} is not for a model of Transformers: expected slice or random")
    refuse_positions(folder, positions)
    known = known_pairs(folder)
    refuse_other_tensors(folder)
    _refuse_unknown_head(folder)
    parent = ParentModel(folder)
    new = plan_blocks(folder, known, kinds, positions)
    base = {key: value for key, value in folder.parent_config.items() if key != "model_type"}
    method = ",".join(block["kind"] for block in new)
    event = {
        "method": method,
        "parent": parent_name(folder.path),
        "positions": [block["after"] for block in new],
        "layers_before": folder.num_layers + 2 * len(known),
        "ids": [block["id"] for block in new],
        "source": source or "slice",
        "scale": scale,
        "seed": seed,
    }
    base = with_lineage(base, Stack(tuple(range(folder.num_layers)), ()), event, trained=folder.is_trained)
    config = modeling.grown_dict(folder.model_type, base, parent.pairs([*known, *new]))
    values = PairValues(parent, config, "random" if source == "random" else "slice", scale, seed)
    values.refuse_other_heads()
    tensors = [tensor for block in new for tensor in values.tensors(block)]
    grown = Grown(
        out=out,
        method=method,
        layers_before=folder.num_layers + 2 * len(known),
        layers_after=folder.num_layers + 2 * (len(known) + len(new)),
        parameters_before=folder.parameters,
        parameters_after=folder.parameters + sum(prod(tensor.shape) for tensor in tensors),
        positions=tuple(block["after"] for block in new),
        ids=tuple(block["id"] for block in new),
        theta_0=values.in_words(new),
        notes=parent.notes,
        preserves=True,
    )
    code = Path(modeling.__file__).read_text(encoding="utf-8")
    left = write_grown(
        folder,
        out,
        config=config,
        new=tensors,
        card=model_card(folder, grown, base) + LOADING,
        texts={CODE: code},
        finish=None if finish is None else lambda fresh: finish(fresh, grown),
    )
    return replace(grown, notes=(*grown.notes, *left))


def _refuse_unknown_head(folder: PretrainedFolder) -> None:
    """Where no auto class of the grown folder would give the model with the head that it has."""
    names = folder.parent_config.get("architectures") or ()
    possible = {name: facade for facade in modeling.FACADES for name in facade.parents(folder.model_type)}
    if names and possible.keys().isdisjoint(names):
        raise ConfigError(
            f"{str(folder.path)!r}: pairs cannot be built into a {one_line(names[0])}, expected one of "
            f"{', '.join(possible)}: load it by AutoModel.from_pretrained(), save that by save_pretrained() and grow "
            "it, or use --method copy or zero"
        )


def known_pairs(folder: PretrainedFolder) -> list[dict[str, Any]]:
    """The pairs that a folder has, as config.json names them.

    Raises:
        InvalidInputError: they are not named as `grow_pairs` writes them.
    """
    if not folder.has_pairs:
        return []
    pairs = folder.config.get("pairs")
    blocks = pairs.get("blocks") if isinstance(pairs, dict) else None
    if not isinstance(blocks, list):
        raise invalid(folder.path / CONFIG, f"pairs.blocks is {blocks!r}, expected a list")
    for block in blocks:
        known = block if isinstance(block, dict) else {}
        whole = isinstance(known.get("after"), int) and known.get("kind") in PAIR_KINDS
        if not whole or not re.fullmatch(r"p\d+", str(known.get("id"))):
            raise invalid(folder.path / CONFIG, f"pairs.blocks has {block!r}, expected an id, a kind and a place")
    return blocks


def plan_blocks(
    folder: PretrainedFolder, known: Sequence[Mapping[str, Any]], kinds: Sequence[str], positions: Sequence[int]
) -> list[dict[str, Any]]:
    """The new pairs as config.json names them: an id that was not used, a kind, a place."""
    unknown = [kind for kind in kinds if kind not in PAIR_KINDS]
    if unknown or not kinds:
        expected = ", ".join(PAIR_KINDS)
        raise ConfigError(f"--pair {','.join(kinds)} is not for a model of Transformers: expected of {expected}")
    attended = any(block["kind"] == "attention" for block in known)
    number = max((int(block["id"][1:]) for block in known), default=0)
    blocks = []
    for at, place in enumerate(sorted(positions)):
        kind = kinds[min(at, len(kinds) - 1)]
        if kind == ATTENTION_FIRST:
            kind = "ffn" if attended else "attention"
        if kind == "depthwise" and folder.model_type not in FIXED_TOKENS:
            raise ConfigError(
                f"--pair depthwise: in model_type {folder.model_type!r} the number of tokens varies, and a convolution "
                "along them would run over padding and need a cache of its own: take attention or ffn"
            )
        attended = attended or kind == "attention"
        blocks.append({"id": f"p{number + at + 1}", "kind": kind, "after": place})
    return blocks
