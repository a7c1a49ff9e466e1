"""When a run tries to grow: a pure function of its recipe, its step, its decisions and its evaluations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppdgrow.config.architecture import Architecture
from ppdgrow.config.growth import Candidate, GrowthConfig, Method, Source
from ppdgrow.errors import ConfigError
from ppdgrow.surgery import METHODS, GrowthRequest, plan_growth, untie
from ppdgrow.training.acceptance import RULES


@dataclass(frozen=True)
class Next:
    """What comes next at a step: `growth` now (an index into the recipe's list), or training up to `step`.

    `missed` are entries that can no longer be tried, each with the reason.
    """

    step: int
    growth: int | None
    missed: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class GrowthSchedule:
    """The growth entries of a run over steps `first + 1 .. last`."""

    entries: tuple[GrowthConfig, ...]
    first: int
    last: int
    eval_every: int

    def next(self, step: int, closed: frozenset[int], losses: Sequence[float]) -> Next:
        """What to do at `step`, with some entries `closed`: decided or passed over.

        `losses` are the validation losses since the last decision (or the start), oldest first.
        """
        missed: list[tuple[int, str]] = []
        for index, entry in enumerate(self.entries):
            if index in closed:
                continue
            if entry.step is not None:
                return Next(entry.step, index if entry.step == step else None, tuple(missed))
            latest = self._latest_start(index)
            if step <= latest and is_plateau(losses, entry.patience):
                return Next(step, index, tuple(missed))
            evaluation = (step // self.eval_every + 1) * self.eval_every
            if evaluation <= latest:
                return Next(evaluation, None, tuple(missed))
            rest = " and those after it" if index + 1 < len(self.entries) else ""
            late = f"the validation loss had not levelled off by step {step}"
            missed.append((index, f"{late}, the last evaluation that leaves room for its trial{rest}"))
        return Next(self.last, None, tuple(missed))

    def _latest_start(self, index: int) -> int:
        """The last step at which the trial of a plateau entry still fits."""
        room = 0
        for entry in self.entries[index:]:
            if entry.step is not None:
                return entry.step - room
            room += entry.trial.steps
        return self.last - room


def is_plateau(losses: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` losses brought no new best."""
    earlier, recent = losses[:-patience], losses[-patience:]
    return bool(earlier) and min(recent) >= min(earlier)


def requests_of(entry: GrowthConfig) -> tuple[GrowthRequest, ...]:
    """The growths that an entry tries: its candidates, or itself."""
    return tuple(_request(entry, candidate) for candidate in entry.candidates or (Candidate(),))


def unused_options(asked: Collection[str], method: Method, source: Source | None) -> Iterator[tuple[str, str]]:
    """Of the options that were asked for, by the keys of `GrowthConfig`, those that do nothing, and with what."""
    for key in METHODS[method].unused(source):
        if key in asked:
            yield key, f"source {source}" if method == "pair" else f"method {method}"


def _request(entry: GrowthConfig, candidate: Candidate) -> GrowthRequest:
    own = candidate.model_dump(exclude_none=True)
    listed = own["position"].count(",") + 1 if own.get("position", "")[:1].isdigit() else len(own.get("pair", ()))
    others = {key: own.get(key, getattr(entry, key)) for key in ("position", "source", "scale", "method", "moments")}
    return GrowthRequest(kinds=own.get("pair", entry.pair), pairs=own.get("pairs", max(entry.pairs, listed)), **others)


@dataclass(frozen=True)
class PlannedGrowth:
    """A growth of a run, all earlier ones being kept: from `before` at step `start`, at the earliest, to `after`.

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


def planned_growths(
    growth_schedule: GrowthSchedule, architecture: Architecture, sources: Mapping[str, str] | None = None
) -> list[PlannedGrowth]:
    """The growths of a run, as if each were kept; those at a plateau at the earliest.

    Raises:
        ConfigError: the run has no room for one, or it would not fit the model; names the entry, or the flag that by
            `sources` gave its place.
    """
    planned: list[PlannedGrowth] = []
    first, last = growth_schedule.first, growth_schedule.last
    free_from = first
    for index, entry in enumerate(growth_schedule.entries):
        where = f"growth[{index}]"
        flag = (sources or {}).get(f"{where}.at")
        start = free_from if entry.step is None else entry.step
        if start < first:
            name = flag or f"{where}.at"
            raise ConfigError(f"{name} is {start}, but the run starts at step {first}: choose a later step")
        free_from = start + entry.trial.steps
        if free_from > last:
            if flag is not None:
                earlier = "grow earlier, such as at 50%, or " if last - first > entry.trial.steps else ""
                raise ConfigError(f"{flag} is {start}, but the run ends at step {last}: {earlier}set more --steps")
            needed = f"{entry.trial.steps} step{'' if entry.trial.steps == 1 else 's'}"
            raise ConfigError(
                f"{where} needs {needed} for its trial, from step {start} at the earliest, but the run ends at step "
                f"{last}: grow earlier, shorten trial.steps, or set more --steps"
            )
        requests = requests_of(entry)
        try:
            plans = [plan_growth(architecture, request, step=max(1, start)) for request in requests]
        except ConfigError as error:
            if flag is not None:
                raise
            raise ConfigError(f"{where}: {str(error).replace('--', '')}") from None  # keys here, not flags
        after = tuple(untie(plan.architecture, {}, {})[0] for plan in plans)
        planned.append(PlannedGrowth(entry, start, architecture, requests, after))
        architecture = after[0]
    return planned


def check_examples(entries: Sequence[GrowthConfig], examples: int) -> None:
    """Refuse a rule that has too few validation examples for its figure."""
    for rule in (RULES[entry.trial.rule] for entry in entries):
        if examples < rule.min_examples:
            raise ConfigError(
                f"the {rule.name} rule needs at least {rule.min_examples} validation examples for its interval, found "
                f"{examples}: raise train.eval_batches"
            )
