"""What `probe` found, as values: its JSON document, its tables, and which figures break a promise."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
    """How far block^-1(block(x)) is from x by dtype, relative to the largest entry, and how far it may be (`bound`).

    `ratio` is the largest branch term over the largest entry of the stream. A dtype that cannot run is left out.
    """

    round_trips: dict[str, float]
    ratio: float
    bound: dict[str, float]

    def misses(self) -> list[str]:
        """The judged figures that are beyond their bounds, as NaN is, in words."""
        return [
            f"{found:.3g} in {name}, more than {self.bound[name]:.1e}"
            for name, found in self.round_trips.items()
            if name in JUDGED and not found <= self.bound[name]
        ]


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
    `ablation_loss` is None where there is no data.
    """

    id: str
    kind: str
    tied: bool
    cancellation: dict[str, Deviation]
    round_trip: RoundTrip
    gradient_antisymmetry: float | None
    separation: float
    activity: float
    ablation_loss: float | None
    gradient_norm: float
    orthogonality: Orthogonality | None
    theta_0: ThetaRecord | None

    @property
    def idle(self) -> bool:
        """Whether an untied pair has stayed next to an identity."""
        return not self.tied and self.activity < IDLE_ACTIVITY

    def document(self) -> dict[str, Any]:
        return _document(self) | {"idle": self.idle}

    def failures(self) -> Iterator[str]:
        """A tied pair cancels to the last bit in every dtype, has opposite gradients and its recorded theta_0."""
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

    `half_steps` are the sequential steps that the block adds to those before it; None in a folder of Transformers.
    """

    id: str
    kind: str
    round_trip: RoundTrip | None
    gradient_norm: float
    activity: float
    parameters: int
    half_steps: int | None

    def document(self) -> dict[str, Any]:
        trips = {} if self.round_trip is None else self.round_trip.round_trips
        return _document(self) | {"round_trip_fp64": trips.get("fp64")}

    def failures(self) -> Iterator[str]:
        """That its inverse misses its input by more than the bound."""
        if self.round_trip is not None and (misses := self.round_trip.misses()):
            yield f"the inverse of {self.id} misses its input, relative to the largest entry: {', '.join(misses)}"


def _document(report: PairReport | BlockReport) -> dict[str, Any]:
    """All figures as JSON; `round_trip` stays the fp32 figure alone, as it has always been."""
    trip = report.round_trip
    trips = dict.fromkeys(("round_trips", "ratio", "bound")) if trip is None else asdict(trip)
    return asdict(report) | trips | {"round_trip": (trips["round_trips"] or {}).get("fp32")}


@dataclass(frozen=True)
class ProbeReport:
    """All figures, and the judgement: `failures` is empty when every promise holds. `notes` judge nothing.

    `loss` is None where there is no data.
    """

    loss: float | None
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
        rounded = ", ".join(pair.id for pair in self.pairs if pair.theta_0 == "rounded")
        idle = ", ".join(pair.id for pair in self.pairs if pair.idle)
        unknown = ", ".join(pair.id for pair in self.pairs if pair.theta_0 == "not recorded")
        said = {
            f"theta_0 of {rounded} was rounded by the type in which it is stored: whether it was changed otherwise, "
            "its sha256 in growth.jsonl cannot tell": rounded,
            f"idle: {idle} (trained, but |P(x) - x| / |x| is below {IDLE_ACTIVITY:g})": idle,
            f"growth.jsonl has no sha256 of theta_0 for {unknown}: whether it was changed is not known": unknown,
        }
        return tuple(text for text, pairs in said.items() if pairs)

    def document(self) -> dict[str, Any]:
        """The JSON of `probe`; a figure that is not finite is null."""
        document = {
            "schema": 1,
            "passed": self.passed,
            "failures": self.failures,
            "notes": self.notes,
            "loss": self.loss,
            "idle_below": IDLE_ACTIVITY,
            "pairs": [pair.document() for pair in self.pairs],
            "blocks": [block.document() for block in self.blocks],
            "sample": None if self.sample is None else asdict(self.sample),
        }
        return dict(json.loads(json.dumps(document), parse_constant=lambda name: None))


def pair_rows(report: ProbeReport) -> Rows:
    """What each pair does, and for tied pairs how exactly it does nothing."""
    dtypes = dict.fromkeys(name for pair in report.pairs for name in pair.cancellation)
    rotating = any(pair.orthogonality is not None for pair in report.pairs)
    rows = []
    for pair in report.pairs:
        found, opposite, rotation = pair.cancellation, pair.gradient_antisymmetry, pair.orthogonality
        row = {"pair": pair.id, "kind": pair.kind, "state": "tied" if pair.tied else "untied"}
        row |= {name: _figure(found[name].max_abs) if name in found else "-" for name in dtypes}
        row |= {
            "opposite gradients": "no gradient"
            if opposite is None
            else f"off by {opposite:.2g}"
            if opposite
            else "exact",
            "separation": _figure(pair.separation),
            "activity": _figure(pair.activity) + (" idle" if pair.idle else ""),
            "loss without": "-" if pair.ablation_loss is None else f"{pair.ablation_loss:.4f}",
            "theta_0": pair.theta_0 or "-",
        }
        if rotating:
            row["|W^T W - I| / bound"] = "-" if rotation is None else f"{rotation.worst:.1e} / {rotation.bound:.1e}"
        rows.append(row)
    return _table(rows)


def block_rows(report: ProbeReport) -> Rows:
    """What each block costs and does, and how far its inverse is from being one, beside the bound."""
    trips = [block.round_trip.round_trips for block in report.blocks if block.round_trip is not None]
    dtypes = [name for name in ROUND_TRIP_DTYPES if any(name in trip for trip in trips)]
    rows = []
    for block in report.blocks:
        row = {
            "block": block.id,
            "kind": block.kind,
            "parameters": f"{block.parameters:,}",
            **({} if block.half_steps is None else {"half-steps": str(block.half_steps)}),
            "gradient norm": f"{block.gradient_norm:.3g}",
            "activity": _figure(block.activity),
        }
        if trips:
            row["branch/stream"] = "no inverse" if block.round_trip is None else _figure(block.round_trip.ratio)
        row |= {f"round trip {name} / bound": _trip(block.round_trip, name) for name in dtypes}
        rows.append(row)
    steps = [block.half_steps for block in report.blocks if block.half_steps is not None]
    total = [f"{sum(block.parameters for block in report.blocks):,}", *([str(sum(steps))] if steps else [])]
    return [*_table(rows), ["all blocks", "", *total]]


def _table(rows: Sequence[dict[str, str]]) -> Rows:
    """A heading and the cells below it; all rows have the same keys."""
    return [list(rows[0]), *(list(row.values()) for row in rows)]


def _trip(trip: RoundTrip | None, dtype: str) -> str:
    if trip is None:
        return ""
    return f"{trip.round_trips[dtype]:.1e} / {trip.bound[dtype]:.1e}" if dtype in trip.bound else "-"


def _figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
