"""Which figures of a probe are promises, and which of them are broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ppdgrow.checkpoint.events import Event, insertions
from ppdgrow.probing.report import IDLE_ACTIVITY, BlockReport, PairReport


def recorded_theta(events: Iterable[Event]) -> dict[str, str]:
    """sha256 of theta_0 by pair id, as the growths that a model kept recorded it."""
    return {pair: digest for event in insertions(events) for pair, digest in event.theta_sha256.items()}


def failures(pairs: Sequence[PairReport], blocks: Sequence[BlockReport]) -> tuple[str, ...]:
    """One line per broken promise.

    Tied pairs cancel to the last bit, their members' gradients are opposites, their theta_0 is the recorded one.
    Every inverse holds within its bound, and every rotation is orthogonal within its own.
    """
    found: list[str] = []
    for pair in pairs:
        if pair.tied:
            found += _broken_tie(pair)
        rotation = pair.orthogonality
        if rotation is not None and not rotation.worst <= rotation.bound:
            found.append(
                f"pair {pair.id} has a member that is not orthogonal: |W^T W - I| reaches {rotation.worst:.3g}, "
                f"more than {rotation.bound:.1e}"
            )
    for block in blocks:
        if block.round_trip is not None and block.round_trip.misses():
            misses = ", ".join(
                f"{figure:.3g} in {name}, more than {bound:.1e}"
                for name, (figure, bound) in block.round_trip.misses().items()
            )
            found.append(f"the inverse of {block.id} misses its input, relative to the largest entry: {misses}")
    return tuple(found)


def _broken_tie(pair: PairReport) -> list[str]:
    found = []
    broken = {name: figure.max_abs for name, figure in pair.cancellation.items() if figure.max_abs != 0}
    if broken:
        found.append(
            f"pair {pair.id} is recorded as tied but does not cancel in {', '.join(broken)}: largest deviation "
            f"{max(broken.values()):.3g}"
        )
    if pair.gradient_antisymmetry is not None and pair.gradient_antisymmetry != 0:
        found.append(
            f"pair {pair.id} is recorded as tied but the gradients of its members are not opposites: "
            f"relative deviation {pair.gradient_antisymmetry:.3g}"
        )
    if pair.theta_0 == "changed":
        found.append(
            f"pair {pair.id} is recorded as tied but its theta_0 is not the one whose sha256 growth.jsonl holds: "
            "its weights were changed since the growth; grow again from the parent"
        )
    return found


def notes(pairs: Sequence[PairReport]) -> tuple[str, ...]:
    """What deserves a word but breaks no promise."""
    idle = [pair.id for pair in pairs if pair.idle]
    unrecorded = [pair.id for pair in pairs if pair.theta_0 == "not recorded"]
    rounded = [pair.id for pair in pairs if pair.theta_0 == "rounded"]
    said = []
    if rounded:
        said.append(
            f"theta_0 of {', '.join(rounded)} was rounded by the type in which it is stored: whether it was changed "
            "otherwise, its sha256 in growth.jsonl cannot tell"
        )
    if idle:
        said.append(f"idle: {', '.join(idle)} (trained, but |P(x) - x| / |x| is below {IDLE_ACTIVITY:g})")
    if unrecorded:
        said.append(
            f"growth.jsonl has no sha256 of theta_0 for {', '.join(unrecorded)}: whether it was changed is not known"
        )
    return tuple(said)
