"""What a run has before it, from its recipe alone: the growths that it plans, their cost, and its learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ppdgrow.config.architecture import Architecture
from ppdgrow.config.growth import GrowthConfig, shorten_entry
from ppdgrow.nn.cost import training_flops_per_token
from ppdgrow.optim.schedule import Schedule
from ppdgrow.surgery import GrowthRequest, describe_positions, plan_growth, untie
from ppdgrow.surgery.positions import resolve_positions
from ppdgrow.training.growth_schedule import GrowthSchedule, requests_of


@dataclass(frozen=True)
class Stage:
    """A planned growth, all earlier ones being kept: from `before` at step `start`, at the earliest, to `after`.

    `after` has the architecture of each candidate, its pairs untied as the first step of a trial does.
    """

    entry: GrowthConfig
    start: int
    before: Architecture
    requests: tuple[GrowthRequest, ...]
    after: tuple[Architecture, ...]

    @property
    def kept(self) -> Architecture:
        """The model if this growth is kept; of several candidates, the first."""
        return self.after[0]

    def document(self) -> dict[str, Any]:
        """In plain values."""
        return {
            "at": self.entry.at,
            "earliest_step": self.start,
            "patience_evaluations": self.entry.patience if self.entry.at == "plateau" else None,
            "trial_steps": self.entry.trial.steps,
            "rule": self.entry.trial.rule,
            "epsilon_nats": self.entry.trial.epsilon,
            "margin_nats": self.entry.trial.margin,
            "on_reject": shorten_entry(self.entry.model_dump())["on_reject"],
            "layers_before": self.before.num_layers,
            "candidates": [
                asdict(request) | {"kinds": list(request.kinds), "layers_after": grown.num_layers}
                for request, grown in zip(self.requests, self.after, strict=True)
            ],
        }

    def line(self) -> str:
        """In words, on one line."""
        entry = self.entry
        when = (
            f"when {entry.patience} evaluations bring no new best, from step {self.start} on"
            if entry.at == "plateau"
            else f"at step {entry.at}"
        )
        depths = dict.fromkeys(grown.num_layers for grown in self.after)
        tried = " | ".join(_in_words(request, len(self.before.blocks)) for request in self.requests)
        several = f"{len(self.requests)} candidates: " if len(self.requests) > 1 else ""
        bound = f"epsilon {entry.trial.epsilon:g}" if entry.trial.rule == "parent" else f"margin {entry.trial.margin:g}"
        reject = "taken out if rejected"
        if not entry.on_reject.remove:
            times = f"each at {entry.on_reject.lower_lr:g} times the rate before"
            reject = f"if rejected, up to {entry.on_reject.retries} more tries, {times}"
        return (
            f"{when}: {self.before.num_layers} -> {' or '.join(map(str, depths))} layers, {several}{tried}; "
            f"trial of {entry.trial.steps} steps, rule {entry.trial.rule} ({bound} nats); {reject}"
        )


def _in_words(request: GrowthRequest, num_blocks: int) -> str:
    places = resolve_positions(request.position, num_blocks, request.pairs)
    position = f"{request.position} ({describe_positions(places, num_blocks)})"
    if request.method != "pair":
        return f"{2 * request.pairs} layers by method {request.method}, {position}"
    kinds = "/".join(dict.fromkeys(request.kinds))
    plural = "" if request.pairs == 1 else "s"
    scale = "" if request.scale == 1.0 else f", scale {request.scale:g}"
    return f"{request.pairs} {kinds} pair{plural}, {position}, source {request.source or 'auto'}{scale}"


def stages(growth_schedule: GrowthSchedule, architecture: Architecture) -> list[Stage]:
    """The growths of a run whose schedule was checked, as if each were kept; those at a plateau at the earliest."""
    found: list[Stage] = []
    free_from = growth_schedule.first
    for entry in growth_schedule.entries:
        start = free_from if entry.at == "plateau" else entry.at
        free_from = start + entry.trial.steps
        requests = requests_of(entry)
        plans = [plan_growth(architecture, request, step=max(1, start)) for request in requests]
        after = tuple(untie(plan.architecture, {}, {})[0] for plan in plans)
        found.append(Stage(entry, start, architecture, requests, after))
        architecture = after[0]
    return found


def run_flops(
    planned: Sequence[Stage], growth_schedule: GrowthSchedule, architecture: Architecture, tokens_per_step: int
) -> int:
    """FLOPs of all steps of a run, each growth being kept from its first step on."""
    total, first = 0, growth_schedule.first
    for stage in planned:
        total += (stage.start - first) * training_flops_per_token(stage.before)
        first, architecture = stage.start, stage.kept
    return tokens_per_step * (total + (growth_schedule.last - first) * training_flops_per_token(architecture))


def trial_flops(planned: Sequence[Stage], tokens_per_step: int) -> int:
    """FLOPs beside the run: the ungrown twin of each trial, and the candidates that are not kept."""
    return tokens_per_step * sum(
        stage.entry.trial.steps * sum(map(training_flops_per_token, (stage.before, *stage.after[1:])))
        for stage in planned
    )


@dataclass(frozen=True)
class Phase:
    """Steps `first_step .. last_step` of a schedule, `name` being warm-up, peak or decay; rates at both ends."""

    name: str
    first_step: int
    last_step: int
    first_lr: float
    last_lr: float

    def __str__(self) -> str:
        if self.name == "peak":
            return f"{self.last_lr:.1e} to step {self.last_step}"
        return f"{self.name} to {self.last_lr:.1e} at step {self.last_step}"


def phases(schedule: Schedule, lr: float, *, first: int, last: int) -> list[Phase]:
    """What the learning rate does in a run over steps `first + 1 .. last`, from the schedule's own factors.

    Where warm-up and decay overlap, which a decay over the whole run does, all of it counts as decay but the rise.
    """
    found: list[Phase] = []
    for name, begin, end in _spans(schedule):
        begin, end = max(begin, first + 1), min(end, last)
        if begin <= end:
            found.append(Phase(name, begin, end, lr * schedule.factor(begin), lr * schedule.factor(end)))
    return found


def _spans(schedule: Schedule) -> Iterator[tuple[str, int, int]]:
    """Steps at which the factor rises, stays at 1, falls."""
    start, end = schedule.start, schedule.end
    rising = start + schedule.warmup_steps if schedule.initial < 1.0 else start
    level = end
    if schedule.decay:
        level = end - round(schedule.decay_fraction * (end - start)) if schedule.kind == "wsd" else rising
    rising, level = min(rising, end), max(level, rising)
    if rising > start:
        yield "warm-up", start + 1, rising
    if level > rising:
        yield "peak", rising + 1, level
    if end > level:
        yield "decay", level + 1, end


def schedule_line(schedule: Schedule, lr: float, *, first: int, last: int) -> str:
    """The learning rate in words, on one line."""
    text = ", ".join(map(str, phases(schedule, lr, first=first, last=last)))
    if (schedule.start, schedule.end) != (first, last):
        text += f" (part of a schedule over steps {schedule.start + 1}-{schedule.end})"
    return text if schedule.decay else f"{text}, no decay"
