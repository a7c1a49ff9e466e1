"""What `compare --report` says: the figures, who passed what, every run, and how all of it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ppdgrow.console import format_count, format_flops, format_seconds
from ppdgrow.experiment.card import describe_event
from ppdgrow.experiment.comparison.compare import Comparison
from ppdgrow.experiment.comparison.criteria import ONE_SEED, loss_unit
from ppdgrow.experiment.comparison.figures import ComparedArm, ComparedRun
from ppdgrow.experiment.comparison.insertions import UPDATES_AFTER
from ppdgrow.experiment.comparison.table import (
    NOTHING,
    ONE_SEED_EACH,
    TextTable,
    before_after,
    below,
    bound,
    bump,
    cost_cell,
    criteria_matrix,
    exact,
    figure,
    gradient_spikes,
    layers,
    outcome,
)
from ppdgrow.experiment.page import Block, Heading, Items, Lines, Page, Paragraph, Picture, Table
from ppdgrow.experiment.statistics import Estimate

PICTURE_TEXT = (
    "validation loss of every arm over optimizer steps, FLOPs and wall-clock, and its difference to the baseline"
)


def report_page(comparison: Comparison, picture: bytes | None, picture_file: str | None = None) -> Page:
    """The page of a comparison.

    Args:
        comparison: not one of `--accept`.
        picture: the curves as SVG; None leaves them out.
        picture_file: where Markdown finds the picture, relative to the page.
    """
    baseline = comparison.baseline
    data = baseline.first.history.state.data
    blocks: list[Block] = [
        Paragraph(_verdicts(comparison)),
        _table(below(comparison)),
        Paragraph(_reading(comparison)),
        *([Picture(picture, PICTURE_TEXT, picture_file)] if picture is not None else []),
        Heading("Criteria"),
        _table(criteria_matrix(comparison), left=range(10)),
        _table(_criteria(comparison), left=(0, 1, 5)),
        Heading("Cost to the final loss of the baseline"),
        Paragraph(
            f"Cost until the validation loss first fell to the final loss of {baseline.name} (of the same seed), over "
            "what that cost the baseline: steps, FLOPs, seconds of training; the shallow phase and rejected trials "
            "count."
        ),
        _table(_costs(comparison)),
        *_insertions(comparison),
        Heading("Every run"),
        _table(_runs(comparison)),
        Heading("Size"),
        _table(_sizes(comparison)),
        *_doubts(comparison),
        Heading("How it was made"),
        Items(tuple(_making(comparison))),
        *(
            Lines(f"{arm.name}: lineage and commands of seed {seeds_of(run)}", tuple(_lineage(run)))
            for arm in comparison.arms
            for run in arm.runs
        ),
    ]
    arms = f"{len(comparison.arms)} arms" if len(comparison.arms) > 2 else comparison.arms[1].name
    return Page(f"{data.name}: {arms} against {baseline.name}", tuple(blocks))


def _verdicts(comparison: Comparison) -> str:
    accepted = [arm.name for arm in comparison.arms[1:] if comparison.verdict_on(arm) == "accept"]
    told = f"All judged criteria passed: {', '.join(accepted)}." if accepted else "No arm passed all criteria."
    return f"{told} Baseline of all of them: {comparison.baseline.name}."


def _reading(comparison: Comparison) -> str:
    unit = loss_unit(comparison.baseline.first.history)
    several = "mean and standard deviation (sd) over the seeds; [..]: 95 % interval of the mean paired difference"
    return (
        f"Loss in {unit}, {several if comparison.several_seeds else ONE_SEED_EACH}. FLOPs, wall-clock: the whole cost "
        f"of the models over that of {comparison.baseline.name}. Insertion: the largest change of the validation loss "
        "by putting blocks in, in any seed; 0 is exact."
    )


def _criteria(comparison: Comparison) -> TextTable:
    rows = tuple((c.run, c.name, figure(c), bound(c), outcome(c), c.note) for c in comparison.criteria)
    return TextTable(("arm", f"criterion, against {comparison.baseline.name}", "figure", "bound", "", ""), rows)


def _costs(comparison: Comparison) -> TextTable:
    rows = tuple(
        (arm.name, *(cost_cell(arm, axis) for axis in ("steps", "flops", "seconds"))) for arm in comparison.arms[1:]
    )
    return TextTable(("arm", "steps", "FLOPs", "wall-clock"), rows)


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
                )
            )
    if rows:
        header = (
            *("arm", "step", "kinds", "loss before / after", "largest change", "outputs the same bits"),
            *(f"loss about {UPDATES_AFTER:,} updates after", "updates", "growth bump, steps to recover"),
        )
        yield Heading("Insertions")
        yield _table(TextTable(header, tuple(rows)))
        yield Paragraph(
            "Growth bump: the highest validation loss right after the growth and within 200 steps, less that before "
            "it; steps to recover are interpolated between evaluations."
        )


def _runs(comparison: Comparison) -> TextTable:
    tested = any(run.test is not None for run in comparison.runs)
    names = ("arm", "seed", "steps", "validation loss", "against the baseline", "accuracy", "training loss")
    header = [*names, "FLOPs", "wall-clock", "gradient spikes (old / new)", "loss spikes"]
    header += ["test loss", "test accuracy"] if tested else []
    rows = []
    for arm in comparison.arms:
        for run in arm.runs:
            history, state = run.history, run.history.state
            row = [
                arm.name,
                seeds_of(run),
                f"{history.step:,}",
                f"{history.final.validation.loss:.4f}",
                NOTHING if run.equal is None or not run.paired else f"{run.loss_difference:+.4f}",
                f"{100 * history.final.validation.accuracy:.2f} %",
                NOTHING if state.train_loss is None else f"{state.train_loss:.4f}",
                format_flops(state.ledger.plus(state.ledger.trials).flops),
                format_seconds(state.ledger.plus(state.ledger.trials).seconds),
                gradient_spikes(ComparedArm(arm.name, (run,))),
                str(run.loss_spikes),
            ]
            test = run.test
            if tested:
                row += [NOTHING, NOTHING] if test is None else [f"{test.loss:.4f}", f"{100 * test.accuracy:.2f} %"]
            rows.append(tuple(row))
    return TextTable(tuple(header), tuple(rows))


def _sizes(comparison: Comparison) -> TextTable:
    rows = tuple(
        (
            arm.name,
            layers(arm.first),
            arm.first.history.architecture.stream,
            str(arm.first.history.architecture.width),
            format_count(arm.first.parameters),
            format_flops(arm.first.flops_per_token),
            str(arm.first.half_steps),
            format_count(arm.first.history.state.ledger.tokens),
        )
        for arm in comparison.arms
    )
    header = (
        "arm",
        "layers",
        "stream",
        "width",
        "parameters",
        "FLOPs per token, forward",
        "half-steps",
        "training tokens",
    )
    return TextTable(header, rows)


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
    yield "wall-clock is that of training steps on the machine below; others may have used it at the same time"


def _making(comparison: Comparison) -> Iterator[str]:
    first = comparison.baseline.first.history
    makings = [event["provenance"] for run in comparison.runs for event in run.history.lineage if "provenance" in event]
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
    for event in run.history.lineage:
        told = describe_event(event)
        if told is not None:
            yield told
        made = event.get("provenance")
        if isinstance(made, dict) and made.get("command"):
            yield f"    {made['command']}"


def seeds_of(run: ComparedRun) -> str:
    """The seeds of a run and its ancestors."""
    return ", ".join(map(str, run.history.seeds)) or NOTHING


def _table(table: TextTable, left: Sequence[int] = (0,)) -> Table:
    """Text to the left in the columns named, figures to the right in the others."""
    return Table(table.header, table.rows, frozenset(range(len(table.header))) - frozenset(left))
