"""What `compare` prints: tables of arms and criteria, and the verdict with what it is worth.

Few arms stand beside each other with all their figures where that fits; else below each other, many of them with the
figures that decide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from ppdgrow.comparison.column import Layout, arm_rows
from ppdgrow.comparison.compare import Comparison
from ppdgrow.comparison.criteria import NO_INSERTION_SPIKE, ONE_SEED, UNGROWN, Criterion
from ppdgrow.comparison.figures import NOTHING, exact, format_gain, interval
from ppdgrow.comparison.front import PayOff
from ppdgrow.comparison.measures import ComparedArm
from ppdgrow.console import format_count, format_flops, format_seconds, table_columns
from ppdgrow.console.page import Table
from ppdgrow.console.tables import table_width

SIDE_BY_SIDE = 4
NAMED = 2  # grown arms of which the verdict's line speaks one by one
ONE_SEED_EACH = "one seed each: run more seeds before you believe this (see --help)"
_OUTCOME = {True: "pass", False: "fail", None: "not judged"}


def comparison_rows(comparison: Comparison, width: int | None = None) -> Table:
    """The arms beside each other, the baseline first, where they are few and fit; else below each other."""
    arms = comparison.arms
    names = [short_names(comparison, width).get(arm.name, arm.name) for arm in arms]
    few = len(arms) <= SIDE_BY_SIDE
    shown = comparison.columns(Layout.FEW if few else Layout.MANY)
    rows = tuple((column.name, *(column.cell(arm) for arm in arms)) for column in shown)
    beside = Table(("", *names), rows)
    if few and (width is None or table_width(table_columns(rows, beside.header)) <= width):
        return beside
    return arm_rows(arms, shown, names)


def short_names(comparison: Comparison, width: int | None) -> dict[str, str]:
    """What stands in place of names that take more than a quarter of the width; by name, None is any width.

    Where that is enough, what all names begin and end with is left out; else the arms are numbered.
    """
    names = [arm.name for arm in comparison.arms]
    room = max(12, (width or 0) // 4)
    if width is None or max(map(len, names)) <= room:
        return {}
    words = [re.split(r"(?<=[-_./ ])", name) for name in names]
    least = min(map(len, words)) - 1
    first = min(_shared(words), least)
    last = min(_shared([one[::-1] for one in words]), least - first)
    parts = ["".join(one[first : len(one) - last]).rstrip("-_./ ") for one in words]
    if len({part for part in parts if 0 < len(part) <= room}) == len(names):
        return dict(zip(names, parts, strict=True))
    numbered = {name: f"arm {number}" if number else "baseline" for number, name in enumerate(names)}
    return {name: short for name, short in numbered.items() if len(name) > room and short not in names}


def _shared(words: Sequence[Sequence[str]]) -> int:
    """How many words all of these begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False)))


def replace_names(text: str, short: Mapping[str, str]) -> str:
    """The text with its names replaced."""
    if not short:
        return text
    names = "|".join(map(re.escape, sorted(short, key=len, reverse=True)))
    return re.sub(rf"(?<![\w-])(?:{names})(?![\w-])", lambda match: short[match[0]], text)


def criteria_rows(comparison: Comparison) -> dict[str, Table]:
    """The criteria of each arm, by who is held against whom."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for criterion in comparison.criteria:
        against = comparison.baseline.name if criterion.against == UNGROWN else criterion.against
        rows = found.setdefault(f"{criterion.run} against {against}", [])
        rows.append((criterion.name, *criterion_cells(criterion)))
    return {title: Table(("criterion", "figure", "bound", "", ""), tuple(rows)) for title, rows in found.items()}


def criteria_matrix(comparison: Comparison) -> Table:
    """One row per arm, one column per criterion, how each came out."""
    names = tuple(dict.fromkeys(criterion.name for criterion in comparison.criteria))
    outcomes = {(criterion.run, criterion.name): _OUTCOME[criterion.passed] for criterion in comparison.criteria}
    rows = tuple(
        (arm.name, *(outcomes.get((arm.name, name), NOTHING) for name in names)) for arm in comparison.arms[1:]
    )
    return Table((f"against {comparison.baseline.name}", *names), rows, left=range(1 + len(names)))


def criterion_cells(criterion: Criterion) -> tuple[str, str, str, str]:
    """Its figure, its bound and which end of the interval is held against it, how it came out, what to know of it."""
    end = {"mean": "", "low": "lower end ", "high": "upper end "}[criterion.judged]
    bound = f"{end}{criterion.relation} {criterion.bound:g}{' pt' if criterion.unit == 'pt' else ''}"
    return _figure(criterion), bound, _OUTCOME[criterion.passed], criterion.note


def _figure(criterion: Criterion) -> str:
    """The figure of a criterion with its interval and unit."""
    value = criterion.value
    if value is None:
        return NOTHING
    if criterion.name == NO_INSERTION_SPIKE:
        return exact(value)
    digits, sign, unit = {"ratio": (2, "", ""), "pt": (2, "+", " pt")}.get(criterion.unit, (4, "+", ""))
    deciding = {"mean": value, "low": criterion.low, "high": criterion.high}[criterion.judged]
    # A figure that rounds to its bound would contradict the verdict beside it.
    while deciding is not None and deciding != criterion.bound and round(deciding - criterion.bound, digits) == 0:
        digits += 1
    if digits > 6:
        return f"{value:{sign}.3g}{unit}"
    return f"{value:{sign}.{digits}f}{interval(criterion.low, criterion.high, digits, sign)}{unit}"


def verdict_lines(comparison: Comparison) -> list[str]:
    """The verdict, and what it is worth."""
    decision = comparison.decision
    notes = [note for note in comparison.notes if note != ONE_SEED]
    if decision is not None:
        costs = [
            f"cost of the {name} since the parent: {format_count(cost.tokens)} tokens, {format_flops(cost.flops)}, "
            f"{format_seconds(cost.seconds)}"
            for name, cost in comparison.costs.items()
            if cost is not None
        ]
        return [f"verdict: {comparison.verdict} by the {decision.rule} rule", *decision.lines(), *costs, *notes]
    verdict = f"verdict: {comparison.verdict or 'none'}{_worth(comparison)}"
    return [verdict, *notes, *([ONE_SEED_EACH] if ONE_SEED in comparison.notes else [])]


def _worth(comparison: Comparison) -> str:
    """By how many criteria, and whether growing paid."""
    judged = [criterion for criterion in comparison.deciding if criterion.passed is not None]
    passed = sum(criterion.passed is True for criterion in judged)
    more = any(criterion.name != NO_INSERTION_SPIKE for criterion in judged)
    of = f"{passed} of {len(judged)} criteria against {comparison.baseline.name}"
    worth = f" by {of}" if comparison.verdict == "accept" else f", {of} passed"
    parts = [worth if more else ", nothing that training does was judged"]
    if comparison.baseline.first.history.is_folder:
        parts = [f" ({comparison.baseline.name} was not trained here, and is held against them by its loss alone)"]
    if len(comparison.grown) <= NAMED:
        parts += [_pays_in_words(arm, named=len(comparison.grown) > 1) for arm in comparison.grown]
    else:
        parts.append(_pays_of_many([arm.pay_off for arm in comparison.grown if arm.pay_off is not None]))
    return "; ".join(parts)


def _pays_of_many(found: Sequence[PayOff]) -> str:
    """Whether growing paid, counted."""
    paid = sum(one.pays == "yes" for one in found)
    unknown = [one.doubt for one in found if one.pays == "not judged"]
    doubts = f", of {len(unknown)} it is not known: {', '.join(dict.fromkeys(unknown))}" if unknown else ""
    return f"growing paid against ungrown training in {paid} of {len(found)} grown arms{doubts}"


def _pays_in_words(arm: ComparedArm, *, named: bool) -> str:
    """Whether growing paid, of an arm that was grown; `named`: there are others beside it."""
    assert arm.pay_off is not None
    whose, pay_off = f"{arm.name}: " if named else "", arm.pay_off
    if pay_off.pays == "not judged":
        return f"{whose}whether growing paid is not known: {pay_off.doubt}"
    gain = "" if pay_off.compute_gain is None else f" (compute gain {format_gain(pay_off.compute_gain)})"
    rejected = f": {pay_off.rejected}" if pay_off.rejected else ""
    paid = "paid" if pay_off.pays == "yes" else "did not pay"
    return f"{whose}growing {paid} against ungrown training{gain}{rejected}"
