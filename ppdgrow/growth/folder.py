"""`grow` of a folder of Transformers: pairs or plain layers, held against the model before. The input is only read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ppdgrow.checkpoint import RunFolder, locate_checkpoint, read_state
from ppdgrow.checkpoint.events import Event, GrowEvent, RemoveEvent, SurgeryEvent, append_events, read_events
from ppdgrow.checkpoint.lineage import lineage_up_to
from ppdgrow.checkpoint.safe_read import tree_of
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.requests import GrowRequest
from ppdgrow.console import Narrator
from ppdgrow.engine.device import resolve_device
from ppdgrow.errors import CheckFailedError, ConfigError
from ppdgrow.pretrained.check import same_outputs
from ppdgrow.pretrained.folder import PretrainedFolder, read_folder
from ppdgrow.pretrained.pairs import grow_pairs, known_pairs
from ppdgrow.pretrained.plain import grow_plain
from ppdgrow.pretrained.recognition import in_run
from ppdgrow.pretrained.removal import remove_pairs
from ppdgrow.pretrained.write import Grown
from ppdgrow.provenance import provenance
from ppdgrow.surgery import METHODS, describe_positions
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.training.growth_schedule import requests_of
from ppdgrow.training.output_folder import WAY_OUT, check_place, is_occupied

SEED = 0  # of weights that are drawn


@dataclass(frozen=True)
class FolderGrowth:
    """The output folder, the event that made it, as in its `growth.jsonl`, and where it took place, in words."""

    path: Path
    event: SurgeryEvent
    place: str


@dataclass(frozen=True)
class _Surgery:
    """What is asked for, as it will stand in the lineage; where, in words; and how the new folder is written."""

    event: SurgeryEvent
    place: str
    write: Callable[..., Grown]


def grow_folder(request: GrowRequest, path: Path, narrator: Narrator) -> FolderGrowth:
    """Grow the folder of Transformers that the request names into a new one, or take a pair out of it.

    Raises:
        CheckFailedError: the method promises the same function and the outputs differ; nothing is written.
        ConfigError, InvalidInputError, StorageError: as for every command.
    """
    folder = read_folder(path, request.layer_path)
    surgery = _growth(folder, request) if request.remove is None else _removal(folder, request)
    out = request.out or _default_folder(folder, surgery.event)
    check_place(out, _source(folder.path))
    repeated = _repeated(out, surgery.event)
    if repeated is not None:
        narrator.say(f"already done: {out} holds this result")
        return FolderGrowth(out, repeated, surgery.place)
    promised = request.remove is None and METHODS[request.method].preserves_function
    for note in _unused(request):
        narrator.say(note)
    narrator.now(f"growing {folder.model_type}, {folder.num_layers} layers in {folder.layers}*, {surgery.place}")
    written: list[SurgeryEvent] = []

    def finish(fresh: Path, grown: Grown) -> None:
        """Compare the outputs and write the lineage, before the folder gets its name."""
        same = same_outputs(folder.path, fresh, resolve_device(request.device)) if request.evaluate else None
        if same is False and (grown.preserves or promised):
            raise CheckFailedError(
                f"the outputs of {str(folder.path)!r} would change; nothing was written. Its weights may "
                "be non-finite or overflow in their type: look at it with Transformers, and take another copy"
            )
        sizes = ("layers_before", "layers_after", "parameters_before", "parameters_after")
        found = {key: getattr(grown, key) for key in sizes} | {"parameters_untied": grown.parameters_after}
        found |= {"ids": list(grown.ids), "bit_exact": same, "provenance": provenance()}
        found |= {} if request.remove else {"theta_0": grown.theta_0}
        event = surgery.event.model_copy(update=found)
        append_events(RunFolder(fresh).growth_path, [*_lineage(folder.path), event])  # after those that came along
        written.append(event)

    grown = surgery.write(out=out, finish=finish)
    for note in grown.notes:
        narrator.say(note)
    theta_0 = "" if request.remove else f"; theta_0 {grown.theta_0}"
    narrator.say(f"{grown.method}: {', '.join(grown.ids)} {surgery.place}{theta_0}")
    return FolderGrowth(out, written[0], surgery.place)


def _source(path: Path) -> Path:
    """What is never written to: a folder, or the run that it is a checkpoint of."""
    if not in_run(path):
        return path
    spelled, run = locate_checkpoint(path)[0].path, path.resolve().parent.parent
    return spelled if spelled.resolve() == run else run


def _lineage(path: Path) -> list[Event]:
    """What a checkpoint in a run has behind it, all before the first step of the folder that is made of it."""
    if not in_run(path):
        return []
    run = RunFolder(path.resolve().parent.parent)
    return [event.model_copy(update={"step": 0}) for event in lineage_up_to(run.growth_path, read_state(path).step)]


def _unused(request: GrowRequest) -> Iterator[str]:
    """Options of `grow` that do nothing to a folder, in words."""
    for name, default in (("moments", GrowthConfig(at=1).moments), ("precision", None), ("data_dir", None)):
        if getattr(request, name) != default:
            yield f"--{name.replace('_', '-')} does nothing to a folder of Transformers"


def _growth(folder: PretrainedFolder, request: GrowRequest) -> _Surgery:
    (growth,) = requests_of(request.growth)
    positions = resolve_positions(growth.position, folder.num_layers, growth.pairs)
    event = GrowEvent(
        step=0,
        parent=folder.path.as_posix(),
        parent_sha256=folder.digest(),
        evaluated=request.evaluate,
        method=growth.method,
        kinds=list(growth.kinds) if growth.method == "pair" else [],
        position=growth.position,
        positions=list(positions),
        source=growth.source,
        scale=growth.scale,
        seed=SEED,
    )
    if growth.method == "pair":
        write = partial(grow_pairs, kinds=growth.kinds, source=growth.source, scale=growth.scale)
    else:
        write = partial(grow_plain, method=growth.method)
    place = describe_positions(positions, folder.num_layers).replace("block", "layer")
    return _Surgery(event, place, partial(write, folder, positions=positions, seed=SEED))


def _removal(folder: PretrainedFolder, request: GrowRequest) -> _Surgery:
    pairs = known_pairs(folder)
    which = pairs[-1]["id"] if pairs and request.remove == "last" else str(request.remove)
    places = [block["after"] for block in pairs if block["id"] == which]
    event = RemoveEvent(
        step=0,
        parent=folder.path.as_posix(),
        parent_sha256=folder.digest(),
        evaluated=request.evaluate,
        ids=[which],
    )
    place = describe_positions(places, folder.num_layers).replace("block", "layer")
    return _Surgery(event, place, partial(remove_pairs, folder, [which]))


def _default_folder(folder: PretrainedFolder, event: SurgeryEvent) -> Path:
    """A folder beside the input, the end of its name a digest of how it was grown."""
    source = _source(folder.path)
    path = source.resolve()
    if tree_of(path) != path:
        raise ConfigError(f"{str(folder.path)!r} is in a cache of the hub, where nothing is written: add --out FOLDER")
    how = json.dumps(event.model_dump(exclude={"parent"}, exclude_unset=True), sort_keys=True)
    done = "grown" if isinstance(event, GrowEvent) else "removed"
    return source.parent / f"{path.name}-{done}-{hashlib.sha256(how.encode()).hexdigest()[:8]}"


def _repeated(out: Path, asked: SurgeryEvent) -> SurgeryEvent | None:
    """The recorded event if the folder holds the result of this very growth; whatever else it holds is refused."""
    if not is_occupied(out):
        return None
    last = next(reversed(read_events(RunFolder(out).growth_path)), None)
    if isinstance(last, SurgeryEvent):
        recorded = last.document()
        if all(recorded.get(key) == value for key, value in asked.document().items()):
            read_folder(out)  # refused where it is damaged
            return last
    raise ConfigError(f"the output folder {str(out)!r} is not empty and holds something else: {WAY_OUT}")
