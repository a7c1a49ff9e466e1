"""Deepen a folder of Transformers by ordinary layers: the result is a folder that everything loads.

The parent's tensors keep their bytes; those behind a new layer only get another number in their names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.card import model_card, parent_name
from ppdgrow.pretrained.deeper_config import Stack, deeper_config, with_lineage
from ppdgrow.pretrained.expected_tensors import refuse_other_tensors
from ppdgrow.pretrained.families import AXES
from ppdgrow.pretrained.folder import CHUNK, CONFIG, PretrainedFolder, TensorEntry
from ppdgrow.pretrained.library import load_config
from ppdgrow.pretrained.skeleton import as_on_disk, draw_layer, layer_list, refuse_changed_layers, skeleton
from ppdgrow.pretrained.write import Grown, NewTensor, refuse_output, refuse_positions, write_grown

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NORM_FIRST = "do_layer_norm_before"  # of OPT: where it is false, the norms are on the stream itself
LEGACY = {".gamma": ".weight", ".beta": ".bias"}  # of norms in old checkpoints


@dataclass(frozen=True)
class PlainMethod:
    """A way to fill new layers.

    Args:
        theta_0: where the weights come from, in words.
        preserves: whether the function stays the same to the bit.
        draws: new weights are drawn rather than copied.
        zeroes: the maps into the stream are zero.
    """

    theta_0: str
    preserves: bool = False
    draws: bool = False
    zeroes: bool = False


PLAIN_METHODS: Mapping[str, PlainMethod] = {
    "zero": PlainMethod("copied from the layers before, the maps into the stream zero", preserves=True, zeroes=True),
    "copy": PlainMethod("copied from the layers before"),
    "fresh": PlainMethod("drawn as the model draws its own", draws=True),
}


def grow_plain(
    folder: PretrainedFolder,
    *,
    method: Literal["zero", "copy", "fresh"],
    positions: Sequence[int],
    out: Path,
    seed: int = 0,
    finish: Callable[[Path, Grown], None] | None = None,
) -> Grown:
    """Write a folder with two more layers at each position.

    Args:
        folder: the parent, which is only read.
        method: a name of `PLAIN_METHODS`.
        positions: after how many of the parent's layers; one may occur several times.
        out: the new folder.
        seed: of what is drawn.
        finish: called with the whole folder before it gets its name; what it raises leaves nothing behind.

    Raises:
        ConfigError: the method cannot be applied to this model, or at these places.
        StorageError: the file system refused; nothing is left of `out`.
    """
    refuse_output(folder, out)
    way = PLAIN_METHODS[method]
    if folder.has_pairs:
        raise ConfigError(
            f"{str(folder.path)!r} has pairs, and --method {method} adds plain layers to a folder without: "
            "add the layers first, or grow it by pairs"
        )
    refuse_other_tensors(folder)
    outputs = _outputs(folder) if way.zeroes else ()
    stack = plan_stack(folder, positions)
    config, notes = deeper_config(folder, stack)
    before, after = skeleton(folder.path, folder.config), skeleton(folder.path, config)
    path, layers = layer_list(after, len(stack.sources), folder)
    old_layers = layer_list(before, folder.num_layers, folder)[1]
    refuse_changed_layers(old_layers, layers, stack, folder.model_type)
    draw = _Draws(after, path, seed) if way.draws else None
    new = [
        _new_tensor(folder, number, stack.sources[number], suffix, entry, outputs, draw)
        for number in stack.new
        for suffix, entry in folder.layer_tensors(stack.sources[number]).items()
    ]
    grown = Grown(
        out=out,
        method=method,
        layers_before=folder.num_layers,
        layers_after=len(stack.sources),
        parameters_before=folder.parameters,
        parameters_after=folder.parameters + _additional(folder, stack),
        positions=tuple(sorted(positions)),
        ids=tuple(f"{folder.layers}{number}" for number in stack.new),
        theta_0=way.theta_0,
        notes=(*notes, *_doubts(folder, way)),
        preserves=way.preserves and folder.family is not None,
    )
    event = {
        "method": method,
        "parent": parent_name(folder.path),
        "positions": list(grown.positions),
        "layers_before": grown.layers_before,
        **({"seed": seed} if way.draws else {}),
    }
    config = with_lineage(config, stack, event, trained=folder.is_trained)
    left = write_grown(
        folder,
        out,
        config=config,
        new=new,
        renamed=_renaming(folder, stack),
        card=model_card(folder, grown, config),
        finish=None if finish is None else lambda fresh: finish(fresh, grown),
    )
    return replace(grown, notes=(*grown.notes, *left))


def plan_stack(folder: PretrainedFolder, positions: Sequence[int]) -> Stack:
    """Which layers the grown model has: m new ones at a place are made after the m before it, in order.

    Copies at the end are stacking (Gong et al. 2019), spread out the interleaving of LLaMA Pro (Wu et al. 2024). At
    place 0, and where the layers before are of a make of their own, as a first layer without a norm, those behind
    stand in.
    """
    refuse_positions(folder, positions)
    count = folder.num_layers
    makes = [
        frozenset((suffix, entry.shape) for suffix, entry in folder.layer_tensors(index).items())
        for index in range(count)
    ]
    frequency = Counter(makes)
    usual = [index for index, make in enumerate(makes) if frequency[make] > 1]
    usual = usual or [index for index, make in enumerate(makes) if len(make) == max(map(len, makes))]
    sources: list[int] = []
    new: list[int] = []
    for place in range(count + 1):
        number = 2 * positions.count(place)
        chosen = ([index for index in usual if index < place] if number else [])[-number:]
        chosen = chosen or [index for index in usual if index >= place][:number]
        for at in range(number):
            new.append(len(sources))
            sources.append(chosen[at % len(chosen)])
        if place < count:
            sources.append(place)
    return Stack(tuple(sources), tuple(new))


def _doubts(folder: PretrainedFolder, way: PlainMethod) -> tuple[str, ...]:
    """What is taken on trust in a model that is not in the registry."""
    if folder.family is not None:
        return ()
    took = f"model_type {folder.model_type!r} is not in the registry: its layers are taken to be {folder.layers}*"
    return (f"{took}, and that the function stays the same has to be checked" if way.zeroes else took,)


def _renaming(folder: PretrainedFolder, stack: Stack) -> Callable[[str], str]:
    layer = re.compile(re.escape(folder.layers) + r"(\d+)\.")
    return lambda name: layer.sub(lambda match: f"{folder.layers}{stack.kept[int(match[1])]}.", name, count=1)


def _additional(folder: PretrainedFolder, stack: Stack) -> int:
    """The number of parameters of the new layers."""
    return sum(
        entry.size
        for number in stack.new
        for suffix, entry in folder.layer_tensors(stack.sources[number]).items()
        if folder.counts(f"{folder.layers}{stack.sources[number]}.{suffix}")
    )


def _outputs(folder: PretrainedFolder) -> tuple[str, ...]:
    """The maps into the stream, by their path in a layer.

    Raises:
        ConfigError: they are not known, or a layer without them is no identity.
    """
    family = folder.family
    if family is not None and family.post_norm:
        raise ConfigError(
            f"model_type {folder.model_type!r} normalises the stream itself, so that no plain layer is the identity: "
            "grow it by pairs, which are exact, or by --method copy or fresh, which are not"
        )
    if getattr(load_config(folder.path, folder.config), NORM_FIRST, True) is False:
        raise ConfigError(
            f"{str(folder.path / CONFIG)!r}: {NORM_FIRST} is False, so that the stream itself is normalised and no "
            "plain layer is the identity: use --method copy or fresh, which change the function"
        )
    makes = [folder.layer_tensors(index) for index in range(folder.num_layers)]
    paths = {suffix.removesuffix(".weight") for make in makes for suffix in make if suffix.endswith(".weight")}
    if family is not None:
        found = tuple(path for path in family.outputs if path in paths)
    else:
        axes = {path: AXES.get(path.rpartition(".")[2], ("", "")) for path in paths}
        found = tuple(sorted(path for path in paths if axes[path] in (("x", "q"), ("x", "m"))))
        if {axes[path][1] for path in found} != {"q", "m"}:
            found = ()
    if not found:
        raise ConfigError(
            f"model_type {folder.model_type!r}: which maps of a layer end in the stream is not known, so that "
            "--method zero cannot make them zero: use --method copy or fresh"
        )
    return found


def _new_tensor(
    folder: PretrainedFolder,
    number: int,
    source: int,
    suffix: str,
    entry: TensorEntry,
    outputs: Sequence[str],
    draws: _Draws | None,
) -> NewTensor:
    old, nbytes = f"{folder.layers}{source}.{suffix}", entry.stop - entry.start
    chunks: Callable[[], Iterable[bytes]] = partial(folder.read, old)
    if suffix.rpartition(".")[0] in outputs:
        chunks = partial(_zeros, nbytes)
    elif draws is not None and folder.counts(old):
        chunks = partial(draws.bytes_of, number, suffix, entry)
    return NewTensor(f"{folder.layers}{number}.{suffix}", entry.dtype, entry.shape, nbytes, chunks)


def _zeros(nbytes: int) -> Iterator[bytes]:
    for start in range(0, nbytes, CHUNK):
        yield bytes(min(CHUNK, nbytes - start))


class _Draws:
    """Fresh layers, drawn when their first tensor is written; one is held at a time."""

    def __init__(self, model: Any, path: str, seed: int) -> None:
        self.model, self.path, self.seed = model, path, seed
        self.number = -1
        self.drawn: Mapping[str, torch.Tensor] = {}

    def bytes_of(self, number: int, suffix: str, entry: TensorEntry) -> Iterator[bytes]:
        """A tensor of a layer in the type that it has on the disk."""
        if number != self.number:
            self.drawn = {}
            drawn = draw_layer(self.model, self.path, number, self.seed)
            self.number, self.drawn = number, as_on_disk(self.model, self.path, number, drawn)
        name = next((suffix.replace(old, new) for old, new in LEGACY.items() if suffix.endswith(old)), suffix)
        tensor = self.drawn.get(name)
        if tensor is None or tuple(tensor.shape) != entry.shape:
            raise ConfigError(
                f"a layer of {type(self.model).__name__} has no {suffix} of shape {list(entry.shape)}: load the parent "
                "by from_pretrained(), save it by save_pretrained(), and grow that; or use --method copy or zero"
            )
        yield tensor.to(DTYPES[entry.dtype]).contiguous().view(torch.uint8).numpy().tobytes()
