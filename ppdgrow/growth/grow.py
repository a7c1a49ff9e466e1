"""`grow`: surgery on a checkpoint, measured. The input is only read; the output is whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ppdgrow.checkpoint import RunFolder
from ppdgrow.checkpoint.events import CheckEvent, SurgeryEvent, read_events
from ppdgrow.config.architecture import Architecture, TokenInput, VectorInput
from ppdgrow.config.requests import GrowRequest
from ppdgrow.console import Narrator
from ppdgrow.engine.device import autocast, resolve_device
from ppdgrow.errors import ConfigError
from ppdgrow.growth.expansion import Expansion, expand, measure, take_out, write_expansion
from ppdgrow.pretrained.library import require_transformers
from ppdgrow.pretrained.recognition import pretrained_folder
from ppdgrow.seeding import generator
from ppdgrow.training.context import (
    Parent,
    checkpoint_setting,
    chosen_precision,
    load_parent,
    report_parent,
    warn_of_changes,
)
from ppdgrow.training.growth_schedule import requests_of, unused_options
from ppdgrow.training.output_folder import check_place, is_occupied, sibling


@dataclass(frozen=True)
class GrowResult:
    """The output, a run or a folder of Transformers, and its checkpoint, which is that folder itself.

    `event` made it, as in its `growth.jsonl`, `place` is where that took place, in words.
    """

    path: Path
    checkpoint: Path
    event: SurgeryEvent
    place: str

    def document(self) -> dict[str, Any]:
        """The JSON of `grow`."""
        event = self.event
        losses = {"loss_before": event.loss_before, "loss_after": event.loss_after}
        sizes = ("layers", "parameters", "flops_per_token", "half_steps")
        return {
            "schema": 1,
            "run": self.path.as_posix(),
            "checkpoint": self.checkpoint.as_posix(),
            "parent": event.parent,
            **{key: getattr(event, key) for size in sizes for key in (f"{size}_before", f"{size}_after")},
            "parameters_untied": event.parameters_untied,
            "validation": losses if event.loss_before is not None else None,
            "bit_exact": event.bit_exact,
            "pairs": event.ids,
        }


def grow(request: GrowRequest, narrator: Narrator) -> GrowResult:
    """Grow a checkpoint, or take a pair out of it, into a new run folder; a model of Transformers into a folder.

    Raises:
        CheckFailedError: a pair changes the function; nothing is written.
        ConfigError, InvalidInputError, StorageError: as for every command.
    """
    if (folder := pretrained_folder(request.checkpoint)) is not None:
        require_transformers(folder)
        from ppdgrow.growth.folder import grow_folder

        grown = grow_folder(request, folder, narrator)
        return GrowResult(grown.path, grown.path, grown.event, grown.place)
    if request.layer_path is not None:
        raise ConfigError("--layer-path is for a folder of Transformers: leave it out for a run")
    parent = load_parent(request.checkpoint)
    (growth,) = requests_of(request.growth)
    expansion = (
        expand(parent, growth, evaluated=request.evaluate)
        if request.remove is None
        else take_out(parent, request.remove, evaluated=request.evaluate)
    )
    for note in (*_unused(request), *expansion.notes):
        narrator.say(note)
    event = expansion.event
    out = request.out or sibling(parent, "grown" if request.remove is None else "removed", event.document())
    run = RunFolder(out)
    repeated = _repeated(run, parent, event)
    if repeated is not None:
        narrator.say(f"already done: {run.path} holds this result")
        narrator.say(str(expansion))
        return GrowResult(run.path, run.checkpoint_path(parent.step), repeated, expansion.place)
    narrator.now(f"growing: {expansion}")
    expansion = _measured(expansion, request, narrator)
    write_expansion(expansion, run)
    narrator.say(str(expansion))
    return GrowResult(run.path, run.checkpoint_path(parent.step), expansion.event, expansion.place)


def _unused(request: GrowRequest) -> Iterator[str]:
    """What was asked for and does nothing, each in words."""
    asked = [name for name, value in request if value != GrowRequest.model_fields[name].default]
    for name, beside in unused_options(asked, request.method, request.source):
        yield f"--{name} does nothing with {beside}"


def _repeated(run: RunFolder, parent: Parent, event: SurgeryEvent) -> SurgeryEvent | None:
    """The recorded event if the folder holds the result of this very growth; whatever else it holds is refused."""
    check_place(run.path, parent.run.path)
    if not is_occupied(run.path):
        return None
    events = [recorded for recorded in read_events(run.growth_path) if not isinstance(recorded, CheckEvent)]
    if events and isinstance(events[-1], SurgeryEvent):
        asked, recorded = event.model_dump(exclude={"parent"}, exclude_unset=True), events[-1].document()
        same = event.event == events[-1].event and all(recorded.get(key) == value for key, value in asked.items())
        if same and run.newest_valid() == run.checkpoint_path(parent.step):
            return events[-1]
    raise ConfigError(
        f"the output folder {str(run.path)!r} is not empty and holds something else: choose another --out"
    )


def _measured(expansion: Expansion, request: GrowRequest, narrator: Narrator) -> Expansion:
    """With both models run on the same inputs: validation batches, or with `--no-eval` one synthetic batch."""
    parent = expansion.parent
    if request.evaluate:
        setting = checkpoint_setting(
            parent, device=request.device, precision=request.precision, data_dir=request.data_dir
        )
        batches = setting.evaluation()
        warn_of_changes(setting.dataset, parent, narrator)
        return measure(expansion, setting, batches)
    report_parent(parent, narrator)
    device = resolve_device(request.device)
    inputs = _synthetic_inputs(parent.checkpoint.architecture).to(device)
    with torch.no_grad(), autocast(device, chosen_precision(parent.checkpoint.state, request.precision)):
        same = torch.equal(*(model.eval()(inputs) for model in expansion.models(device)))
    expansion.check_preserved(same)
    return expansion.measured(None, None, bit_exact=same)


def _synthetic_inputs(architecture: Architecture) -> torch.Tensor:
    spec = architecture.input
    draw = generator(0, "synthetic inputs")
    if isinstance(spec, TokenInput):
        return torch.randint(spec.vocabulary_size, (2, spec.sequence_length), generator=draw)
    shape = (spec.features,) if isinstance(spec, VectorInput) else (spec.channels, spec.height, spec.width)
    return torch.randn(2, *shape, generator=draw)
