"""`grow` of a folder of Transformers: pairs or plain layers, held against the model before. The input is only read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ppdgrow.checkpoint.events import GrowEvent, append_events, read_events
from ppdgrow.checkpoint.safe_read import tree_of
from ppdgrow.config.requests import GrowRequest
from ppdgrow.console import Narrator
from ppdgrow.engine.device import resolve_device
from ppdgrow.errors import CheckFailedError, ConfigError
from ppdgrow.pretrained.check import same_outputs
from ppdgrow.pretrained.folder import PretrainedFolder, read_folder
from ppdgrow.pretrained.pairs import grow_pairs
from ppdgrow.pretrained.plain import grow_plain
from ppdgrow.pretrained.write import Grown
from ppdgrow.provenance import provenance
from ppdgrow.surgery import GrowthRequest, describe_positions
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.training.growth_schedule import requests_of
from ppdgrow.training.output_folder import WAY_OUT, check_place, is_occupied

LINEAGE = "growth.jsonl"
SEED = 0  # of weights that are drawn


@dataclass(frozen=True)
class FolderGrowth:
    """The output folder, the event that made it, as in its `growth.jsonl`, and where it took place, in words."""

    path: Path
    event: GrowEvent
    place: str


def grow_folder(request: GrowRequest, narrator: Narrator) -> FolderGrowth:
    """Grow a folder of Transformers into a new one.

    Raises:
        CheckFailedError: the method promises the same function and the outputs differ; nothing is written.
        ConfigError, InvalidInputError, StorageError: as for every command.
    """
    if request.remove is not None:
        raise ConfigError("--remove takes a pair out of a run; a folder of Transformers has its parent beside it")
    folder = read_folder(request.checkpoint, request.layer_path)
    (growth,) = requests_of(request.growth)
    positions = resolve_positions(growth.position, folder.num_layers, growth.pairs)
    asked = _event(folder, growth, positions, request)
    place = describe_positions(positions, folder.num_layers).replace("block", "layer")
    out = request.out or _default_folder(folder, asked)
    check_place(out, folder.path)
    repeated = _repeated(out, asked)
    if repeated is not None:
        narrator.say(f"already done: {out} holds this result")
        return FolderGrowth(out, repeated, place)
    narrator.now(f"growing {folder.model_type}, {folder.num_layers} layers in {folder.layers}*, {place}")
    measured: list[GrowEvent] = []

    def finish(fresh: Path, grown: Grown) -> None:
        """Compare the outputs and write the lineage, before the folder gets its name."""
        same = same_outputs(folder.path, fresh, resolve_device(request.device)) if request.evaluate else None
        if same is False and grown.preserves:
            raise CheckFailedError(
                f"the new blocks change the outputs of {str(folder.path)!r}; nothing was written. Its weights may be "
                "non-finite or overflow in their type: look at it with Transformers, and take another copy"
            )
        event = asked.model_copy(
            update={
                "ids": list(grown.ids),
                "layers_before": grown.layers_before,
                "layers_after": grown.layers_after,
                "parameters_before": grown.parameters_before,
                "parameters_after": grown.parameters_after,
                "parameters_untied": grown.parameters_after,
                "theta_0": grown.theta_0,
                "bit_exact": same,
                "provenance": provenance(),
            }
        )
        append_events(fresh / LINEAGE, [event])  # after those that came along
        measured.append(event)

    if growth.method == "pair":
        grown = grow_pairs(
            folder,
            kinds=asked.kinds,
            positions=positions,
            source=growth.source,
            scale=growth.scale,
            out=out,
            seed=SEED,
            finish=finish,
        )
    else:
        grown = grow_plain(folder, method=growth.method, positions=positions, out=out, seed=SEED, finish=finish)
    for note in grown.notes:
        narrator.say(note)
    narrator.say(f"{grown.method}: {', '.join(grown.ids)} {place}; theta_0 {grown.theta_0}")
    return FolderGrowth(out, measured[0], place)


def _event(
    folder: PretrainedFolder, growth: GrowthRequest, positions: tuple[int, ...], request: GrowRequest
) -> GrowEvent:
    """What is asked for, as it will stand in the lineage."""
    return GrowEvent(
        step=0,
        parent=folder.path.as_posix(),
        evaluated=request.evaluate,
        method=growth.method,
        kinds=list(growth.kinds) if growth.method == "pair" else [],
        position=growth.position,
        positions=list(positions),
        source=growth.source,
        scale=growth.scale,
        seed=SEED,
    )


def _default_folder(folder: PretrainedFolder, event: GrowEvent) -> Path:
    """A folder beside the input, the end of its name a digest of how it was grown."""
    path = folder.path.resolve()
    if tree_of(path) != path:
        raise ConfigError(f"{str(folder.path)!r} is in a cache of the hub, where nothing is written: add --out FOLDER")
    how = json.dumps(event.model_dump(exclude={"parent"}, exclude_unset=True), sort_keys=True)
    return folder.path.parent / f"{path.name}-grown-{hashlib.sha256(how.encode()).hexdigest()[:8]}"


def _lineage(path: Path) -> list[GrowEvent]:
    """The growths that a folder has behind it."""
    return [event for event in read_events(path / LINEAGE) if isinstance(event, GrowEvent)]


def _repeated(out: Path, asked: GrowEvent) -> GrowEvent | None:
    """The recorded event if the folder holds the result of this very growth; whatever else it holds is refused."""
    if not is_occupied(out):
        return None
    lineage = _lineage(out)
    if lineage:
        recorded = lineage[-1].document()
        if all(recorded.get(key) == value for key, value in asked.document().items()):
            return lineage[-1]
    raise ConfigError(f"the output folder {str(out)!r} is not empty and holds something else: {WAY_OUT}")
