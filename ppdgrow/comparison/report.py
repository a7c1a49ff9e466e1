"""What `compare --report` says: the figures, who passed what, every run, and how all of it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ppdgrow.comparison.cells import (
    NOTHING,
    before_after,
    bump,
    exact,
    gradient_spikes,
)
from ppdgrow.comparison.compare import Comparison
from ppdgrow.comparison.criteria import ONE_SEED, loss_unit
from ppdgrow.comparison.figures import ComparedArm, ComparedRun
from ppdgrow.comparison.history import join_seeds
from ppdgrow.comparison.insertions import UPDATES_AFTER, Insertion
from ppdgrow.comparison.table import (
    ONE_SEED_EACH,
    TextTable,
    arm_rows,
    columns,
    cost_columns,
    criteria_matrix,
    criterion_cells,
    equal_columns,
    size_columns,
)
from ppdgrow.console import format_flops, format_seconds
from ppdgrow.console.page import Block, Heading, Items, Lines, Page, Paragraph, Picture, Table
from ppdgrow.statistics import Estimate

PICTURE_TEXT = (
    "validation loss of every arm over optimizer steps, FLOPs and wall-clock, and its difference to the baseline"
)


def report_page(comparison: Comparison, picture: bytes | None, picture_file: str | None = None) -> Page:
    """The page of a comparison.

    Args:
        comparison: not one of `--accept`.
        picture: the curves as SVG, which HTML holds; None leaves them out of it.
        picture_file: where Markdown finds the picture, relative to the page.
    """
    baseline = comparison.baseline
    data = baseline.first.history.state.data
    blocks: list[Block] = [
        Paragraph(_verdicts(comparison)),
        _table(arm_rows(comparison, [column for column in columns(comparison) if column.many]), left=(0, 1)),
        Paragraph(_reading(comparison)),
        *([Picture(picture, PICTURE_TEXT, picture_file)] if picture or picture_file else []),
        Heading("Criteria"),
        _table(criteria_matrix(comparison), left=range(10)),
        _table(_criteria(comparison), left=(0, 1, 5)),
        Heading("Cost to the final loss of the baseline"),
        Paragraph(
            f"Cost until the validation loss first fell to the final loss of {baseline.name} (of the same seed), over "
            "what that cost the baseline: steps, FLOPs, seconds of training; the shallow phase and rejected trials "
            "count."
        ),
        _table(arm_rows(comparison, cost_columns(comparison))),
        Heading("Loss at equal cost"),
        _table(arm_rows(comparison, equal_columns(comparison))),
        *_insertions(comparison),
        *_classes(comparison),
        Heading("Every run"),
        _table(_runs(comparison)),
        Heading("Size"),
        _table(arm_rows(comparison, size_columns(comparison))),
        *_doubts(comparison),
        Heading("How it was made"),
        Items(tuple(_making(comparison))),
        *(
            Lines(f"{arm.name}: lineage and commands of seed {seeds_of(run)}", tuple(_lineage(run)))
            for arm in comparison.arms
            for run in arm.runs
        ),
    ]
    arms = f"{len(comparison.arms) - 1} arms" if len(comparison.arms) > 2 else comparison.arms[1].name
    return Page(f"{data.name}: {arms} against {baseline.name}", tuple(blocks))


def _verdicts(comparison: Comparison) -> str:
    accepted = [arm.name for arm in comparison.arms[1:] if comparison.verdict_on(arm) == "accept"]
    told = f"All judged criteria passed: {', '.join(accepted)}." if accepted else "No arm passed all criteria."
    return f"{told} Baseline of all of them: {comparison.baseline.name}."


def _reading(comparison: Comparison) -> str:
    unit = loss_unit(comparison.baseline.first.history)
    several = "mean and standard deviation (sd) over the seeds; [..]: 95 % interval of the mean paired difference"
    return (
        f"Loss in {unit}, {several if comparison.several_seeds else ONE_SEED_EACH}. FLOPs, wall-clock: cost of the "
        f"models, their shallow phase included, relative to {comparison.baseline.name}; to equal loss: see below. "
        "Insertion: the largest change of the validation loss by putting blocks in, in any seed; 0 is exact."
    )


def _criteria(comparison: Comparison) -> TextTable:
    rows = tuple((c.run, c.name, *criterion_cells(c)) for c in comparison.criteria)
    header = ("arm", f"criterion, against {comparison.baseline.name}", "figure", "bound", "outcome", "note")
    return TextTable(header, rows)


def _insertions(comparison: Comparison) -> Iterator[Block]:
    """One row per arm and growth, means over the seeds."""
    rows = []
    for arm in comparison.arms:
        most = max(len(run.insertions) for run in arm.runs)
        for index in range(most):
            cell = [run.insertions[index] for run in arm.runs if index < len(run.insertions)]
            later = [i.loss_after_updates for i in cell if i.loss_after_updates is not None]
            jumps = [i.jump for i in cell if i.jump is not None]
            rows.append(
                (
                    arm.name,
                    ", ".join(sorted({f"{i.step:,}" for i in cell})),
                    "/".join(dict.fromkeys(kind for i in cell for kind in i.kinds)) or NOTHING,
                    before_after(cell),
                    exact(max(jumps, key=abs)) if jumps else NOTHING,
                    "yes" if all(i.bit_exact for i in cell) else "no",
                    f"{Estimate(tuple(later)).mean:.4f}" if later else NOTHING,
                    ", ".join(sorted({f"{i.updates:,}" for i in cell if i.updates is not None})) or NOTHING,
                    bump(cell),
                    _spikes_after(cell),
                )
            )
    if rows:
        header = (
            *("arm", "step", "kinds", "loss before / after", "largest change", "same bits"),
            *(f"loss ~{UPDATES_AFTER:,} updates after", "updates", "bump, steps to recover"),
            "spikes by then: gradient (old / new), loss",
        )
        yield Heading("Insertions")
        yield _table(TextTable(header, tuple(rows)))
        yield Paragraph(
            "Growth bump: the highest validation loss right after the growth and within 200 steps, minus the loss "
            "before it; steps to recover are interpolated between evaluations. Gradient spike: a norm before clipping "
            "above 5 times the median of the 100 steps before; old and new parameters apart. Loss spike: a loss "
            "above median + 6 x 1.4826 x MAD of the 100 steps before. Spikes are counted over all seeds."
        )


def _spikes_after(insertions: Sequence[Insertion]) -> str:
    old, new = (
        sum(getattr(insertion.gradient_spike, group) or 0 for insertion in insertions) for group in ("old", "new")
    )
    return f"{old} / {new}, {sum(insertion.loss_spikes for insertion in insertions)}"


def _classes(comparison: Comparison) -> Iterator[Block]:
    """One row per class, one column per arm; where the data has classes and every run tells their accuracy."""
    by_arm = [[run.history.final.validation.class_accuracy or {} for run in arm.runs] for arm in comparison.arms]
    names = [name for name in by_arm[0][0] if all(name in told for told_by in by_arm for told in told_by)]
    if not names:
        return
    rows = [
        (name, *(f"{100 * Estimate(tuple(told[name] for told in arm)).mean:.2f} %" for arm in by_arm)) for name in names
    ]
    yield Heading("Accuracy by class")
    yield _table(TextTable(("class", *(arm.name for arm in comparison.arms)), tuple(rows)))


def _runs(comparison: Comparison) -> TextTable:
    tested = any(run.test is not None for run in comparison.runs)
    tried = any(run.has_trials for run in comparison.runs)
    figures = [run.history.final.validation for run in comparison.runs]
    columns: list[tuple[str, Callable[[ComparedRun], str]]] = [
        ("seed", seeds_of),
        ("steps", lambda run: f"{run.history.step:,}"),
        ("validation loss", lambda run: f"{run.history.final.validation.loss:.4f}"),
        ("against baseline", lambda run: f"{run.loss_difference:+.4f}" if run.equal and run.paired else NOTHING),
        ("accuracy", lambda run: f"{100 * run.history.final.validation.accuracy:.2f} %"),
        ("training loss", lambda run: _digits(run.history.state.train_loss, 4)),
        ("FLOPs", lambda run: format_flops(run.history.state.ledger.flops)),
        ("wall-clock", lambda run: format_seconds(run.history.state.ledger.seconds)),
        ("gradient spikes (old / new)", lambda run: gradient_spikes(ComparedArm("", (run,)))),
        ("loss spikes", lambda run: str(run.loss_spikes)),
    ]
    if any(figure.perplexity is not None for figure in figures):
        columns.insert(5, ("perplexity", lambda run: _digits(run.history.final.validation.perplexity, 2)))
    if any(figure.bits_per_byte is not None for figure in figures):
        columns.insert(6, ("bits per byte", lambda run: _digits(run.history.final.validation.bits_per_byte, 4)))
    if tried:
        columns += [
            ("FLOPs of trials", lambda run: format_flops(run.history.state.ledger.trials.flops)),
            ("wall-clock of trials", lambda run: format_seconds(run.history.state.ledger.trials.seconds)),
            ("trials (kept / rejected)", lambda run: f"{run.history.trials_kept} / {run.history.trials_rejected}"),
        ]
    if tested:
        columns += [
            ("test loss", lambda run: NOTHING if run.test is None else f"{run.test.loss:.4f}"),
            ("test accuracy", lambda run: NOTHING if run.test is None else f"{100 * run.test.accuracy:.2f} %"),
        ]
    rows = [(arm.name, *(cell(run) for _, cell in columns)) for arm in comparison.arms for run in arm.runs]
    return TextTable(("arm", *(name for name, _ in columns)), tuple(rows))


def _digits(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _doubts(comparison: Comparison) -> list[Block]:
    notes = tuple(note for note in comparison.notes if note != ONE_SEED)
    return [Heading("What to doubt"), Items((*comparison.warnings, *notes, *_standing(comparison)))]


def _standing(comparison: Comparison) -> Iterator[str]:
    """What is true of every such comparison."""
    yield (
        f"{len(comparison.arms)} arms were compared: with so many intervals at 95 % some exclude zero by chance"
        if len(comparison.arms) > 5
        else "one configuration of each arm"
    )
    yield "wall-clock counts training steps only, on the machine below; others may have used it at the same time"


def _making(comparison: Comparison) -> Iterator[str]:
    first = comparison.baseline.first.history
    events = [event for run in comparison.runs for event in run.history.events]
    makings = [made for event in events if (made := getattr(event, "provenance", None)) is not None]
    named: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("machine", lambda made: made.get("machine")),
        ("ppdgrow", lambda made: f"{made.get('ppdgrow')}, commit {made.get('commit')}"),
        ("Python", lambda made: made.get("python")),
    ]
    for name, read in named:
        values = dict.fromkeys(str(read(made)) for made in makings)
        yield f"{name}: {'; '.join(values) or 'not recorded'}"
    environments = dict.fromkeys(
        f"torch {e.torch}, {e.device}, {e.precision}, {e.threads} threads, {e.cpu_capability}"
        for e in (run.history.state.environment for run in comparison.runs)
    )
    yield f"environment: {'; '.join(environments)}"
    data = first.state.data
    yield f"data: {data.name}, tokenizer {data.tokenizer or 'none'}, {data.validation_examples:,} validation examples"
    for split, digest in sorted(data.sha256.items()):
        yield f"sha256 of the {split} split: {digest}"


def _lineage(run: ComparedRun) -> Iterator[str]:
    for event in run.history.events:
        text = event.line()
        if text is not None:
            yield text
        made = getattr(event, "provenance", None)
        if isinstance(made, dict) and made.get("command"):
            yield f"    {made['command']}"


def seeds_of(run: ComparedRun) -> str:
    """The seeds of a run and its ancestors."""
    return join_seeds([run.history]) or NOTHING


def _table(table: TextTable, left: Sequence[int] = (0,)) -> Table:
    """Text to the left in the columns named, figures to the right in the others."""
    return Table(table.header, table.rows, frozenset(range(len(table.header))) - frozenset(left))
