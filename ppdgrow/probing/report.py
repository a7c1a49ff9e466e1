"""What `probe` found, as values: its JSON document, its tables, and which figures break a promise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from ppdgrow.probing.cancellation import ROUND_TRIP_DTYPES, Deviation
from ppdgrow.probing.sample import Sample

# An untied pair that changes its input by less than this, in relative terms, does next to nothing.
IDLE_ACTIVITY = 1e-3
# bf16 is shown and not judged: its bound is so wide that it would see only an inverse that is wrong as a whole.
JUDGED = ("fp64", "fp32")

ThetaRecord = Literal["as recorded", "changed", "rounded", "not recorded"]
Rows = list[list[str]]


@dataclass(frozen=True)
class RoundTrip:
    """How far block^-1(block(x)) is from x by dtype, relative to the largest entry, and how far it may be.

    Attributes:
        ratio: largest branch term over the largest entry of the stream.
        found: deviation by dtype; a dtype that cannot run is left out.
        bound: on the relative deviation, for the same dtypes.
    """

    ratio: float
    found: dict[str, Deviation]
    bound: dict[str, float]

    def misses(self) -> dict[str, tuple[float, float]]:
        """Figure and bound for each judged dtype in which the bound does not hold (a figure that is NaN misses it)."""
        return {
            name: (figure.relative, self.bound[name])
            for name, figure in self.found.items()
            if name in JUDGED and not figure.relative <= self.bound[name]
        }

    def document(self) -> dict[str, Any]:
        """`round_trip` stays the fp32 figure alone, as it has always been."""
        relative = {name: figure.relative for name, figure in self.found.items()}
        return {
            "round_trip": relative.get("fp32"),
            "round_trips": relative,
            "ratio": self.ratio,
            "bound": self.bound,
        }


NO_INVERSE = {"round_trip": None, "round_trips": None, "ratio": None, "bound": None}


@dataclass(frozen=True)
class Orthogonality:
    """max |W^T W - I| of the rotation of each member (`minus` is None while they share one), and its bound."""

    plus: float
    minus: float | None
    bound: float

    @property
    def worst(self) -> float:
        return self.plus if self.minus is None else max(self.plus, self.minus)


@dataclass(frozen=True)
class PairReport:
    """The figures of one pair.

    `gradient_antisymmetry` is None where the gradient is zero, `orthogonality` where there is no rotation, `theta_0`
    where nothing was to be compared: the pair is untied, or the model does not come from a checkpoint.
    """

    id: str
    kind: str
    tied: bool
    cancellation: dict[str, Deviation]
    round_trip: RoundTrip
    gradient_antisymmetry: float | None
    separation: float
    activity: float
    ablation_loss: float
    gradient_norm: float
    orthogonality: Orthogonality | None
    theta_0: ThetaRecord | None

    @property
    def idle(self) -> bool:
        """Whether an untied pair has stayed next to an identity."""
        return not self.tied and self.activity < IDLE_ACTIVITY

    def document(self) -> dict[str, Any]:
        return asdict(self) | self.round_trip.document() | {"idle": self.idle}

    def failures(self) -> Iterator[str]:
        """One line per broken promise.

        A tied pair cancels to the last bit, its members' gradients are opposites, its theta_0 is the recorded one; a
        rotation is orthogonal within its bound.
        """
        tied = f"pair {self.id} is recorded as tied but"
        broken = {name: figure.max_abs for name, figure in self.cancellation.items() if figure.max_abs != 0}
        if self.tied and broken:
            yield f"{tied} does not cancel in {', '.join(broken)}: largest deviation {max(broken.values()):.3g}"
        if self.tied and self.gradient_antisymmetry:
            yield (
                f"{tied} the gradients of its members are not opposites: relative deviation "
                f"{self.gradient_antisymmetry:.3g}"
            )
        if self.tied and self.theta_0 == "changed":
            yield (
                f"{tied} its theta_0 is not the one whose sha256 growth.jsonl holds: its weights were changed since "
                "the growth; grow again from the parent"
            )
        rotation = self.orthogonality
        if rotation is not None and not rotation.worst <= rotation.bound:
            yield (
                f"pair {self.id} has a member that is not orthogonal: |W^T W - I| reaches {rotation.worst:.3g}, "
                f"more than {rotation.bound:.1e}"
            )


@dataclass(frozen=True)
class BlockReport:
    """The figures of one block. `round_trip` is None for a residual layer, which has no inverse.

    `half_steps` are the sequential steps that the block adds to those before it.
    """

    id: str
    kind: str
    round_trip: RoundTrip | None
    gradient_norm: float
    activity: float
    parameters: int
    half_steps: int

    def document(self) -> dict[str, Any]:
        trip = NO_INVERSE if self.round_trip is None else self.round_trip.document()
        return asdict(self) | trip | {"round_trip_fp64": (trip["round_trips"] or {}).get("fp64")}

    def failures(self) -> Iterator[str]:
        """That its inverse misses its input by more than the bound."""
        if self.round_trip is not None and (misses := self.round_trip.misses()):
            listed = ", ".join(
                f"{figure:.3g} in {name}, more than {bound:.1e}" for name, (figure, bound) in misses.items()
            )
            yield f"the inverse of {self.id} misses its input, relative to the largest entry: {listed}"


@dataclass(frozen=True)
class ProbeReport:
    """All figures, and the judgement: `failures` is empty when every promise holds. `notes` judge nothing."""

    loss: float
    pairs: tuple[PairReport, ...]
    blocks: tuple[BlockReport, ...]
    sample: Sample | None = None

    @property
    def failures(self) -> tuple[str, ...]:
        found = [*(pair.failures() for pair in self.pairs), *(block.failures() for block in self.blocks)]
        return tuple(itertools.chain.from_iterable(found))

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def notes(self) -> tuple[str, ...]:
        """What deserves a word but breaks no promise."""
        said = {
            "theta_0 of {} was rounded by the type in which it is stored: whether it was changed otherwise, its sha256 "
            "in growth.jsonl cannot tell": [pair.id for pair in self.pairs if pair.theta_0 == "rounded"],
            f"idle: {{}} (trained, but |P(x) - x| / |x| is below {IDLE_ACTIVITY:g})": [
                pair.id for pair in self.pairs if pair.idle
            ],
            "growth.jsonl has no sha256 of theta_0 for {}: whether it was changed is not known": [
                pair.id for pair in self.pairs if pair.theta_0 == "not recorded"
            ],
        }
        return tuple(text.format(", ".join(ids)) for text, ids in said.items() if ids)

    def document(self) -> dict[str, Any]:
        """The JSON of `probe`; a figure that is not finite is null."""
        return _finite(
            {
                "schema": 1,
                "passed": self.passed,
                "failures": list(self.failures),
                "notes": list(self.notes),
                "loss": self.loss,
                "idle_below": IDLE_ACTIVITY,
                "pairs": [pair.document() for pair in self.pairs],
                "blocks": [block.document() for block in self.blocks],
                "sample": None if self.sample is None else asdict(self.sample),
            }
        )


def _finite(value: Any) -> Any:
    """The same document with None for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def pair_rows(report: ProbeReport) -> Rows:
    """What each pair does, and for tied pairs how exactly it does nothing."""
    columns: dict[str, Callable[[PairReport], str]] = {
        "pair": lambda pair: pair.id,
        "kind": lambda pair: pair.kind,
        "state": lambda pair: "tied" if pair.tied else "untied",
    }
    for name in dict.fromkeys(name for pair in report.pairs for name in pair.cancellation):
        columns[name] = partial(_cancellation, name)
    columns |= {
        "opposite gradients": _opposite,
        "separation": lambda pair: _figure(pair.separation),
        "activity": lambda pair: _figure(pair.activity) + (" idle" if pair.idle else ""),
        "loss without": lambda pair: f"{pair.ablation_loss:.4f}",
        "theta_0": lambda pair: pair.theta_0 or "-",
    }
    if any(pair.orthogonality is not None for pair in report.pairs):
        columns["|W^T W - I| / bound"] = _rotation
    return [[*columns], *([cell(pair) for cell in columns.values()] for pair in report.pairs)]


def block_rows(report: ProbeReport) -> Rows:
    """What each block costs and does, and how far its inverse is from being one, beside the bound."""
    columns: dict[str, Callable[[BlockReport], str]] = {
        "block": lambda block: block.id,
        "kind": lambda block: block.kind,
        "parameters": lambda block: f"{block.parameters:,}",
        "half-steps": lambda block: str(block.half_steps),
        "gradient norm": lambda block: f"{block.gradient_norm:.3g}",
        "activity": lambda block: _figure(block.activity),
    }
    trips = [block.round_trip for block in report.blocks if block.round_trip is not None]
    if trips:
        columns["branch/stream"] = lambda block: (
            "no inverse" if (trip := block.round_trip) is None else _figure(trip.ratio)
        )
    for name in ROUND_TRIP_DTYPES:
        if any(name in trip.found for trip in trips):
            columns[f"round trip {name} / bound"] = partial(_trip, name)
    total = [f"{sum(block.parameters for block in report.blocks):,}", str(sum(b.half_steps for b in report.blocks))]
    rows = [[cell(block) for cell in columns.values()] for block in report.blocks]
    return [[*columns], *rows, ["all blocks", "", *total]]


def _cancellation(name: str, pair: PairReport) -> str:
    return _figure(pair.cancellation[name].max_abs) if name in pair.cancellation else "-"


def _trip(name: str, block: BlockReport) -> str:
    trip = block.round_trip
    if trip is None:
        return ""
    return f"{trip.found[name].relative:.1e} / {trip.bound[name]:.1e}" if name in trip.found else "-"


def _rotation(pair: PairReport) -> str:
    rotation = pair.orthogonality
    return "-" if rotation is None else f"{rotation.worst:.1e} / {rotation.bound:.1e}"


def _figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"


def _opposite(pair: PairReport) -> str:
    value = pair.gradient_antisymmetry
    if value is None:
        return "no gradient"
    return "exact" if value == 0 else f"off by {value:.2g}"
