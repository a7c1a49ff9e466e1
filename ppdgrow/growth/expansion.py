"""An expansion of a checkpoint: surgery, what it did to the function, and the run folder that holds the result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

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
from ppdgrow.nn.model import Model, build_model
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

MEASURED = ("loss_before", "loss_after", "bit_exact")


@dataclass(frozen=True)
class Expansion:
    """A checkpoint after surgery and the event that says how it was made; nothing is written yet."""

    parent: Parent
    child: Checkpoint
    event: SurgeryEvent
    notes: tuple[str, ...] = ()
    preserves_function: bool = False

    def models(self, device: torch.device) -> list[Model]:
        """The models before and after."""
        return [build_model(c.architecture, c.tensors, device) for c in (self.parent.checkpoint, self.child)]

    def check_preserved(self, same: bool) -> None:
        """Refuse with a `CheckFailedError` what changes the function though its method promises not to."""
        if self.preserves_function and not same:
            raise CheckFailedError(
                f"the new blocks change the function of {str(self.parent.folder)!r}; nothing was written. Its weights "
                "may be non-finite or overflow: look at it with ppdgrow probe, and grow an earlier checkpoint"
            )

    def measured(self, before: Validation | None, after: Validation | None, *, bit_exact: bool) -> Expansion:
        """With what was measured of both models on the same inputs; `bit_exact`: all logits equal to the last bit."""
        losses = (None if figures is None else figures.loss for figures in (before, after))
        event = self.event.model_copy(update=dict(zip(MEASURED, (*losses, bit_exact), strict=True)))
        # The recorded figures hold on where the function does: removing a tied pair gives the parent back as it was.
        state = self.child.state if bit_exact else self.child.state.model_copy(update={"validation": after})
        return replace(self, child=replace(self.child, state=state), event=event)

    @property
    def check(self) -> CheckEvent:
        """What was measured, as the identity check: a line of its own."""
        event, passed = self.event, self.event.bit_exact if self.preserves_function else None
        figures = {key: getattr(event, key) for key in MEASURED}
        return CheckEvent(step=event.step, ids=event.ids, **figures, passed=passed)

    @property
    def place(self) -> str:
        """Where new blocks go in the parent's list, or where in it the pair stands that is taken out."""
        blocks = [block.id for block in self.parent.checkpoint.architecture.blocks]
        if isinstance(self.event, GrowEvent):
            return describe_positions(self.event.positions, len(blocks))
        return f"block {blocks.index(self.event.ids[0]) + 1} of {len(blocks)}"

    def __str__(self) -> str:
        """What is inserted or taken out, where and how, in one line."""
        event, ids = self.event, ", ".join(self.event.ids)
        if not isinstance(event, GrowEvent):
            return f"pair {ids} ({self.place}) is taken out, at step {event.step}"
        what = METHODS[event.method or ""].describe(event.kinds)
        return f"{what} ({ids}) {self.place}; theta_0 {event.theta_0}; moments {event.moments}"


def expand(parent: Parent, growth: GrowthRequest, *, evaluated: bool = True) -> Expansion:
    """The checkpoint, grown; a `ConfigError` if that does not fit the model. `evaluated`: losses will be measured."""
    old = parent.checkpoint
    plan = plan_growth(old.architecture, growth, step=parent.step, used_ids=parent.used_ids())
    seed = parent.recipe.train.seed
    tensors, moments = apply_plan(plan, old.tensors, old.moments, policy=growth.moments, seed=seed)
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
        theta_sha256={block.id: theta_digest(tensors, block.id) for block in plan.blocks if block.type == "pair"},
    )
    child = replace(old, architecture=plan.architecture, tensors=tensors, moments=moments)
    return Expansion(parent, child, event, plan.notes, METHODS[growth.method].preserves_function)


def take_out(parent: Parent, which: str, *, evaluated: bool = True) -> Expansion:
    """The checkpoint without one pair, `last` or an id, which must not be all of it; other weights stay as they are."""
    old = parent.checkpoint
    pair = select_pair(old.architecture, which)
    if len(old.architecture.blocks) == 1:
        raise ConfigError(f"{pair!r} is the only block of the model: nothing would be left")
    architecture, tensors, moments = remove_blocks(old.architecture, frozenset([pair]), old.tensors, old.moments)
    child = replace(old, architecture=architecture, tensors=tensors, moments=moments)
    return Expansion(parent, child, RemoveEvent(**_sizes(parent, architecture), evaluated=evaluated, ids=[pair]))


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
    expansion: Expansion, setting: Setting, batches: Sequence[Batch], *, stop: StopFlag | None = None
) -> Expansion:
    """The expansion with the losses of both models on the same validation batches, in one pass over them.

    Raises:
        CheckFailedError: the function must be preserved and is not.
        DivergedError: a loss is not finite.
        StoppedError: the stop flag was set meanwhile.
    """
    device, precision = setting.device, setting.precision
    (before, after), same = evaluate_together(
        expansion.models(device), batches, device=device, precision=precision, stop=stop
    )
    expansion.check_preserved(same)
    return expansion.measured(setting.figures(before), setting.figures(after), bit_exact=same)


def write_expansion(expansion: Expansion, run: RunFolder) -> None:
    """A run folder with the expanded checkpoint, measured, and the parent's recipe, metrics and lineage with its event.

    Of one that could not be written, nothing is left.
    """
    parent, child, layers = expansion.parent, expansion.child, expansion.child.architecture.num_layers
    event = expansion.event.model_copy(update={"provenance": provenance()})
    lineage = [*parent.lineage(), event, expansion.check]
    recipe = parent.run.recipe_path.read_text(encoding="utf-8")
    recipe = re.sub(rf"(?m)^  layers: (?!{layers}\b).*", f"  layers: {layers}  # ppdgrow grow", recipe, count=1)
    with run.create() as fresh:
        write_file(fresh.recipe_path, recipe)
        append_jsonl(fresh.metrics_path, parent.metrics())
        append_events(fresh.growth_path, lineage)
        write_file(fresh.card_path, model_card(run.path.name, child.architecture, child.state, lineage, recipe))
        write_checkpoint(fresh.checkpoint_path(parent.step), child)
