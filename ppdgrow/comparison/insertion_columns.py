"""The figures of insertions, of an arm in all its seeds: those of few arms beside each other, and a table of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import fmean

from ppdgrow.comparison.figures import NOTHING, exact
from ppdgrow.comparison.insertions import UPDATES_AFTER, Insertion
from ppdgrow.comparison.measures import ComparedArm
from ppdgrow.console.page import Table
from ppdgrow.statistics import estimate

Figure = Callable[[Sequence[Insertion]], str | None]


def jump_of(insertions: Sequence[Insertion]) -> float | None:
    """The largest change of the loss, in either direction."""
    return max((i.jump for i in insertions if i.jump is not None), key=abs, default=None)


def _before_after(insertions: Sequence[Insertion]) -> str | None:
    """The losses right before and after an insertion, mean over the seeds, with as many digits as tell them apart."""
    if any(insertion.jump is None for insertion in insertions):
        return "not measured"
    losses = [(i.loss_before, i.loss_after) for i in insertions]
    known = [(before, after) for before, after in losses if before is not None and after is not None]
    if not known:
        return "identical outputs" if insertions else None
    before, after = (fmean(losses) for losses in zip(*known, strict=True))
    shown = f"{before:.6f}", f"{after:.6f}"
    if shown[0] == shown[1] and any(insertion.jump for insertion in insertions):
        shown = repr(before), repr(after)
    return f"{shown[0]} / {shown[1]}"


def _later(insertions: Sequence[Insertion], *, with_updates: bool) -> str | None:
    losses = estimate([insertion.loss_after_updates for insertion in insertions])
    updates = f" ({_numbers(i.updates for i in insertions)})" if with_updates else ""
    return None if losses is None else f"{losses.mean:.4f}{updates}"


def _bump(insertions: Sequence[Insertion]) -> str | None:
    """The growth bump, and the steps until the loss before it was reached again; means over the seeds."""
    bumps = estimate([insertion.growth_bump for insertion in insertions])
    steps = estimate([insertion.steps_to_recover for insertion in insertions])
    recovered = "not recovered" if steps is None else f"{steps.mean:,.0f}"
    return None if bumps is None else f"{bumps.mean:+.4f}, {recovered}"


def _spikes_after(insertions: Sequence[Insertion]) -> str:
    counts = [insertion.gradient_spike for insertion in insertions]
    old, new = sum(count.old or 0 for count in counts), sum(count.new or 0 for count in counts)
    return f"{old} / {new}, {sum(insertion.loss_spikes for insertion in insertions)}"


def _mean_later(insertions: Sequence[Insertion]) -> str | None:
    later = [i.loss_after_updates for i in insertions if i.loss_after_updates is not None]
    return f"{fmean(later):.4f}" if later else None


def _numbers(values: Iterable[int | None]) -> str:
    """Different numbers, rising."""
    return ", ".join(f"{value:,}" for value in sorted({value for value in values if value is not None}))


def _insertion(arm: ComparedArm, index: int) -> list[Insertion]:
    return [run.insertions[index] for run in arm.runs if index < len(run.insertions)]


def _most_insertions(arms: Sequence[ComparedArm]) -> int:
    return max(len(run.insertions) for arm in arms for run in arm.runs)


def insertion_rows(arms: Sequence[ComparedArm]) -> Table:
    """A row for each insertion of an arm, in all its seeds."""
    figures: dict[str, Figure] = {
        "step": lambda found: _numbers(i.step for i in found),
        "kinds": lambda found: "/".join(dict.fromkeys(kind for i in found for kind in i.kinds)),
        "loss before / after": _before_after,
        "largest change": lambda found: None if (jump := jump_of(found)) is None else exact(jump),
        "same bits": lambda found: "yes" if all(i.bit_exact for i in found) else "no",
        f"loss ~{UPDATES_AFTER:,} updates after": _mean_later,
        "updates": lambda found: _numbers(i.updates for i in found),
        "bump, steps to recover": _bump,
        "spikes by then: gradient (old / new), loss": _spikes_after,
    }
    found = [(arm.name, _insertion(arm, index)) for arm in arms for index in range(_most_insertions([arm]))]
    rows = ((name, *(write(insertions) or NOTHING for write in figures.values())) for name, insertions in found)
    return Table(("arm", *figures), tuple(rows))


def insertion_figures(arms: Sequence[ComparedArm]) -> Iterator[tuple[str, Callable[[ComparedArm], str | None]]]:
    """Three figures of an arm for each insertion, by name."""
    most = _most_insertions(arms)
    for index in range(most):
        which = f" {index + 1}" if most > 1 else ""
        updates = _numbers(i.updates for arm in arms for i in _insertion(arm, index))
        same = bool(updates) and ", " not in updates
        later = f"loss {updates if same else 'some'} updates after{which and f' insertion{which}'}"
        figures: dict[str, Figure] = {
            f"loss before / after insertion{which}": _before_after,
            later: partial(_later, with_updates=not same),
            f"growth bump, steps to recover{which}": _bump,
        }
        for name, write in figures.items():
            yield name, partial(_of_insertion, index=index, write=write)


def _of_insertion(arm: ComparedArm, index: int, write: Figure) -> str | None:
    return write(_insertion(arm, index))
