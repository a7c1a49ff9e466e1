"""An expansion of a checkpoint: surgery, what it did to the function, and the run folder that holds the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from torch import Tensor

from ppdgrow.accounting import count_parameters, flops_per_token, half_steps
from ppdgrow.atomic import write_file
from ppdgrow.checkpoint import Checkpoint, RunFolder, append_jsonl, weight_files, write_checkpoint
from ppdgrow.checkpoint.events import Event
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.state import Validation
from ppdgrow.engine.evaluate import BatchLike, evaluate_together
from ppdgrow.engine.signals import StopFlag
from ppdgrow.errors import CheckFailedError, ConfigError
from ppdgrow.nn.model import build_model
from ppdgrow.optim.updates import update_that_keeps
from ppdgrow.provenance import provenance
from ppdgrow.surgery import (
    GrowthRequest,
    apply_plan,
    describe_positions,
    plan_growth,
    remove_blocks,
    select_pair,
    theta_digest,
)
from ppdgrow.training.context import Parent, Setting
from ppdgrow.training.model_card import model_card

# Methods whose insertion must not change the function, to the bit.
PRESERVING = ("pair", "zero")
FIGURES = ("layers", "parameters", "flops_per_token", "half_steps")
WHEN = ("before", "after")


@dataclass(frozen=True)
class Expansion:
    """A checkpoint after surgery and the event that says how it was made; nothing is written yet."""

    child: Checkpoint
    event: Event
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """A model before and after surgery, on the same inputs; `bit_exact`: all logits equal to the last bit."""

    before: Validation | None
    after: Validation | None
    bit_exact: bool

    def document(self) -> dict[str, Any]:
        """As it stands in events."""
        return {
            "loss_before": None if self.before is None else self.before.loss,
            "loss_after": None if self.after is None else self.after.loss,
            "bit_exact": self.bit_exact,
        }


def expand(parent: Parent, growth: GrowthRequest) -> Expansion:
    """The checkpoint, grown.

    Raises:
        ConfigError: the growth does not fit the model.
    """
    old = parent.checkpoint
    plan = plan_growth(old.architecture, growth, step=parent.step, used_ids=parent.used_ids())
    seed = parent.recipe.train.seed
    tensors, moments = apply_plan(
        plan, old.tensors, old.moments, policy=growth.moments, seed=seed, rules_for=update_that_keeps
    )
    pairs = [block.id for block in plan.architecture.pairs if block.id in plan.ids]
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
    return Expansion(_child(parent, plan.architecture, tensors, moments), event, plan.notes)


def take_out(parent: Parent, which: str) -> Expansion:
    """The checkpoint without one pair, `last` or an id; all other weights stay as they are.

    Raises:
        ConfigError: there is no such pair, or nothing would be left.
    """
    old = parent.checkpoint
    pair = select_pair(old.architecture, which)
    if len(old.architecture.blocks) == 1:
        raise ConfigError(f"{pair!r} is the only block of the model: nothing would be left")
    architecture, tensors, moments = remove_blocks(old.architecture, frozenset([pair]), old.tensors, old.moments)
    return Expansion(
        _child(parent, architecture, tensors, moments), _event("remove", parent, architecture) | {"ids": [pair]}
    )


def _event(name: str, parent: Parent, after: Architecture) -> Event:
    event: Event = {
        "event": name,
        "step": parent.step,
        "parent": parent.folder.as_posix(),
        "parent_sha256": parent.digest,
    }
    untied = tuple(
        block.model_copy(update={"state": "untied"}) if block.type == "pair" else block for block in after.blocks
    )
    event["parameters_untied"] = count_parameters(after.with_blocks(untied))
    for when, architecture in zip(WHEN, (parent.checkpoint.architecture, after), strict=True):
        event |= {
            f"layers_{when}": architecture.num_layers,
            f"parameters_{when}": count_parameters(architecture),
            f"flops_per_token_{when}": flops_per_token(architecture),
            f"half_steps_{when}": half_steps(architecture),
        }
    return event


def _child(
    parent: Parent, architecture: Architecture, tensors: dict[str, Tensor], moments: dict[str, dict[str, Tensor]]
) -> Checkpoint:
    old = parent.checkpoint
    return Checkpoint(architecture, tensors, moments, old.rng, old.state, old.tokenizer)


def measure(
    parent: Parent,
    expansion: Expansion,
    setting: Setting,
    batches: Sequence[BatchLike],
    *,
    stop: StopFlag | None = None,
) -> Measured:
    """Both models on the same validation batches, in one pass over them.

    Raises:
        CheckFailedError: the function must be preserved and is not.
        DivergedError: a loss is not finite.
        StoppedError: the stop flag was set meanwhile.
    """
    models = [
        build_model(checkpoint.architecture, checkpoint.tensors, setting.device)
        for checkpoint in (parent.checkpoint, expansion.child)
    ]
    (before, after), same = evaluate_together(
        models, batches, device=setting.device, precision=setting.precision, stop=stop
    )
    check_preserved(parent, expansion.event, same)
    return Measured(setting.figures(before), setting.figures(after), same)


def check_preserved(parent: Parent, event: Event, same: bool) -> None:
    """Refuse an expansion that changes the function though its method promises not to.

    Raises:
        CheckFailedError: it does.
    """
    if event["event"] == "grow" and event["method"] in PRESERVING and not same:
        _fail(parent)


def _fail(parent: Parent) -> NoReturn:
    raise CheckFailedError(
        f"the new blocks change the function of {str(parent.folder)!r}; nothing was written. Its weights may be "
        "non-finite or overflow: look at it with ppdgrow probe, and grow an earlier checkpoint"
    )


def check_event(event: Event, measured: Measured) -> Event:
    """The identity check as a line of its own."""
    promised = event["event"] == "grow" and event["method"] in PRESERVING
    return {
        "event": "check",
        "step": event["step"],
        "ids": event["ids"],
        **measured.document(),
        "passed": measured.bit_exact if promised else None,
    }


def write_expansion(parent: Parent, expansion: Expansion, run: RunFolder, event: Event, measured: Measured) -> None:
    """A run folder with the expanded checkpoint, and the parent's recipe, metrics and lineage with this event.

    Raises:
        StorageError: it could not be written; nothing is left of it.
    """
    child = expansion.child
    # The recorded figures hold on where the function does: removing a tied pair gives the parent back as it was.
    state = child.state if measured.bit_exact else child.state.model_copy(update={"validation": measured.after})
    lineage = [*parent.lineage(), event | {"provenance": provenance()}, check_event(event, measured)]
    recipe = _with_depth(parent.run.recipe_path.read_text(encoding="utf-8"), child.architecture.num_layers)
    with run.create() as fresh:
        write_file(fresh.recipe_path, recipe)
        append_jsonl(fresh.metrics_path, parent.metrics())
        append_jsonl(fresh.growth_path, lineage)
        write_file(fresh.card_path, model_card(run.path.name, child.architecture, state, lineage, recipe))
        write_checkpoint(
            fresh.checkpoint_path(parent.step), replace(child, state=state), assignment=weight_files(parent.folder)
        )


def _with_depth(recipe: str, layers: int) -> str:
    """The text of a recipe with the layers that its model now has."""
    return re.sub(rf"(?m)^  layers: (?!{layers}\b).*", f"  layers: {layers}  # ppdgrow grow", recipe, count=1)


def describe_place(parent: Parent, event: Event) -> str:
    """Where new blocks go in the parent's list, or where in it the pair stands that is taken out."""
    blocks = [block.id for block in parent.checkpoint.architecture.blocks]
    if event["event"] == "remove":
        return f"block {blocks.index(event['ids'][0]) + 1} of {len(blocks)}"
    return describe_positions(event["positions"], len(blocks))


def describe_expansion(parent: Parent, event: Event) -> str:
    """What is inserted or taken out, where and how, in one line."""
    ids = ", ".join(event["ids"])
    if event["event"] == "remove":
        return f"pair {ids} ({describe_place(parent, event)}) is taken out, at step {event['step']}"
    kinds = "/".join(dict.fromkeys(event["kinds"]))
    number = len(event["ids"])
    what = "pair" if event["method"] == "pair" else "layer"
    by = "" if event["method"] == "pair" else f" by method {event['method']}"
    return (
        f"{number} {kinds} {what}{'' if number == 1 else 's'}{by} ({ids}) {describe_place(parent, event)}; "
        f"theta_0 {event['theta_0']}; moments {event['moments']}"
    )


def describe_check(measured: dict[str, Any]) -> str:
    """Losses before and after, and whether the outputs are the same."""
    verdict = "identical to the last bit" if measured["bit_exact"] else "the outputs differ"
    if measured["loss_before"] is None:
        return f"outputs on a synthetic batch: {verdict}"
    return f"validation loss {measured['loss_before']:.6f} -> {measured['loss_after']:.6f}: {verdict}"


def describe_depth(event: Event) -> str:
    """`2 -> 4 layers`."""
    return f"{event['layers_before']} -> {event['layers_after']} layers"
