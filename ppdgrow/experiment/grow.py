"""`grow`: surgery on a checkpoint, measured. The input is only read; the output is whole or not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from ppdgrow.accounting import count_parameters, flops_per_token, half_steps
from ppdgrow.atomic import new_folder, write_file
from ppdgrow.checkpoint import (
    Checkpoint,
    RunFolder,
    append_jsonl,
    read_jsonl,
    weight_files,
    write_checkpoint,
)
from ppdgrow.config.architecture import Architecture, TokenInput
from ppdgrow.config.state import Validation
from ppdgrow.console import Narrator
from ppdgrow.engine.device import autocast, resolve_device
from ppdgrow.engine.evaluate import BatchLike
from ppdgrow.errors import CheckFailedError, ConfigError
from ppdgrow.experiment.card import model_card
from ppdgrow.experiment.output import check_place, holds_something
from ppdgrow.experiment.recipe import digest_of, sibling
from ppdgrow.experiment.setting import (
    Parent,
    Setting,
    checkpoint_setting,
    chosen_precision,
    load_parent,
    warn_of_changes,
)
from ppdgrow.nn.model import Transformer, build_model
from ppdgrow.seeding import generator
from ppdgrow.surgery import (
    GrowthRequest,
    apply_plan,
    plan_growth,
    remove_blocks,
    select_pair,
    theta_digest,
)

# Methods whose insertion must not change the function, to the bit.
PRESERVING = ("pair", "zero")
FIGURES = ("layers", "parameters", "flops_per_token", "half_steps")
WHEN = ("before", "after")


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


@dataclass(frozen=True)
class Measured:
    """A model before and after surgery, on the same inputs."""

    before: Validation | None
    after: Validation | None
    bit_exact: bool


@dataclass(frozen=True)
class GrowResult:
    """The output run and the event that made it, as in its `growth.jsonl`."""

    run: RunFolder
    event: dict[str, Any]

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
    child, event = _remove(parent, request) if request.remove is not None else _grow(parent, request, narrator)
    event["evaluated"] = request.evaluate
    run = RunFolder(request.out or _default_folder(parent, event))
    repeated = _repeated(run, parent, event)
    if repeated is not None:
        narrator.say(f"already done: {run.path} holds this result")
        return GrowResult(run, repeated)
    must_preserve = request.remove is None and request.growth.method in PRESERVING
    measured = _measure(parent, child, request, narrator, must_preserve=must_preserve)
    event |= {
        "loss_before": None if measured.before is None else measured.before.loss,
        "loss_after": None if measured.after is None else measured.after.loss,
        "bit_exact": measured.bit_exact,
    }
    _write(parent, child, run, event, measured)
    return GrowResult(run, event)


def _grow(parent: Parent, request: GrowRequest, narrator: Narrator) -> tuple[Checkpoint, dict[str, Any]]:
    old = parent.checkpoint
    plan = plan_growth(old.architecture, request.growth, step=parent.step, used_ids=parent.used_ids())
    for note in plan.notes:
        narrator.say(note)
    seed = parent.recipe.train.seed
    tensors, moments = apply_plan(plan, old.tensors, old.moments, policy=request.growth.moments, seed=seed)
    child = _child(parent, plan.architecture, tensors, moments)
    pairs = [block.id for block in plan.architecture.pairs if block.id in plan.ids]
    growth = request.growth
    event = _event("grow", parent, plan.architecture) | {
        "method": growth.method,
        "kinds": list(plan.kinds),
        "position": growth.position,
        "positions": list(plan.positions),
        "ids": list(plan.ids),
        "source": growth.source,
        "theta_0": plan.theta_0,
        "scale": growth.scale,
        "moments": growth.moments,
        "seed": seed,
        "theta_sha256": {pair: theta_digest(tensors, pair) for pair in pairs},
    }
    return child, event


def _remove(parent: Parent, request: GrowRequest) -> tuple[Checkpoint, dict[str, Any]]:
    old = parent.checkpoint
    pair = select_pair(old.architecture, request.remove or "last")
    if len(old.architecture.blocks) == 1:
        raise ConfigError(f"{pair!r} is the only block of the model: nothing would be left")
    architecture, tensors, moments = remove_blocks(old.architecture, frozenset([pair]), old.tensors, old.moments)
    child = _child(parent, architecture, tensors, moments)
    return child, _event("remove", parent, architecture) | {"ids": [pair]}


def _event(name: str, parent: Parent, after: Architecture) -> dict[str, Any]:
    event = {
        "event": name,
        "step": parent.step,
        "parent": parent.folder.as_posix(),
        "parent_sha256": parent.digest,
    }
    for when, architecture in zip(WHEN, (parent.checkpoint.architecture, after), strict=True):
        event |= {
            f"layers_{when}": architecture.num_layers,
            f"parameters_{when}": count_parameters(architecture),
            f"flops_per_token_{when}": flops_per_token(architecture),
            f"half_steps_{when}": half_steps(architecture),
        }
    return event


def _child(
    parent: Parent,
    architecture: Architecture,
    tensors: dict[str, torch.Tensor],
    moments: dict[str, dict[str, torch.Tensor]],
) -> Checkpoint:
    old = parent.checkpoint
    return Checkpoint(architecture, tensors, moments, old.rng, old.state, old.tokenizer)


def _default_folder(parent: Parent, event: dict[str, Any]) -> Path:
    done = "removed" if event["event"] == "remove" else "grown"
    return sibling(parent, f"-{done}-{digest_of(event)}")


def _repeated(run: RunFolder, parent: Parent, event: dict[str, Any]) -> dict[str, Any] | None:
    """The recorded event if the folder holds the result of this very growth.

    Raises:
        ConfigError: it holds something else.
    """
    check_place(run, parent)
    if not holds_something(run):
        return None
    where = f"the output folder {str(run.path)!r}"
    events = read_jsonl(run.growth_path)
    same = bool(events) and all(events[-1].get(key) == value for key, value in event.items() if key != "parent")
    if not same or run.newest_valid() != run.checkpoint_path(parent.step):
        raise ConfigError(f"{where} is not empty and holds something else: choose another --out")
    return events[-1]


def _measure(
    parent: Parent, child: Checkpoint, request: GrowRequest, narrator: Narrator, *, must_preserve: bool
) -> Measured:
    """Both models on the same inputs: validation batches, or with `--no-eval` one synthetic batch.

    Raises:
        CheckFailedError: the function must be preserved and is not.
        DivergedError: a loss is not finite.
    """
    old = parent.checkpoint
    if not request.evaluate:
        device = resolve_device(request.device)
        inputs = _synthetic_inputs(old.architecture).to(device)
        logits = []
        for model in _models(old, child, device):
            with torch.no_grad(), autocast(device, chosen_precision(parent, request.precision)):
                logits.append(model(inputs))
        same = torch.equal(*logits)
        if must_preserve and not same:
            _fail(parent)
        return Measured(None, None, same)
    setting = checkpoint_setting(parent, device=request.device, precision=request.precision, data_dir=request.data_dir)
    batches = setting.evaluation()
    warn_of_changes(setting.dataset, parent, narrator)
    before, after = _models(old, child, setting.device)
    same = _same_outputs(before, after, batches, setting)
    if must_preserve and not same:
        _fail(parent)
    return Measured(
        before=setting.figures(setting.evaluate(before, batches)),
        after=setting.figures(setting.evaluate(after, batches)),
        bit_exact=same,
    )


def _fail(parent: Parent) -> NoReturn:
    raise CheckFailedError(
        f"the new blocks change the function of {str(parent.folder)!r}; nothing was written. Its weights may be "
        "non-finite or overflow: look at it with ppdgrow probe, and grow an earlier checkpoint"
    )


def _models(old: Checkpoint, new: Checkpoint, device: torch.device) -> tuple[Transformer, Transformer]:
    before, after = (build_model(c.architecture, c.tensors, device).eval() for c in (old, new))
    return before, after


@torch.no_grad()
def _same_outputs(before: Transformer, after: Transformer, batches: Sequence[BatchLike], setting: Setting) -> bool:
    """Whether all logits of all batches are equal to the last bit."""
    for batch in batches:
        with autocast(setting.device, setting.precision):
            if not torch.equal(before(batch.inputs), after(batch.inputs)):
                return False
    return True


def _synthetic_inputs(architecture: Architecture) -> torch.Tensor:
    spec = architecture.input
    draw = generator(0, "synthetic inputs")
    if isinstance(spec, TokenInput):
        return torch.randint(spec.vocabulary_size, (2, spec.sequence_length), generator=draw)
    return torch.randn(2, spec.channels, spec.height, spec.width, generator=draw)


def _write(parent: Parent, child: Checkpoint, run: RunFolder, event: dict[str, Any], measured: Measured) -> None:
    """The output run: the child's checkpoint, and the parent's recipe, metrics and lineage with this event."""
    # The recorded figures hold on where the function does: removing a tied pair gives the parent back as it was.
    state = child.state if measured.bit_exact else child.state.model_copy(update={"validation": measured.after})
    child = replace(child, state=state)
    lineage = [*parent.lineage(), event]
    recipe = parent.run.recipe_path.read_text(encoding="utf-8")
    with new_folder(run.path) as folder:
        fresh = RunFolder(folder)
        write_file(fresh.recipe_path, recipe)
        append_jsonl(fresh.metrics_path, parent.metrics())
        append_jsonl(fresh.growth_path, lineage)
        write_file(fresh.card_path, model_card(run.path.name, child.architecture, state, lineage, recipe))
        write_checkpoint(fresh.checkpoint_path(parent.step), child, assignment=weight_files(parent.folder))
