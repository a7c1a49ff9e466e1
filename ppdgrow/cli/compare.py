"""`ppdgrow compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ppdgrow.cli.command import command
from ppdgrow.config.requests import CompareRequest
from ppdgrow.console import Narrator

if TYPE_CHECKING:
    from ppdgrow.comparison.compare import Comparison

NAME = "compare"
EXAMPLE = """
  ppdgrow compare runs/baseline runs/control runs/grown-trained
  ppdgrow compare runs/baseline runs/ffn runs/attention --test --report report.html --plot curves.svg
  ppdgrow compare runs/before runs/adapted --on wikitext2 --on ./letters
  ppdgrow compare runs/shallow runs/grown-trained --accept --epsilon 0.0
  ppdgrow compare runs/shallow runs/grown-trained --accept --twin runs/shallow-on --margin 0.01
"""


@command(CompareRequest)
def run(request: CompareRequest, narrator: Narrator) -> None:
    """Compare runs with a baseline.

    Prints one table: depth, cost, losses at equal steps, what the insertion did, and the success criteria of the
    first experiment, each with its figure and bound. Runs that differ in nothing but their seeds are one arm, with
    mean, deviation and the 95 % interval of the paired differences. Whether growing paid is judged where an ungrown
    run of the shallow depth is among the arms, trained for as many FLOPs: the control. Runs on different data are
    refused, unless --on evaluates them on the same. The figures come from the run folders alone; only --twin, --test
    and --on evaluate models (--data-dir, --device and --precision belong to them). One seed of each arm is a hint, not
    evidence: run at least three.
    """
    with narrator.status("importing torch"):
        from ppdgrow.cli.next_command import propose_after_comparison
        from ppdgrow.comparison.compare import compare
        from ppdgrow.comparison.report import write_files

    with narrator.status("reading the runs"):
        comparison = compare(request, narrator)
    if narrator.json:
        narrator.document(comparison.document())
    _print_result(comparison, narrator)
    for path in write_files(comparison, request):
        narrator.say(f"written: {path}")
    propose_after_comparison(narrator, comparison, request)
    if request.accept and comparison.verdict == "reject":
        raise typer.Exit(3)


def _print_result(comparison: Comparison, narrator: Narrator) -> None:
    """Warnings, the table, the criteria, and the verdict with what it is worth; a terminal may need short names."""
    from ppdgrow.comparison import tables

    short = tables.short_names(comparison, narrator.width)
    for name, shown in short.items():
        narrator.text(f"{shown} = {name}")
    if short:
        narrator.data("")
    for warning in comparison.warnings:
        narrator.warn(tables.replace_names(warning, short))
    table = tables.comparison_rows(comparison, narrator.width)
    narrator.table(table.rows, header=table.header)
    many = len(comparison.arms) > tables.SIDE_BY_SIDE
    criteria = {"": tables.criteria_matrix(comparison)} if many else tables.criteria_rows(comparison)
    for title, table in criteria.items():
        narrator.text(tables.replace_names(f"\n{title}" if title else "", short))
        rows = [[tables.replace_names(cell, short) for cell in row] for row in (table.header, *table.rows)]
        narrator.table(rows[1:], header=rows[0], align="l" * len(table.header) if many else "lrllw")
    narrator.data("")
    for line in tables.verdict_lines(comparison):
        narrator.text(tables.replace_names(line, short))
