"""An expansion of a checkpoint: surgery, what it did to the function, and the run folder that holds the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ppdgrow.atomic import write_file
from ppdgrow.checkpoint import Checkpoint, RunFolder, append_jsonl, write_checkpoint
from ppdgrow.checkpoint.events import CheckEvent, GrowEvent, RemoveEvent, SurgeryEvent, append_events
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.state import Validation
from ppdgrow.data import Batch
from ppdgrow.engine.evaluate import evaluate_together
from ppdgrow.engine.stop_flag import StopFlag
from ppdgrow.errors import CheckFailedError, ConfigError
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.nn.model import build_model
from ppdgrow.optim.update_rules import update_that_keeps
from ppdgrow.provenance import provenance
from ppdgrow.surgery import (
    METHODS,
    GrowthRequest,
    apply_plan,
    describe_positions,
    plan_growth,
    remove_blocks,
    select_pair,
    theta_digest,
)
from ppdgrow.training.context import Parent, Setting
from ppdgrow.training.finished_run import model_card


@dataclass(frozen=True)
class Expansion:
    """A checkpoint after surgery and the event that says how it was made; nothing is written yet."""

    child: Checkpoint
    event: SurgeryEvent
    notes: tuple[str, ...] = ()
    preserves_function: bool = False

    def measured(self, measured: Measured) -> tuple[SurgeryEvent, CheckEvent]:
        """Its event with what was measured, and the identity check as a line of its own."""
        figures, event = measured.document(), self.event
        passed = measured.bit_exact if self.preserves_function else None
        check = CheckEvent(step=event.step, ids=event.ids, **figures, passed=passed)
        return event.model_copy(update=figures), check


@dataclass(frozen=True)
class Measured:
    """A model before and after surgery, on the same inputs; `bit_exact`: all logits equal to the last bit."""

    before: Validation | None
    after: Validation | None
    bit_exact: bool

    def document(self) -> dict[str, Any]:
        return {
            "loss_before": None if self.before is None else self.before.loss,
            "loss_after": None if self.after is None else self.after.loss,
            "bit_exact": self.bit_exact,
        }


def expand(parent: Parent, growth: GrowthRequest, *, evaluated: bool = True) -> Expansion:
    """The checkpoint, grown. `evaluated`: its losses will be measured.

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
    event = GrowEvent(
        **_sizes(parent, plan.architecture),
        evaluated=evaluated,
        method=growth.method,
        kinds=list(plan.kinds),
        position=growth.position,
        positions=list(plan.positions),
        ids=list(plan.ids),
        source=growth.source,
        theta_0=plan.theta_0,
        scale=growth.scale,
        moments=growth.moments,
        seed=seed,
        theta_sha256={pair: theta_digest(tensors, pair) for pair in pairs},
    )
    child = replace(old, architecture=plan.architecture, tensors=tensors, moments=moments)
    return Expansion(child, event, plan.notes, METHODS[growth.method].preserves_function)


def take_out(parent: Parent, which: str, *, evaluated: bool = True) -> Expansion:
    """The checkpoint without one pair, `last` or an id; all other weights stay as they are.

    Raises:
        ConfigError: there is no such pair, or nothing would be left.
    """
    old = parent.checkpoint
    pair = select_pair(old.architecture, which)
    if len(old.architecture.blocks) == 1:
        raise ConfigError(f"{pair!r} is the only block of the model: nothing would be left")
    architecture, tensors, moments = remove_blocks(old.architecture, frozenset([pair]), old.tensors, old.moments)
    child = replace(old, architecture=architecture, tensors=tensors, moments=moments)
    return Expansion(child, RemoveEvent(**_sizes(parent, architecture), evaluated=evaluated, ids=[pair]))


def _sizes(parent: Parent, after: Architecture) -> dict[str, Any]:
    """What every surgery records: where it was made, and the size of the model before and after."""
    untied = (block.model_copy(update={"state": "untied"}) if block.type == "pair" else block for block in after.blocks)
    sizes = {
        "step": parent.step,
        "parent": parent.folder.as_posix(),
        "parent_sha256": parent.digest,
        "parameters_untied": count_parameters(after.with_blocks(tuple(untied))),
    }
    for when, architecture in (("before", parent.checkpoint.architecture), ("after", after)):
        sizes |= {
            f"layers_{when}": architecture.num_layers,
            f"parameters_{when}": count_parameters(architecture),
            f"flops_per_token_{when}": flops_per_token(architecture),
            f"half_steps_{when}": half_steps(architecture),
        }
    return sizes


def measure(
    parent: Parent,
    expansion: Expansion,
    setting: Setting,
    batches: Sequence[Batch],
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
    check_preserved(parent, expansion, same)
    return Measured(setting.figures(before), setting.figures(after), same)


def check_preserved(parent: Parent, expansion: Expansion, same: bool) -> None:
    """Refuse an expansion that changes the function though its method promises not to.

    Raises:
        CheckFailedError: it does.
    """
    if expansion.preserves_function and not same:
        raise CheckFailedError(
            f"the new blocks change the function of {str(parent.folder)!r}; nothing was written. Its weights may be "
            "non-finite or overflow: look at it with ppdgrow probe, and grow an earlier checkpoint"
        )


def write_expansion(parent: Parent, expansion: Expansion, run: RunFolder, measured: Measured) -> SurgeryEvent:
    """A run folder with the expanded checkpoint, and the parent's recipe, metrics and lineage with this event.

    Returns:
        The event, with what was measured.

    Raises:
        StorageError: it could not be written; nothing is left of it.
    """
    child = expansion.child
    # The recorded figures hold on where the function does: removing a tied pair gives the parent back as it was.
    state = child.state if measured.bit_exact else child.state.model_copy(update={"validation": measured.after})
    event, check = expansion.measured(measured)
    lineage = [*parent.lineage(), event.model_copy(update={"provenance": provenance()}), check]
    recipe = _with_depth(parent.run.recipe_path.read_text(encoding="utf-8"), child.architecture.num_layers)
    with run.create() as fresh:
        write_file(fresh.recipe_path, recipe)
        append_jsonl(fresh.metrics_path, parent.metrics())
        append_events(fresh.growth_path, lineage)
        write_file(fresh.card_path, model_card(run.path.name, child.architecture, state, lineage, recipe))
        write_checkpoint(fresh.checkpoint_path(parent.step), replace(child, state=state))
    return event


def _with_depth(recipe: str, layers: int) -> str:
    """The text of a recipe with the layers that its model now has."""
    return re.sub(rf"(?m)^  layers: (?!{layers}\b).*", f"  layers: {layers}  # ppdgrow grow", recipe, count=1)


def describe_place(parent: Parent, event: SurgeryEvent) -> str:
    """Where new blocks go in the parent's list, or where in it the pair stands that is taken out."""
    blocks = [block.id for block in parent.checkpoint.architecture.blocks]
    if isinstance(event, GrowEvent):
        return describe_positions(event.positions, len(blocks))
    return f"block {blocks.index(event.ids[0]) + 1} of {len(blocks)}"


def describe_expansion(parent: Parent, event: SurgeryEvent) -> str:
    """What is inserted or taken out, where and how, in one line."""
    ids, place = ", ".join(event.ids), describe_place(parent, event)
    if not isinstance(event, GrowEvent):
        return f"pair {ids} ({place}) is taken out, at step {event.step}"
    kinds = "/".join(dict.fromkeys(event.kinds))
    what = "pair" if event.method == "pair" else "layer"
    by = "" if event.method == "pair" else f" by method {event.method}"
    return (
        f"{len(event.ids)} {kinds} {what}{'' if len(event.ids) == 1 else 's'}{by} ({ids}) {place}; "
        f"theta_0 {event.theta_0}; moments {event.moments}"
    )
