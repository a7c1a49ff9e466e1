"""`ppdgrow compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ppdgrow.cli import completion, options
from ppdgrow.console import Narrator

if TYPE_CHECKING:
    from ppdgrow.comparison.compare import Comparison

NAME = "compare"
EXAMPLE = """
  ppdgrow compare runs/baseline runs/grown-trained
  ppdgrow compare runs/baseline runs/ffn runs/attention --test --report report.html --plot curves.svg
  ppdgrow compare runs/shallow runs/grown-trained --accept --epsilon 0.0
  ppdgrow compare runs/shallow runs/grown-trained --accept --twin runs/shallow-on --margin 0.01
"""

DECISION = "Decision"


def run(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="BASELINE OTHER..",
            autocompletion=completion.complete_arm,
            help="Run folders, or folders of runs that are the seeds of one arm; the first is the baseline.",
        ),
    ],
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="Evaluate every run on the whole test split too. Once, at the end: it must not decide anything.",
            rich_help_panel=options.DATA,
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=options.parse_path,
            metavar="FILE",
            help="Draw the curves over steps, FLOPs and wall-clock into FILE (.svg or .png; needs ppdgrow[plot]).",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    report: Annotated[
        list[Path] | None,
        typer.Option(
            parser=options.parse_path,
            metavar="FILE",
            help="Write a page with every figure, run, lineage and command into FILE: .html holds the curves too "
            "(needs ppdgrow[plot]), .md shows those of --plot. Can be given twice.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Take the two runs as PARENT and TRIAL and decide. Without a twin by the parent rule: accept if "
            "the trial's validation loss is at most the parent's plus epsilon. Exits with 3 on rejection.",
            rich_help_panel=DECISION,
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<float>",
            help="Nats that the trial may lose against PARENT; negative demands a gain. With --accept. [default: 0.0]",
            rich_help_panel=DECISION,
        ),
    ] = None,
    twin: Annotated[
        Path | None,
        typer.Option(
            parser=options.parse_path,
            metavar="RUN",
            autocompletion=completion.complete_run,
            help="The ungrown model, trained from PARENT on the same batches for the same budget. Decide by the twin "
            "rule: accept if the upper end of the 95 % interval of the paired difference, trial minus twin, is below "
            "the margin. With --accept.",
            rich_help_panel=DECISION,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<float>",
            help="Nats that the trial may lose against the twin; negative demands a gain. With --twin. [default: 0.01]",
            rich_help_panel=DECISION,
        ),
    ] = None,
    rule: Annotated[
        Literal["parent", "twin"] | None,
        typer.Option(
            metavar="parent|twin",
            help="The rule that decides; the other figure is printed beside it. With --accept. [default: twin with "
            "--twin, else parent]",
            rich_help_panel=DECISION,
        ),
    ] = None,
    data_dir: options.DataDirOption = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(
            metavar="auto|cpu|cuda",
            help="Where to evaluate models. [default: auto]",
            rich_help_panel=options.HARDWARE,
        ),
    ] = None,
    precision: options.PrecisionOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Compare runs with a baseline.

    Prints one table: depth, cost, losses at equal steps, what the insertion did, and the success criteria of the
    first experiment, each with its figure and bound. Runs that differ in nothing but their seeds are one arm, with
    mean, deviation and the 95 % interval of the paired differences. Runs on different data are refused. The figures
    come from the run folders alone; only --twin and --test evaluate models (--data-dir, --device and --precision
    belong to them). One seed of each arm is a hint, not evidence: run at least three.
    """
    narrator = Narrator(quiet=quiet, json=json)
    with narrator.status("importing torch"):
        from ppdgrow.cli.next_command import after_comparison
        from ppdgrow.comparison.compare import compare
        from ppdgrow.comparison.report import write_files
        from ppdgrow.comparison.request import CompareRequest

    request = CompareRequest(
        paths=runs,
        accept=accept,
        epsilon=epsilon,
        twin=twin,
        margin=margin,
        rule=rule,
        test=test,
        plot=plot,
        report=tuple(report or ()),
        device=device,
        precision=precision,
        data_dir=data_dir,
    )
    with narrator.status("reading the runs"):
        comparison = compare(request, narrator)
    if json:
        narrator.document(comparison.document())
    _print_result(comparison, narrator)
    for path in write_files(comparison, request):
        narrator.say(f"written: {path}")
    after_comparison(comparison, runs, reported=bool(report)).show(narrator)
    if accept and comparison.verdict == "reject":
        raise typer.Exit(3)


def _print_result(comparison: Comparison, narrator: Narrator) -> None:
    """Warnings, the table, the criteria, and the verdict with what it is worth; a terminal may need shorter names."""
    from ppdgrow.comparison.tables import (
        SIDE_BY_SIDE,
        comparison_rows,
        criteria_matrix,
        criteria_rows,
        replace_names,
        short_names,
        verdict_lines,
    )

    for warning in comparison.warnings:
        narrator.warn(warning)
    short = short_names(comparison, narrator.width)
    for name, shown in short.items():
        narrator.text(f"{shown} = {name}")
    if short:
        narrator.data("")
    table = comparison_rows(comparison, narrator.width)
    narrator.table(table.rows, header=table.header)
    many = len(comparison.arms) > SIDE_BY_SIDE
    criteria = {"": criteria_matrix(comparison)} if many else criteria_rows(comparison)
    for title, table in criteria.items():
        narrator.text(replace_names(f"\n{title}" if title else "", short))
        rows = [[replace_names(cell, short) for cell in row] for row in (table.header, *table.rows)]
        narrator.table(rows[1:], header=rows[0], align="l" * len(table.header) if many else "lrllw")
    narrator.data("")
    for line in verdict_lines(comparison):
        narrator.text(replace_names(line, short))
