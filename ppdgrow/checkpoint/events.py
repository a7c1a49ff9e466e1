"""The events of `growth.jsonl`, one model for each: how a line is written, read, checked and put into words.

A `grow` or `remove` line changes the model at its `step`. Lines with a `trial` belong to one trial of a progressive
run: `grow` (what was inserted), `check` (the losses and outputs before and after), `decision`; and a `twin` line stands
for the ungrown model beside them, where there was one. Their `step` is that of the insertion, `until` the last step of
the trial: before that step nothing was decided. A `diverged` line is the end of a run at its `step`; no checkpoint has
it behind it, so that a run that goes on takes it out.

Keys and events that this version does not know are kept. A line holds the keys that were given, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from ppdgrow.checkpoint.jsonl import append_jsonl, read_jsonl, write_jsonl
from ppdgrow.config.base import Frozen
from ppdgrow.config.state import Cost, Count, Finite

Names = Annotated[list[str], Field(max_length=2**17)]


class _Line(Frozen, extra="allow"):
    pass


class Event(_Line):
    """One line; of an event that this version does not know, all that is read of it."""

    needed_to_go_on: ClassVar[tuple[str, ...]] = ()

    event: str
    step: Count
    until: Count | None = None
    trial: str | None = None
    decision: str | None = None
    ids: Names = Field([])

    @property
    def decided(self) -> int:
        """The first step at which a checkpoint has the event behind it: for a trial, that of its decision."""
        return self.step if self.until is None else max(self.step, self.until)

    @property
    def is_kept(self) -> bool:
        """Whether it is not of a trial that was rejected, nor of a twin beside one that was accepted."""
        return self.decision != "reject"

    def document(self) -> dict[str, Any]:
        """The line as plain values."""
        return {"event": self.event, **self.model_dump(exclude_unset=True)}

    def line(self) -> str | None:
        """As a line of text in the lineage; None where another event says it already."""
        return None


class _Known(Event):
    """`growth` is the number of an entry in the recipe."""

    decision: Literal["accept", "reject"] | None = None
    growth: Annotated[int, Field(ge=1, le=2**31)] | None = None


class _Measured(_Line):
    """A model before and after surgery; losses are None where they were not evaluated."""

    loss_before: Finite | None = None
    loss_after: Finite | None = None
    bit_exact: bool | None = None

    @property
    def verdict(self) -> str:
        """Whether the outputs are the same, in words."""
        return "identical to the last bit" if self.bit_exact else "the outputs differ"


class _FromParent(_Known):
    """An event that makes a model of a checkpoint; `parent` is its folder."""

    parent: str | None = None
    parent_sha256: str | None = None
    provenance: dict[str, Any] | None = None


class TrainEvent(_FromParent):
    """The start of a training, from scratch without a `parent`, for `steps` steps; `recipe` is a digest."""

    event: Literal["train"] = "train"
    steps: Count | None = None
    recipe: str | None = None
    seed: int | None = None

    def line(self) -> str:
        origin = f"from {Path(self.parent).as_posix()}" if self.parent else "from scratch"
        return f"step {self.step}: training {origin} for {self.steps} steps, seed {self.seed}"


class SurgeryEvent(_FromParent, _Measured):
    """Blocks put in or taken out. `parameters_untied` are those of the model once its tied pairs are untied."""

    parameters_untied: Count | None = None
    layers_before: Count | None = None
    layers_after: Count | None = None
    parameters_before: Count | None = None
    parameters_after: Count | None = None
    flops_per_token_before: Count | None = None
    flops_per_token_after: Count | None = None
    half_steps_before: Count | None = None
    half_steps_after: Count | None = None
    evaluated: bool | None = None

    @property
    def depths(self) -> str:
        """`2 -> 4`."""
        return f"{self.layers_before} -> {self.layers_after}"


class GrowEvent(SurgeryEvent):
    """A growth. `theta_sha256` is the digest of theta_0 by pair id."""

    event: Literal["grow"] = "grow"
    method: str | None = None
    kinds: Names = Field([])
    position: str | None = None
    positions: list[Count] = Field([])
    source: str | None = None
    theta_0: str | None = None
    scale: Finite | None = None
    moments: str | None = None
    seed: int | None = None
    theta_sha256: dict[str, str] = Field({})

    def line(self) -> str:
        if not self.is_kept:
            return (
                f"step {self.step}: trial {self.trial}, {self.layers_before} to {self.layers_after} layers by method "
                f"{self.method}"
            )
        losses = f", validation loss {self.loss_before} before and {self.loss_after} after"
        return (
            f"step {self.step}: grown from {self.layers_before} to {self.layers_after} layers by method {self.method}, "
            f"blocks {', '.join(self.ids)}{'' if self.loss_before is None else losses}"
        )


class RemoveEvent(SurgeryEvent):
    """A pair taken out by hand."""

    event: Literal["remove"] = "remove"

    def line(self) -> str:
        return f"step {self.step}: {', '.join(self.ids)} removed"


class CheckEvent(_Known, _Measured):
    """What the surgery before it did to the function. `passed` is None where nothing was promised."""

    event: Literal["check"] = "check"
    passed: bool | None = None

    @property
    def outcome(self) -> str:
        """Losses before and after, and whether the outputs are the same, in words."""
        if self.loss_before is None:
            return f"outputs on a synthetic batch: {self.verdict}"
        return f"validation loss {self.loss_before:.6f} -> {self.loss_after:.6f}: {self.verdict}"


class _Tokens(_Line):
    tokens: Count = 0
    flops: Annotated[int, Field(ge=0, strict=False)] = 0


class _Clock(_Line):
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class TrialEvent(_Known):
    """One of the models that were trained for a trial, and what it cost."""

    cost: _Tokens = _Tokens()
    timing: _Clock = _Clock()


def cost_keys(cost: Cost) -> dict[str, Any]:
    """A cost as it stands in an event: wall-clock apart from what is the same on every machine."""
    return {"cost": {"tokens": cost.tokens, "flops": cost.flops}, "timing": {"seconds": cost.seconds}}


class TwinDifference(_Line):
    """Loss of the grown model minus that of its twin, with the ends of its 95 % interval."""

    difference: Finite
    low: Finite
    high: Finite
    examples: Count


class DecisionEvent(TrialEvent):
    """What became of a trial. `retry`: it was tried again at a lower rate; `passed`: its rule accepts it.

    Several candidates may pass, of which one has `decision` accept.
    """

    needed_to_go_on = ("growth", "until", "trial", "decision", "pair_lr", "loss_before", "loss_after", "twin", "rule")

    event: Literal["decision"] = "decision"
    attempt: int | None = None
    pair_lr: Finite | None = None
    retry: bool | None = None
    passed: bool | None = None
    rule: str | None = None
    loss_before: Finite | None = None
    loss_after: Finite | None = None
    epsilon: Finite | None = None
    twin: TwinDifference | None = None
    margin: Finite | None = None

    def line(self) -> str:
        kept = "kept" if self.decision == "accept" else "rejected"
        return (
            f"step {self.until}: trial {self.trial} {kept} by the {self.rule} rule, validation loss "
            f"{self.loss_before} before and {self.loss_after} after"
        )


class TwinEvent(TrialEvent):
    """The ungrown model beside the trials of one growth; `kept`: it became the run."""

    event: Literal["twin"] = "twin"
    parent_sha256: str | None = None
    kept: bool | None = None
    loss: Finite | None = None

    @property
    def is_kept(self) -> bool:
        return bool(self.kept)


class SkipEvent(_Known):
    """A growth of the recipe that was not tried."""

    needed_to_go_on = ("growth", "until", "reason")

    event: Literal["skip"] = "skip"
    reason: str | None = None

    def line(self) -> str:
        return f"step {self.step}: growth {self.growth} was not tried: {self.reason}"


class DivergedEvent(_Known):
    """The end of a run whose loss is not finite."""

    event: Literal["diverged"] = "diverged"

    def line(self) -> str:
        return f"step {self.step}: diverged"


KNOWN: dict[str, type[Event]] = {
    known.model_fields["event"].default: known
    for known in (TrainEvent, GrowEvent, RemoveEvent, CheckEvent, DecisionEvent, TwinEvent, SkipEvent, DivergedEvent)
}


def read_events(path: Path) -> list[Event]:
    """All events of a `growth.jsonl`; an absent file has none. What is no event is refused as by `read_jsonl`."""
    events: list[Event] = []

    def parse(line: Mapping[str, Any], before: Mapping[str, Any] | None) -> str | None:
        name = line.get("event")
        try:
            events.append((KNOWN.get(name, Event) if isinstance(name, str) else Event).model_validate(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return None

    read_jsonl(path, parse)
    return events


def append_events(path: Path, events: Iterable[Event]) -> None:
    append_jsonl(path, [event.document() for event in events])


def write_events(path: Path, events: Iterable[Event]) -> None:
    """Write a log anew, at once or not at all."""
    write_jsonl(path, [event.document() for event in events])
