"""What `probe` found, as values and as its JSON document."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ppdgrow.probing.cancellation import Deviation
from ppdgrow.probing.sample import Sample

# An untied pair that changes its input by less than this, in relative terms, does next to nothing.
IDLE_ACTIVITY = 1e-3

ThetaRecord = Literal["as recorded", "changed", "rounded", "not recorded"]


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

    def relative(self, dtype: str) -> float | None:
        """The figure in one dtype; None where it did not run."""
        return self.found[dtype].relative if dtype in self.found else None

    def misses(self) -> dict[str, tuple[float, float]]:
        """Figure and bound for each judged dtype in which the bound does not hold (a figure that is NaN misses it).

        bf16 is shown and not judged: its bound is so wide that it would see only an inverse that is wrong as a whole.
        """
        return {
            name: (figure.relative, self.bound[name])
            for name, figure in self.found.items()
            if name in JUDGED and not figure.relative <= self.bound[name]
        }

    def document(self) -> dict[str, Any]:
        """`round_trip` stays the fp32 figure alone, as it has always been."""
        return {
            "round_trip": self.relative("fp32"),
            "round_trips": {name: figure.relative for name, figure in self.found.items()},
            "ratio": self.ratio,
            "bound": self.bound,
        }


JUDGED = ("fp64", "fp32")
NO_INVERSE = {"round_trip": None, "round_trips": None, "ratio": None, "bound": None}


@dataclass(frozen=True)
class Orthogonality:
    """max |W^T W - I| of the rotation of each member (`minus` is None while they share one), and its bound."""

    plus: float
    minus: float | None
    bound: float

    @property
    def worst(self) -> float:
        """The larger of the two."""
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
        """One entry of `pairs`."""
        return asdict(self) | self.round_trip.document() | {"idle": self.idle}


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
        """One entry of `blocks`."""
        trip = NO_INVERSE if self.round_trip is None else self.round_trip.document()
        double = None if self.round_trip is None else self.round_trip.relative("fp64")
        return asdict(self) | trip | {"round_trip_fp64": double}


@dataclass(frozen=True)
class ProbeReport:
    """All figures, and the judgement: `failures` is empty when every promise holds. `notes` judge nothing."""

    loss: float
    pairs: tuple[PairReport, ...]
    blocks: tuple[BlockReport, ...]
    failures: tuple[str, ...]
    notes: tuple[str, ...]
    sample: Sample | None = None

    @property
    def passed(self) -> bool:
        """Whether every judged promise holds."""
        return not self.failures

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
