"""The growth plan: which blocks go where, and how each of their tensors is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ppdgrow.config.architecture import Architecture, BlockSpec
from ppdgrow.config.growth import Method, Moments, Source
from ppdgrow.config.kinds import ATTENTION_FIRST, FAMILIES, KINDS, LINEAR
from ppdgrow.errors import ConfigError
from ppdgrow.nn.branches import OUTPUT_PROJECTION
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.surgery.sources import Branch, Origin, block_branches, branch_origins, nearest_branch


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

        `attention-first` is attention if the model has no attention pair yet, else ffn; `recurrent` is the mixer of a
        sequence model, whichever that is.

        Raises:
            ConfigError: a kind is unknown, or does not fit the family.
        """
        fitting = FAMILIES[architecture.family].pairs
        chosen: list[str] = []
        for index in range(self.pairs):
            asked = kind = self.kinds[min(index, len(self.kinds) - 1)]
            if kind == ATTENTION_FIRST:
                attended = "attention" in (*(block.kind for block in architecture.pairs), *chosen)
                kind = "ffn" if attended else "attention"
            if kind == "recurrent" and architecture.family == "sequence":
                kind = architecture.layer_kind
            if kind not in fitting:
                rule = (ATTENTION_FIRST,) if "attention" in fitting else ()
                expected = f"expected one of {', '.join((*fitting, *rule))}"
                if kind in KINDS:
                    raise ConfigError(
                        f"pair kind {asked!r} does not fit the family {architecture.family!r}: {expected}"
                    )
                raise ConfigError(f"unknown pair kind {asked!r}: {expected}")
            chosen.append(kind)
        return tuple(chosen)


@dataclass(frozen=True)
class GrowthPlan:
    """A growth, worked out: the grown architecture and the origin of each tensor that it adds."""

    architecture: Architecture
    origins: tuple[Origin, ...]
    ids: tuple[str, ...]
    kinds: tuple[str, ...]
    positions: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def theta_0(self) -> str:
        """How the new tensors are made, in words: copied, sliced, drawn, zeroed, or several of these."""
        return " and ".join(sorted({_in_a_word(origin) for origin in self.origins}))


def _in_a_word(origin: Origin) -> str:
    if origin.how == "copy":
        return "sliced" if origin.cut else "copied"
    return "drawn at random" if origin.how == "random" else "zeroed"


def plan_growth(
    architecture: Architecture,
    request: GrowthRequest,
    *,
    step: int,
    used_ids: frozenset[str] = frozenset(),
) -> GrowthPlan:
    """Work out a growth of `architecture` at optimizer step `step`.

    Args:
        architecture: the model to grow.
        request: what to add.
        step: recorded as the new blocks' `born`.
        used_ids: ids that earlier blocks of this lineage had, never given again.

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
    grow = PLANNERS[request.method]
    return grow(architecture, request, step, used_ids | {block.id for block in architecture.blocks})


def _plan_pairs(architecture: Architecture, request: GrowthRequest, step: int, used_ids: frozenset[str]) -> GrowthPlan:
    kinds = request.kinds_for(architecture)
    _check_pair_fit(architecture, request, kinds)
    places = resolve_positions(request.position, len(architecture.blocks), request.pairs)
    ids = _next_ids("p", request.pairs, used_ids)
    specs = tuple(
        BlockSpec(id=block_id, type="pair", kind=kind, state="tied", born=step)
        for block_id, kind in zip(ids, kinds, strict=True)
    )
    grown = _insert(architecture, places, specs)
    names = tuple(tensor_shapes(grown))
    origins: list[Origin] = []
    notes: dict[str, None] = {}
    for place, spec in zip(places, specs, strict=True):
        for branch in block_branches(grown, spec):
            old = None
            if request.source != "random":
                old = nearest_branch(architecture, place, branch)
                notes.update(dict.fromkeys(_source_note(request, branch, old)))
            origins += branch_origins(
                branch, old, _below(names, branch.prefix), width=architecture.width, scale=request.scale
            )
    if request.scale != 1.0 and any(kind in LINEAR for kind in kinds):
        notes["pairs of linear maps have no output projections: --scale does not apply to them"] = None
    return GrowthPlan(grown, tuple(origins), ids, kinds, places, tuple(notes))


def _check_pair_fit(architecture: Architecture, request: GrowthRequest, kinds: tuple[str, ...]) -> None:
    if architecture.width % 2:
        raise ConfigError(f"width {architecture.width} cannot take pairs, which work on halves: use an even width")
    if architecture.width < 4:
        raise ConfigError(
            f"width {architecture.width} cannot take pairs: a half of one channel has a constant norm; use at least 4"
        )
    if request.scale != 1.0 and all(kind in LINEAR for kind in kinds):
        raise ConfigError(
            f"--scale {request.scale:g} does nothing to pairs of kind {' and '.join(dict.fromkeys(kinds))}, which have "
            "no output projections: leave it out"
        )
    if "attention" in kinds and architecture.width % (2 * architecture.heads):
        raise ConfigError(
            f"width {architecture.width} with {architecture.heads} heads cannot take attention pairs, whose branches "
            f"work on halves: 2 x heads must divide the width; use a multiple of {2 * architecture.heads}"
        )
    if request.source == "slice" and architecture.stream == "coupled":
        raise ConfigError(
            "source slice cuts full-width branches, but the branches of a coupled stream already have the "
            "width of a pair's: use --source copy"
        )


def _source_note(request: GrowthRequest, branch: Branch, old: Branch | None) -> list[str]:
    if old is None:
        return [f"no {branch.name} branch in the model to start from: drawn at random"]
    if request.source == "copy" and old.channels != branch.channels:
        raise ConfigError(
            f"source copy needs a {branch.name} branch of {branch.channels} channels, but the nearest one "
            f"({old.prefix}) has {old.channels}: use --source slice or random"
        )
    if request.source == "slice" and old.channels == branch.channels:
        return [f"{old.prefix} already has the width of a pair's branch: copied whole"]
    return []


def _plan_copies(architecture: Architecture, request: GrowthRequest, step: int, used_ids: frozenset[str]) -> GrowthPlan:
    """Rivals that copy whole layers: m new layers at a place copy the m layers before it, in order.

    At `end` this is stacking (Gong et al. 2019), at `interleave` the interleaving of LLaMA Pro (Wu et al.
    2024), which zeroes the output projections (`zero`). Pairs are not copied.
    """
    layers = [index for index, block in enumerate(architecture.blocks) if block.type == "layer"]
    if not layers:
        raise ConfigError(f"method {request.method} copies ordinary layers, and the model has none")
    new_layers = _new_layers(architecture, request, step, used_ids)
    names = tuple(tensor_shapes(new_layers.grown))
    origins: list[Origin] = []
    new_ids = iter(new_layers.ids)
    for place, count in new_layers.counts:
        before = [index for index in layers if index < place][-count:]
        chosen = before or [index for index in layers if index >= place][:count]
        for number in range(count):
            old = architecture.blocks[chosen[number % len(chosen)]]
            new = next(new_ids)
            for role in ("f", "g"):
                for tensor in _below(names, f"blocks.{new}.{role}"):
                    name, source = f"blocks.{new}.{role}.{tensor}", f"blocks.{old.id}.{role}.{tensor}"
                    output = tensor in OUTPUT_PROJECTION
                    if output and request.method == "zero":
                        origins.append(Origin(name, "zero", source))
                    else:
                        origins.append(Origin(name, "copy", source, factor=request.scale if output else 1.0))
    return new_layers.plan(origins, request)


def _plan_fresh(architecture: Architecture, request: GrowthRequest, step: int, used_ids: frozenset[str]) -> GrowthPlan:
    new_layers = _new_layers(architecture, request, step, used_ids)
    names = tuple(tensor_shapes(new_layers.grown))
    origins = [
        Origin(
            f"blocks.{block_id}.{role}.{tensor}",
            "random",
            factor=request.scale if tensor in OUTPUT_PROJECTION else 1.0,
        )
        for block_id in new_layers.ids
        for role in ("f", "g")
        for tensor in _below(names, f"blocks.{block_id}.{role}")
    ]
    return new_layers.plan(origins, request)


# The closed registry of growth methods.
PLANNERS: dict[str, Callable[[Architecture, GrowthRequest, int, frozenset[str]], GrowthPlan]] = {
    "pair": _plan_pairs,
    "zero": _plan_copies,
    "copy": _plan_copies,
    "fresh": _plan_fresh,
}


def _rival_notes(request: GrowthRequest) -> tuple[str, ...]:
    notes = []
    if request.kinds != GrowthRequest.kinds or request.source is not None:
        notes.append(f"method {request.method} adds whole layers: --pair and --source do not apply")
    if request.method == "zero" and request.scale != 1.0:
        notes.append("method zero has zero output projections: --scale does not apply")
    return tuple(notes)


@dataclass(frozen=True)
class _NewLayers:
    """Whole layers to add: their ids, how many go to each place (ascending), and the grown architecture."""

    ids: tuple[str, ...]
    counts: tuple[tuple[int, int], ...]
    grown: Architecture

    @property
    def places(self) -> tuple[int, ...]:
        """The place of each new layer."""
        return _places(self.counts)

    def plan(self, origins: Iterable[Origin], request: GrowthRequest) -> GrowthPlan:
        """The growth that fills them."""
        kinds = (self.grown.layer_kind,) * len(self.ids)
        return GrowthPlan(self.grown, tuple(origins), self.ids, kinds, self.places, _rival_notes(request))


def _new_layers(architecture: Architecture, request: GrowthRequest, step: int, used_ids: frozenset[str]) -> _NewLayers:
    insertions = resolve_positions(request.position, len(architecture.blocks), request.pairs)
    counts = tuple((place, 2 * insertions.count(place)) for place in sorted(set(insertions)))
    ids = _next_ids("l", 2 * request.pairs, used_ids)
    kind = architecture.layer_kind
    specs = tuple(BlockSpec(id=block_id, type="layer", kind=kind, born=step) for block_id in ids)
    return _NewLayers(ids, counts, _insert(architecture, _places(counts), specs))


def _places(counts: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    return tuple(place for place, count in counts for _ in range(count))


def _next_ids(letter: str, count: int, used_ids: frozenset[str]) -> tuple[str, ...]:
    highest = max((int(block_id[1:]) for block_id in used_ids if block_id[0] == letter), default=0)
    return tuple(f"{letter}{highest + number}" for number in range(1, count + 1))


def _insert(architecture: Architecture, places: tuple[int, ...], specs: tuple[BlockSpec, ...]) -> Architecture:
    blocks: list[BlockSpec] = []
    waiting = list(zip(places, specs, strict=True))
    for index in range(len(architecture.blocks) + 1):
        blocks += [spec for place, spec in waiting if place == index]
        blocks += architecture.blocks[index : index + 1]
    return architecture.with_blocks(tuple(blocks))


def _below(names: Iterable[str], prefix: str) -> list[str]:
    """Tensor names relative to a prefix: `norm.weight`, .. below `blocks.p1.plus.f`."""
    return [name.removeprefix(f"{prefix}.") for name in names if name.startswith(f"{prefix}.")]
