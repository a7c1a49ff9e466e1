"""`ppdgrow compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ppdgrow.cli import options
from ppdgrow.console import Narrator

if TYPE_CHECKING:
    from ppdgrow.experiment.comparison.compare import Comparison

NAME = "compare"
EXAMPLE = """
  ppdgrow compare runs/baseline runs/grown-trained
  ppdgrow compare runs/shallow runs/grown-trained --accept --epsilon 0.0
"""

DECISION = "Decision"


def run(
    runs: Annotated[
        list[Path], typer.Argument(metavar="BASELINE OTHER..", help="Run folders; the first is the baseline.")
    ],
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Take the two runs as PARENT and TRIAL and decide by the parent rule: accept if the trial's "
            "validation loss is at most the parent's plus epsilon. Exits with 3 on rejection.",
            rich_help_panel=DECISION,
        ),
    ] = False,
    epsilon: Annotated[
        float,
        typer.Option(
            help="Nats that the trial may lose; negative demands a gain. With --accept.", rich_help_panel=DECISION
        ),
    ] = 0.0,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Hold runs against a baseline.

    Prints one table: depth, cost, losses at equal steps, what the insertion did, and the three success criteria
    of the first experiment, each with its figure and bound. Runs on different data are refused. The figures
    come from the run folders alone. One seed of each arm is a hint, not evidence: run at least three.
    """
    from ppdgrow.experiment.comparison.compare import compare_runs

    narrator = Narrator(quiet=quiet, json=json)
    comparison = compare_runs(runs, accept=accept, epsilon=epsilon)
    narrator.document(comparison.document())
    _tell(comparison, narrator)
    if accept and comparison.verdict == "reject":
        raise typer.Exit(3)


def _tell(comparison: Comparison, narrator: Narrator) -> None:
    """Warnings, the table, the criteria, and the verdict with what it is worth."""
    from ppdgrow.experiment.comparison.table import closing_lines, comparison_rows, criteria_rows

    for warning in comparison.warnings:
        narrator.warn(warning)
    table, criteria = comparison_rows(comparison), criteria_rows(comparison)
    narrator.table(table.rows, header=table.header)
    narrator.data("")
    narrator.table(criteria.rows, header=criteria.header, align="lrlll")
    narrator.data("")
    for line in closing_lines(comparison):
        narrator.data(line)
