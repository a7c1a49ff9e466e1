"""`grow`: surgery on a checkpoint, measured. The input is only read; the output is whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ppdgrow.checkpoint import RunFolder, read_jsonl
from ppdgrow.checkpoint.events import Event
from ppdgrow.config.architecture import Architecture, TokenInput, VectorInput
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.load import Layer, resolve
from ppdgrow.console import Narrator
from ppdgrow.engine.device import autocast, resolve_device
from ppdgrow.errors import ConfigError
from ppdgrow.growth.expansion import (
    FIGURES,
    WHEN,
    Expansion,
    Measured,
    check_preserved,
    describe_expansion,
    describe_place,
    expand,
    measure,
    take_out,
    write_expansion,
)
from ppdgrow.nn.model import build_model
from ppdgrow.seeding import generator
from ppdgrow.surgery import GrowthRequest
from ppdgrow.training.context import (
    Parent,
    checkpoint_setting,
    chosen_precision,
    load_parent,
    report_parent,
    warn_of_changes,
)
from ppdgrow.training.growth_schedule import requests_of
from ppdgrow.training.output_folder import check_place, is_occupied, sibling


@dataclass(frozen=True)
class GrowRequest:
    """What a user asks of `grow`: a growth, or with `remove` the id of a pair (or `last`) to take out."""

    checkpoint: Path
    growth: GrowthRequest = field(default_factory=GrowthRequest)
    remove: str | None = None
    evaluate: bool = True
    out: Path | None = None
    device: str = "auto"
    precision: str | None = None
    data_dir: Path | None = None


def growth_asked(values: Mapping[str, Any], *, remove: str | None, source: str) -> GrowthRequest:
    """What to add, from the keys of a `growth:` entry and by its schema; None stands for a key's default.

    Args:
        values: `pair`, `pairs`, `position`, `source`, `scale`, `method`, `moments`.
        remove: the pair that is to be taken out instead, if one is.
        source: of the values, for messages.

    Raises:
        ConfigError: a bad value, or anything to add beside one to remove.
    """
    given = {name: value for name, value in values.items() if value is not None}
    defaults = GrowthConfig(at=1)
    added = [name for name, value in given.items() if name == "pair" or value != getattr(defaults, name)]
    if remove is not None and added:
        raise ConfigError("--remove takes a pair out, the other options of growth add some: give one or the other")
    try:
        recipe = resolve([Layer(source, {"growth": [{"at": 1, **given}]})]).recipe
    except ConfigError as error:
        raise ConfigError(str(error).replace("growth[0].", "")) from None
    (request,) = requests_of(recipe.growth[0])
    return request


@dataclass(frozen=True)
class GrowResult:
    """The output run, the event that made it, as in its `growth.jsonl`, and where it took place, in words."""

    run: RunFolder
    event: Event
    place: str

    def document(self) -> dict[str, Any]:
        """The JSON of `grow`."""
        event = self.event
        evaluated = event["loss_before"] is not None
        losses = {"loss_before": event["loss_before"], "loss_after": event["loss_after"]}
        return {
            "schema": 1,
            "run": self.run.path.as_posix(),
            "checkpoint": self.run.checkpoint_path(event["step"]).as_posix(),
            "parent": event["parent"],
            **{f"{figure}_{when}": event[f"{figure}_{when}"] for figure in FIGURES for when in WHEN},
            "parameters_untied": event["parameters_untied"],
            "validation": losses if evaluated else None,
            "bit_exact": event["bit_exact"],
            "pairs": event["ids"],
        }


def grow(request: GrowRequest, narrator: Narrator) -> GrowResult:
    """Grow a checkpoint, or take a pair out of it, into a new run folder.

    Raises:
        CheckFailedError: a pair changes the function; nothing is written.
        ConfigError, InvalidInputError, StorageError: as for every command.
    """
    parent = load_parent(request.checkpoint)
    expansion = expand(parent, request.growth) if request.remove is None else take_out(parent, request.remove)
    for note in expansion.notes:
        narrator.say(note)
    event = expansion.event | {"evaluated": request.evaluate}
    run = RunFolder(request.out or _default_folder(parent, event))
    place = describe_place(parent, event)
    repeated = _repeated(run, parent, event)
    if repeated is not None:
        narrator.say(f"already done: {run.path} holds this result")
        narrator.say(describe_expansion(parent, repeated))
        return GrowResult(run, repeated, place)
    narrator.now(f"growing: {describe_expansion(parent, event)}")
    measured = _measure(parent, expansion, request, narrator)
    event |= measured.document()
    write_expansion(parent, expansion, run, event, measured)
    narrator.say(describe_expansion(parent, event))
    return GrowResult(run, event, place)


def _default_folder(parent: Parent, event: Event) -> Path:
    done = "removed" if event["event"] == "remove" else "grown"
    return sibling(parent, done, event)


def _repeated(run: RunFolder, parent: Parent, event: Event) -> Event | None:
    """The recorded event if the folder holds the result of this very growth.

    Raises:
        ConfigError: it holds something else.
    """
    check_place(run, parent)
    if not is_occupied(run):
        return None
    where = f"the output folder {str(run.path)!r}"
    events = [recorded for recorded in read_jsonl(run.growth_path) if recorded.get("event") != "check"]
    same = bool(events) and all(events[-1].get(key) == value for key, value in event.items() if key != "parent")
    if not same or run.newest_valid() != run.checkpoint_path(parent.step):
        raise ConfigError(f"{where} is not empty and holds something else: choose another --out")
    return events[-1]


def _measure(parent: Parent, expansion: Expansion, request: GrowRequest, narrator: Narrator) -> Measured:
    """Both models on the same inputs: validation batches, or with `--no-eval` one synthetic batch."""
    if request.evaluate:
        setting = checkpoint_setting(
            parent, device=request.device, precision=request.precision, data_dir=request.data_dir
        )
        batches = setting.evaluation()
        warn_of_changes(setting.dataset, parent, narrator)
        return measure(parent, expansion, setting, batches)
    report_parent(parent, narrator)
    device = resolve_device(request.device)
    inputs = _synthetic_inputs(parent.checkpoint.architecture).to(device)
    logits = []
    for checkpoint in (parent.checkpoint, expansion.child):
        model = build_model(checkpoint.architecture, checkpoint.tensors, device).eval()
        with torch.no_grad(), autocast(device, chosen_precision(parent, request.precision)):
            logits.append(model(inputs))
    same = torch.equal(*logits)
    check_preserved(parent, expansion.event, same)
    return Measured(None, None, same)


def _synthetic_inputs(architecture: Architecture) -> torch.Tensor:
    spec = architecture.input
    draw = generator(0, "synthetic inputs")
    if isinstance(spec, TokenInput):
        return torch.randint(spec.vocabulary_size, (2, spec.sequence_length), generator=draw)
    shape = (spec.features,) if isinstance(spec, VectorInput) else (spec.channels, spec.height, spec.width)
    return torch.randn(2, *shape, generator=draw)
