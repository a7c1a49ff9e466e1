"""A probe's figures as rows of cells, each figure beside the bound that it is held against."""

from __future__ import annotations

from ppdgrow.probing.cancellation import ROUND_TRIP_DTYPES
from ppdgrow.probing.report import Orthogonality, PairReport, ProbeReport, RoundTrip

Rows = list[list[str]]


def pair_rows(report: ProbeReport) -> Rows:
    """What each pair does, and for tied pairs how exactly it does nothing."""
    names = list(dict.fromkeys(name for pair in report.pairs for name in pair.cancellation))
    rotations = any(pair.orthogonality is not None for pair in report.pairs)
    head = ["pair", "kind", "state", *names, "opposite gradients", "separation", "activity", "loss without"]
    rows = [[*head, "theta_0", *(["|W^T W - I| / bound"] if rotations else [])]]
    for pair in report.pairs:
        deviations = [pair.cancellation[name].max_abs if name in pair.cancellation else None for name in names]
        rows.append(
            [
                pair.id,
                pair.kind,
                "tied" if pair.tied else "untied",
                *("-" if value is None else _figure(value) for value in deviations),
                _opposite(pair),
                _figure(pair.separation),
                _figure(pair.activity) + (" idle" if pair.idle else ""),
                f"{pair.ablation_loss:.4f}",
                pair.theta_0 or "-",
                *([_rotation(pair.orthogonality)] if rotations else []),
            ]
        )
    return rows


def block_rows(report: ProbeReport) -> Rows:
    """What each block costs and does, and how far its inverse is from being one, beside the bound."""
    trips = [block.round_trip for block in report.blocks if block.round_trip is not None]
    names = [name for name in ROUND_TRIP_DTYPES if any(name in trip.found for trip in trips)]
    inverse = [f"round trip {name} / bound" for name in names]
    head = ["block", "kind", "parameters", "half-steps", "gradient norm", "activity", "branch/stream", *inverse]
    rows = [head if trips else head[:6]]
    for block in report.blocks:
        cells = [block.id, block.kind, f"{block.parameters:,}", str(block.half_steps)]
        cells += [f"{block.gradient_norm:.3g}", _figure(block.activity)]
        if trips:
            cells += _trip(block.round_trip, names)
        rows.append(cells)
    total = [f"{sum(block.parameters for block in report.blocks):,}", str(sum(b.half_steps for b in report.blocks))]
    rows.append(["all blocks", "", *total])
    return rows


def _trip(trip: RoundTrip | None, names: list[str]) -> list[str]:
    if trip is None:
        return ["no inverse"]
    cells = [f"{trip.found[n].relative:.1e} / {trip.bound[n]:.1e}" if n in trip.found else "-" for n in names]
    return [_figure(trip.ratio), *cells]


def _rotation(value: Orthogonality | None) -> str:
    return "-" if value is None else f"{value.worst:.1e} / {value.bound:.1e}"


def _figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"


def _opposite(pair: PairReport) -> str:
    value = pair.gradient_antisymmetry
    if value is None:
        return "no gradient"
    return "exact" if value == 0 else f"off by {value:.2g}"
