"""The growth plan: which blocks go where, and how each of their tensors is made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ppdgrow.config.architecture import Architecture, BlockSpec, PairState
from ppdgrow.config.growth import Method, Moments, Source
from ppdgrow.config.kinds import ATTENTION_FIRST, FAMILIES, KINDS
from ppdgrow.errors import ConfigError
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.parts import NAMES, BlockNames, BlockPart, block_parts
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.surgery.sources import Origin, nearest_part, part_origins


@dataclass(frozen=True)
class GrowthRequest:
    """What a user asks of `grow`. Under every method `pairs` adds twice as many layers."""

    kinds: tuple[str, ...] = ("ffn",)
    pairs: int = 1
    position: str = "interleave"
    source: Source | None = None
    scale: float = 1.0
    method: Method = "pair"
    moments: Moments = "copy_v"

    def kinds_for(self, architecture: Architecture) -> tuple[str, ...]:
        """The kind of each pair; the last of the list repeats.

        `attention-first` is attention if the model has no attention pair yet, else ffn. The default kind of a family's
        layers stands for that of the model's: `recurrent` is the mixer of a sequence model, whichever that is.

        Raises:
            ConfigError: a kind is unknown, or does not fit the family.
        """
        rules = FAMILIES[architecture.family]
        chosen: list[str] = []
        for index in range(self.pairs):
            asked = kind = self.kinds[min(index, len(self.kinds) - 1)]
            if kind == ATTENTION_FIRST:
                attended = "attention" in (*(block.kind for block in architecture.pairs), *chosen)
                kind = "ffn" if attended else "attention"
            if kind == rules.layers[0]:
                kind = architecture.layer_kind
            if kind not in rules.pairs:
                rule = (ATTENTION_FIRST,) if "attention" in rules.pairs else ()
                expected = f"expected one of {', '.join((*rules.pairs, *rule))}"
                if kind in KINDS:
                    raise ConfigError(
                        f"pair kind {asked!r} does not fit the family {architecture.family!r}: {expected}"
                    )
                raise ConfigError(f"unknown pair kind {asked!r}: {expected}")
            chosen.append(kind)
        return tuple(chosen)


@dataclass(frozen=True)
class GrowthPlan:
    """A growth, worked out: the grown architecture, its new blocks and the origin of each of their tensors."""

    architecture: Architecture
    blocks: tuple[BlockSpec, ...]
    origins: tuple[Origin, ...]
    positions: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(block.id for block in self.blocks)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(block.kind for block in self.blocks)

    @property
    def theta_0(self) -> str:
        """How the new tensors are made, in words: copied, sliced, drawn, zeroed, or several of these."""
        return " and ".join(sorted({origin.in_words for origin in self.origins}))


def plan_growth(
    architecture: Architecture,
    request: GrowthRequest,
    *,
    step: int,
    used_ids: frozenset[str] = frozenset(),
    names: BlockNames = NAMES,
) -> GrowthPlan:
    """Work out a growth of `architecture` at optimizer step `step`, which the new blocks record as `born`.

    The ids that earlier blocks of this lineage had, `used_ids`, are never given again; `names` are of the tensors.

    Raises:
        ConfigError: a position, kind, source or width that does not fit.
    """
    if request.pairs < 1:
        raise ConfigError(f"--pairs is {request.pairs}, expected at least 1")
    if not math.isfinite(request.scale):
        raise ConfigError(f"--scale is {request.scale}, expected a finite number such as 0.3")
    if len(request.kinds) > request.pairs:
        raise ConfigError(
            f"{len(request.kinds)} kinds are listed for {request.pairs} pair{'' if request.pairs == 1 else 's'}: set "
            f"--pairs {len(request.kinds)}"
        )
    used_ids |= {block.id for block in architecture.blocks}
    return METHODS[request.method].plan(architecture, request, step, used_ids, names)


@dataclass(frozen=True)
class PairMethod:
    """Identity-cancelling pairs, tied: the project's own."""

    name: str = "pair"
    preserves_function: bool = True

    def unused(self, source: Source | None) -> tuple[str, ...]:
        """The options of a growth that do nothing."""
        return ("moments",) if source == "random" else ()

    def label(self, kinds: Sequence[str]) -> str:
        """What tells such a growth from others, in a word."""
        return "/".join(dict.fromkeys(kinds))

    def describe(self, kinds: Sequence[str]) -> str:
        """What the new blocks are, in words."""
        return f"{len(kinds)} {self.label(kinds)} pair{'' if len(kinds) == 1 else 's'}"

    def in_words(self, request: GrowthRequest, places: str) -> str:
        """What is asked for, its position with the places that it means."""
        kinds = "/".join(dict.fromkeys(request.kinds))
        plural = "" if request.pairs == 1 else "s"
        scale = "" if request.scale == 1.0 else f", scale {request.scale:g}"
        position = f"{request.position} ({places})"
        return f"{request.pairs} {kinds} pair{plural}, {position}, source {request.source or 'auto'}{scale}"

    def plan(
        self, old: Architecture, request: GrowthRequest, step: int, used_ids: frozenset[str], names: BlockNames
    ) -> GrowthPlan:
        kinds = request.kinds_for(old)
        _check_pair_fit(old, request, kinds)
        places = resolve_positions(request.position, len(old.blocks), request.pairs)
        specs = _new_blocks("pair", kinds, step, used_ids)
        grown = _insert(old, places, specs)
        origins: list[Origin] = []
        notes: dict[str, None] = {}
        for place, spec in zip(places, specs, strict=True):
            for part in block_parts(grown, spec):
                source = None
                if request.source != "random":
                    source = nearest_part(old, place, part)
                    notes.update(dict.fromkeys(_source_note(request, part, source, names)))
                origins += part_origins(part, source, scale=request.scale, names=names)
        if request.scale != 1.0 and not all(KINDS[kind].additive for kind in kinds):
            notes["pairs of linear maps have no output projections: --scale does not apply to them"] = None
        return GrowthPlan(grown, specs, tuple(origins), places, tuple(notes))


def _check_pair_fit(architecture: Architecture, request: GrowthRequest, kinds: tuple[str, ...]) -> None:
    if architecture.width % 2:
        raise ConfigError(f"width {architecture.width} cannot take pairs, which work on halves: use an even width")
    if architecture.width < 4:
        raise ConfigError(
            f"width {architecture.width} cannot take pairs: a half of one channel has a constant norm; use at least 4"
        )
    if request.scale != 1.0 and not any(KINDS[kind].additive for kind in kinds):
        raise ConfigError(
            f"--scale {request.scale:g} does nothing to pairs of kind {' and '.join(dict.fromkeys(kinds))}, which have "
            "no output projections: leave it out"
        )
    multi_head = next((kind for kind in kinds if KINDS[kind].heads), None)
    if multi_head and architecture.width % (2 * architecture.heads):
        raise ConfigError(
            f"width {architecture.width} with {architecture.heads} heads cannot take {multi_head} pairs, whose "
            f"branches work on halves: 2 x heads must divide the width; use a multiple of {2 * architecture.heads}"
        )
    if request.source == "slice" and architecture.stream == "coupled":
        raise ConfigError(
            "source slice cuts full-width branches, but the branches of a coupled stream already have the "
            "width of a pair's: use --source copy"
        )


def _source_note(request: GrowthRequest, new: BlockPart, old: BlockPart | None, names: BlockNames) -> list[str]:
    if old is None:
        return [f"no {new.name} branch in the model to start from: drawn at random"]
    same_width = old.config.channels == new.config.channels
    if request.source == "copy" and not same_width:
        raise ConfigError(
            f"source copy needs a {new.name} branch of {new.config.channels} channels, but the nearest one "
            f"({old.called('', names)}) has {old.config.channels}: use --source slice or random"
        )
    if request.source == "slice" and same_width:
        return [f"{old.called('', names)} already has the width of a pair's branch: copied whole"]
    return []


@dataclass(frozen=True)
class LayerMethod:
    """Rivals that add whole layers: m new layers at a place copy the m layers before it, in order, or are drawn.

    Copies at `end` are stacking (Gong et al. 2019), at `interleave` the interleaving of LLaMA Pro (Wu et al. 2024),
    which zeroes the output projections. Pairs are not copied.
    """

    name: str
    preserves_function: bool
    copies: bool
    zero_outputs: bool = False

    def unused(self, source: Source | None) -> tuple[str, ...]:
        """The options of a growth that do nothing."""
        scale, moments = ("scale",) if self.zero_outputs else (), () if self.copies else ("moments",)
        return ("pair", "source", *scale, *moments)

    def label(self, kinds: Sequence[str]) -> str:
        return self.name

    def describe(self, kinds: Sequence[str]) -> str:
        return f"{len(kinds)} {kinds[0]} layer{'' if len(kinds) == 1 else 's'} by method {self.name}"

    def in_words(self, request: GrowthRequest, places: str) -> str:
        """As of a pair; source and scale do not apply."""
        return f"{2 * request.pairs} layers by method {request.method}, {request.position} ({places})"

    def plan(
        self, old: Architecture, request: GrowthRequest, step: int, used_ids: frozenset[str], names: BlockNames
    ) -> GrowthPlan:
        layers = [index for index, block in enumerate(old.blocks) if block.type == "layer"]
        if self.copies and not layers:
            raise ConfigError(f"method {self.name} copies ordinary layers, and the model has none")
        insertions = resolve_positions(request.position, len(old.blocks), request.pairs)
        places = tuple(place for place in insertions for _ in range(2))
        specs = _new_blocks("layer", (old.layer_kind,) * len(places), step, used_ids)
        grown = _insert(old, places, specs)
        origins: list[Origin] = []
        for index, (place, spec) in enumerate(zip(places, specs, strict=True)):
            sources: tuple[BlockPart | None, ...] = (None, None)
            if self.copies:
                count, number = places.count(place), index - places.index(place)
                chosen = [layer for layer in layers if layer < place][-count:]
                chosen = chosen or [layer for layer in layers if layer >= place][:count]
                sources = block_parts(old, old.blocks[chosen[number % len(chosen)]])
            for part, source in zip(block_parts(grown, spec), sources, strict=True):
                for origin in part_origins(part, source, scale=request.scale, names=names):
                    zeroed = self.zero_outputs and origin.tensor in OUTPUT_PROJECTION
                    origins.append(replace(origin, how="zero", factor=1.0) if zeroed else origin)
        return GrowthPlan(grown, specs, tuple(origins), places)


# The closed registry of growth methods; each says whether the function stays the same to the bit.
METHODS: dict[str, PairMethod | LayerMethod] = {
    method.name: method
    for method in (
        PairMethod(),
        LayerMethod("zero", preserves_function=True, copies=True, zero_outputs=True),
        LayerMethod("copy", preserves_function=False, copies=True),
        LayerMethod("fresh", preserves_function=False, copies=False),
    )
}


def _new_blocks(
    block_type: Literal["pair", "layer"], kinds: tuple[str, ...], step: int, used_ids: frozenset[str]
) -> tuple[BlockSpec, ...]:
    """With ids that are `p` or `l` and a number above all that were used."""
    letter = block_type[0]
    state: PairState | None = "tied" if block_type == "pair" else None
    highest = max((int(block_id[1:]) for block_id in used_ids if block_id[0] == letter), default=0)
    return tuple(
        BlockSpec(id=f"{letter}{number}", type=block_type, kind=kind, state=state, born=step)
        for number, kind in enumerate(kinds, highest + 1)
    )


def _insert(architecture: Architecture, places: tuple[int, ...], specs: tuple[BlockSpec, ...]) -> Architecture:
    """The new blocks at places that rise."""
    blocks = list(architecture.blocks)
    for place, spec in reversed(list(zip(places, specs, strict=True))):
        blocks.insert(place, spec)
    return architecture.with_blocks(tuple(blocks))
