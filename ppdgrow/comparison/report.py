"""The files of `compare`: pictures, and pages with every figure, who passed what, every run, and how it was made."""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from ppdgrow.comparison.column import Layout, arm_rows
from ppdgrow.comparison.columns import columns
from ppdgrow.comparison.compare import HTML, Comparison
from ppdgrow.comparison.criteria import ONE_SEED, loss_unit
from ppdgrow.comparison.history import join_seeds
from ppdgrow.comparison.insertion_columns import insertion_rows
from ppdgrow.comparison.measures import ComparedRun, several_seeds, single_runs
from ppdgrow.comparison.plot import draw_comparison
from ppdgrow.comparison.tables import ONE_SEED_EACH, criteria_matrix, criterion_cells
from ppdgrow.config.requests import CompareRequest
from ppdgrow.console.page import Block, Heading, Items, Lines, Page, Paragraph, Picture, Table
from ppdgrow.console.picture import write_output

PICTURE_TEXT = (
    "validation loss of every arm over optimizer steps, FLOPs and wall-clock, and its difference to the baseline"
)


def write_files(comparison: Comparison, request: CompareRequest) -> Iterator[Path]:
    """Write the files that were asked for, each whole or not at all.

    Raises:
        StorageError: the file system refused one; an older file is left as it was.
    """
    plot = request.plot
    if plot is not None:
        write_output(plot, "--plot", draw_comparison(comparison, plot.suffix.lower().removeprefix(".")))
        yield plot
    embedded = any(path.suffix.lower() == HTML for path in request.report)
    picture = draw_comparison(comparison, "svg") if embedded else None
    for path in request.report:
        beside = None if plot is None else Path(os.path.relpath(plot, path.parent)).as_posix()
        page = report_page(comparison, picture, beside)
        text = page.html() if path.suffix.lower() == HTML else page.markdown()
        write_output(path, "--report", text.encode("utf-8"))
        yield path


def report_page(comparison: Comparison, picture: bytes | None, picture_file: str | None = None) -> Page:
    """The page of a comparison that is not one of `accept`.

    `picture` is the curves as SVG, which HTML holds (None: without them); Markdown finds `picture_file` beside itself.
    """
    arms, baseline = comparison.arms, comparison.baseline

    def table(layout: Layout, left: tuple[int, ...] = (0,)) -> Table:
        return replace(arm_rows(arms, comparison.columns(layout)), left=left)

    accepted = [arm.name for arm in comparison.grown or arms if comparison.verdict_on(arm) == "accept"]
    passed = f"All judged criteria passed: {', '.join(accepted)}." if accepted else "No arm passed all criteria."
    runs = [run for arm in arms for run in single_runs(arm)]
    of_run = [column for column in columns(runs) if column.layouts & Layout.RUNS]
    header = ("arm", f"criterion, against {baseline.name}", "figure", "bound", "outcome", "note")
    criteria = tuple((c.run, c.name, *criterion_cells(c)) for c in comparison.criteria)
    blocks: list[Block] = [
        Paragraph(f"{passed} Baseline of all of them: {baseline.name}."),
        table(Layout.MANY, left=(0, 1)),
        Paragraph(_how_to_read(comparison)),
        *([Picture(picture, PICTURE_TEXT, picture_file)] if picture or picture_file else []),
        Heading("Criteria"),
        criteria_matrix(comparison),
        Table(header, criteria, left=(0, 1, 5)),
        *_pays(comparison),
        *_on(comparison),
        Heading("Cost to the final loss of the baseline"),
        Paragraph(
            f"Cost until the validation loss first fell to the final loss of {baseline.name} (of the same seed), over "
            "what that cost the baseline: steps, FLOPs, seconds of training; the shallow phase and rejected trials "
            "count."
        ),
        table(Layout.COSTS),
        Heading("Loss at equal cost"),
        table(Layout.EQUAL),
        *_insertions(comparison),
        *_classes(comparison),
        Heading("Every run"),
        arm_rows(runs, of_run),
        Heading("Size"),
        table(Layout.SIZE),
        Heading("What to doubt"),
        Items((*comparison.warnings, *(note for note in comparison.notes if note != ONE_SEED), *_caveats(comparison))),
        Heading("How it was made"),
        Items(tuple(_making(comparison))),
        *(
            Lines(f"{arm.name}: lineage and commands of seed {join_seeds([run.history]) or '-'}", tuple(_lineage(run)))
            for arm in arms
            for run in arm.runs
        ),
    ]
    others = f"{len(arms) - 1} arms" if len(arms) > 2 else arms[1].name
    return Page(f"{baseline.first.history.state.data.name}: {others} against {baseline.name}", tuple(blocks))


def _how_to_read(comparison: Comparison) -> str:
    unit = loss_unit(comparison.baseline.first.history)
    several = "mean and standard deviation (sd) over the seeds; [..]: 95 % interval of the mean paired difference"
    seeds = several if several_seeds(comparison.arms) else ONE_SEED_EACH
    return (
        f"Loss in {unit}, {seeds}. FLOPs, wall-clock: cost of the models, their shallow phase included, relative to "
        f"{comparison.baseline.name}; to equal loss: see below. "
        "Insertion: the largest change of the validation loss by putting blocks in, in any seed; 0 is exact."
    )


def _pays(comparison: Comparison) -> Iterator[Block]:
    """Grown arms against what their FLOPs buy without growing."""
    if not comparison.grown:
        return
    shown = [column for column in columns(comparison.arms) if column.layouts & Layout.PAYS]
    means = " (the picture shows that of the means over seeds)" if several_seeds(comparison.arms) else ""
    yield Heading("Did growing pay")
    yield arm_rows(comparison.grown, shown)
    yield Paragraph(
        "Ungrown runs that end at the end of their decay span a front: the lower convex hull of their final losses "
        f"over the logarithm of their FLOPs, by seed{means}. Against ungrown: the final loss of an arm minus that of "
        "the front at its FLOPs, its shallow phase and its rejected trials included. Compute gain: the FLOPs that the "
        "front takes for its loss, over its own; a dash where its loss is below or above that of every ungrown run."
    )
    missing = [words for arm in comparison.grown for words in arm.missing_controls()]
    commands = [shlex.join(("ppdgrow", *words)) for words in missing]
    if commands:
        yield Lines("Commands that train the missing ungrown controls", tuple(commands))


def _on(comparison: Comparison) -> Iterator[Block]:
    """All arms on other data."""
    data = comparison.baseline.first.on
    if data:
        yield Heading("On other data")
        yield arm_rows(comparison.arms, comparison.columns(Layout.ON))
        several = ", with its 95 % interval where there are several seeds" if several_seeds(comparison.arms) else ""
        yield Paragraph(
            "Every run on the validation split of other data, on as many examples as its recipe takes of its own, "
            f"coded by its own tokenizer. Against baseline: the difference, paired by seed{several}; above 0 where an "
            "arm is worse there than the baseline. It decides nothing."
        )


def _insertions(comparison: Comparison) -> Iterator[Block]:
    table = insertion_rows(comparison.arms)
    if table.rows:
        yield Heading("Insertions")
        yield table
        yield Paragraph(
            "Growth bump: the highest validation loss right after the growth and within 200 steps, minus the loss "
            "before it; steps to recover are interpolated between evaluations. Gradient spike: a norm before clipping "
            "above 5 times the median of the 100 steps before; old and new parameters apart. Loss spike: a loss "
            "above median + 6 x 1.4826 x MAD of the 100 steps before. Spikes are counted over all seeds."
        )


def _classes(comparison: Comparison) -> Iterator[Block]:
    """One row per class, one column per arm; where the data has classes and every run tells their accuracy."""
    arms = [[run.validation.class_accuracy or {} for run in arm.runs] for arm in comparison.arms]
    names = [name for name in arms[0][0] if all(name in classes for arm in arms for classes in arm)]
    rows = [(name, *(f"{100 * fmean(classes[name] for classes in arm):.2f} %" for arm in arms)) for name in names]
    if rows:
        yield Heading("Accuracy by class")
        yield Table(("class", *(arm.name for arm in comparison.arms)), tuple(rows))


def _caveats(comparison: Comparison) -> Iterator[str]:
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
    for name, text in (("machine", "{machine}"), ("ppdgrow", "{ppdgrow}, commit {commit}"), ("Python", "{python}")):
        values = dict.fromkeys(text.format_map(defaultdict(lambda: None, made)) for made in makings)
        yield f"{name}: {'; '.join(values) or 'not recorded'}"
    text = "torch {torch}, {device}, {precision}, {threads} threads, {cpu_capability}"
    environments = (run.history.state.environment.model_dump() for run in comparison.runs)
    yield f"environment: {'; '.join(dict.fromkeys(text.format_map(environment) for environment in environments))}"
    data = first.state.data
    yield f"data: {data.name}, tokenizer {data.tokenizer or 'none'}, {data.validation_examples:,} validation examples"
    for split, digest in sorted(data.sha256.items()):
        yield f"sha256 of the {split} split: {digest}"
    for name, found in comparison.baseline.first.on.items():
        yield f"on {name}: {found.examples:,} examples, sha256 of its validation split: {found.sha256}"


def _lineage(run: ComparedRun) -> Iterator[str]:
    for event in run.history.events:
        text = event.line()
        if text is not None:
            yield text
        made = getattr(event, "provenance", None)
        if isinstance(made, dict) and made.get("command"):
            yield f"    {made['command']}"
