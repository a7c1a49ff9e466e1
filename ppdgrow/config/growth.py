"""The `growth:` part of a recipe: when to grow, what to try, and what it must reach to be kept."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from ppdgrow.config.base import Frozen, PositiveInt, key
from ppdgrow.config.kinds import PAIR_NAMES, PairName

Source = Literal["copy", "slice", "random"]
Method = Literal["pair", "zero", "copy", "fresh"]
Moments = Literal["fresh", "copy_v", "copy"]
Rule = Literal["parent", "twin", "always"]
JudgingRule = Literal["parent", "twin"]

NAMED_POSITIONS = ("end", "start", "middle", "interleave")


def _check_position(position: str) -> str:
    if position in NAMED_POSITIONS or all(
        part.strip().isascii() and part.strip().isdigit() for part in position.split(",")
    ):
        return position
    raise ValueError(
        f"found {position!r}, expected one of {', '.join(NAMED_POSITIONS)}, or block numbers such as 2,4,6"
    )


_PLACES = {"enum": [*NAMED_POSITIONS, "block numbers such as 2,4,6"]}
Position = Annotated[str, AfterValidator(_check_position), WithJsonSchema(_PLACES)]

MAX_PAIRS = 4096
# Measured: at 1,000 a pair trains; at 10,000 fp32 rounds its updates at the default learning rate to nothing.
MAX_SCALE = 1000.0


def _check_scale(scale: float) -> float:
    if abs(scale) <= MAX_SCALE:
        return scale
    raise ValueError(
        f"found {scale:g}, expected a number from -{MAX_SCALE:g} to {MAX_SCALE:g}: larger weights round the updates of "
        "training to nothing"
    )


Scale = Annotated[float, AfterValidator(_check_scale)]


class TrialConfig(Frozen):
    """How a growth is tried: for how many steps, and what it must reach to be kept."""

    steps: PositiveInt = key(100, "optimizer steps of the trial; rule always: after which the growth is saved")
    rule: Rule = key("parent", "what the trial is held against; always: kept without a twin and a judgement")
    epsilon: float = key(0.0, "nats that the trial may lose against the parent; negative: must gain")
    margin: float = key(0.01, "nats that it may lose against the twin; negative: must gain")


class OnReject(Frozen):
    """What follows a rejection: the growth is taken out, or tried again at a lower rate first (no rule `always`)."""

    remove: bool = key(False, "take the growth out at once")
    lower_lr: float | None = key(None, "or try again with the rate of the new blocks times this", gt=0.0, lt=1.0)
    retries: int = key(2, "further tries with lower_lr", ge=1, le=100)

    @model_validator(mode="after")
    def _check_one(self) -> OnReject:
        if self.remove == (self.lower_lr is not None):
            raise ValueError(
                f"found {'both' if self.remove else 'neither'} of remove and lower_lr, expected one: "
                "{remove: true} or {lower_lr: 0.5, retries: 2}"
            )
        return self


class Candidate(Frozen):
    """One of several ways to grow at one point; a key left out is that of the growth entry."""

    pair: tuple[PairName, ...] | None = Field(None, strict=False)
    pairs: PositiveInt | None = None
    position: Position | None = None
    source: Source | None = None
    scale: Scale | None = None
    method: Method | None = None
    moments: Moments | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = _candidate_of_word(data)
        return _short_forms({"pair": data} if isinstance(data, list) else data)


def _check_at(at: int | str) -> int | str:
    if at == "plateau" or (isinstance(at, int) and at > 0):
        return at
    if isinstance(at, str) and re.fullmatch(r"[0-9]{1,2}([.][0-9]{1,6})?%", at) and float(at[:-1]) > 0:
        return at
    raise ValueError(f"found {at!r}, expected a step above 0, a share of the run's steps such as 50%, or plateau")


_AT = {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"enum": ["plateau", "a share such as 50%"]}]}


class GrowthConfig(Frozen):
    """One point at which the run tries to grow."""

    at: Annotated[int | str, AfterValidator(_check_at), WithJsonSchema(_AT)] = Field(
        description="when to grow; a share is of the run's steps, plateau is where the validation loss levels off"
    )
    patience: int = key(3, "evaluations without a new best loss", ge=1, le=10_000)
    pair: tuple[PairName, ...] = key(("ffn",), "kinds of the pairs, the last repeats", strict=False, min_length=1)
    pairs: int = key(1, "number of pairs, each two layers", ge=1, le=MAX_PAIRS)
    position: Position = key("interleave", "where the new blocks go, or after which blocks")
    source: Source | None = key(None, "of theta_0; null: copy if coupled, slice if residual")
    scale: Scale = key(1.0, f"factor on the output projections of theta_0, at most {MAX_SCALE:g}")
    method: Method = key("pair", "pair, or a rival that adds as many whole layers")
    moments: Moments = key("copy_v", "optimizer state of the new parameters")
    trial: TrialConfig = TrialConfig()
    on_reject: OnReject = OnReject(remove=True)
    candidates: Annotated[tuple[Candidate, ...], Field(max_length=100)] = key(
        (), "what to try instead, one after the other: some of the keys from pair to moments", strict=False
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        data = _short_forms(data)
        if isinstance(data, dict) and "pairs" not in data:
            kinds, position = data.get("pair", ()), data.get("position", "")
            places = len(position.split(",")) if isinstance(position, str) and position[:1].isdigit() else 0
            data = data | {"pairs": max(1, len(kinds) if isinstance(kinds, (list, tuple)) else 1, places)}
        return data

    @field_validator("candidates")
    @classmethod
    def _check_candidates(cls, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        twice = next((number for number, one in enumerate(candidates) if one in candidates[:number]), None)
        if twice is not None:
            raise ValueError(f"number {twice + 1} is the same as one before it: leave it out")
        return candidates

    @property
    def step(self) -> int | None:
        """The step at which it happens; None at a plateau, and of a share."""
        return self.at if isinstance(self.at, int) else None

    def in_run(self, first: int, steps: int) -> GrowthConfig:
        """The entry with a share as the step that it is in a run of so many steps after step `first`."""
        if self.step is not None or self.at == "plateau":
            return self
        share = float(str(self.at).removesuffix("%")) / 100
        return self.model_copy(update={"at": first + min(max(1, round(share * steps)), max(1, steps - 1))})

    def as_written(self) -> dict[str, Any]:
        """Its keys without those that say nothing: those a candidate leaves out, the road not taken."""
        unused = {"lower_lr", "retries"} if self.on_reject.remove else {"remove"}
        candidates = [candidate.model_dump(exclude_none=True) for candidate in self.candidates]
        return {**self.model_dump(exclude={"on_reject": unused}), "candidates": candidates}


def _short_forms(data: Any) -> Any:
    """`pair: attention,ffn` as a list, and `position: 2` or `[2, 4]` as the text of `--position`."""
    if not isinstance(data, dict):
        return data
    data = dict(data)
    if isinstance(data.get("pair"), str):
        data["pair"] = [kind.strip() for kind in data["pair"].split(",")]
    position = data.get("position")
    places = position if isinstance(position, (list, tuple)) else [position]
    if all(type(place) is int for place in places) and places:
        data["position"] = ",".join(map(str, places))
    return data


def _candidate_of_word(word: str) -> dict[str, str]:
    """A candidate that is one word: a method, a position, or a kind of pair (or several with commas)."""
    if word in get_args(Method):
        return {"method": word}
    if word in NAMED_POSITIONS or word[:1].isdigit():
        return {"position": word}
    if all(kind.strip() in PAIR_NAMES for kind in word.split(",")):
        return {"pair": word}
    known = (*PAIR_NAMES, *get_args(Method), *NAMED_POSITIONS)
    raise ValueError(f"found {word!r}, expected one of {', '.join(known)}, or keys such as {{pair: ffn, pairs: 2}}")
