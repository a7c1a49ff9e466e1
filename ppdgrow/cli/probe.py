"""`ppdgrow probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ppdgrow.cli import completion, options
from ppdgrow.console import Narrator
from ppdgrow.console.terminal import clean
from ppdgrow.errors import CheckFailedError

if TYPE_CHECKING:
    from ppdgrow.probing.report import ProbeReport

NAME = "probe"
EXAMPLE = """
  ppdgrow probe runs/grown
  ppdgrow probe runs/grown-trained --dtype fp32,bf16 --json
  ppdgrow probe runs/grown-trained --plot blocks.svg
  ppdgrow probe runs/grown-trained --sample "def main(" --tokens 200
"""

SAMPLE = "Sample"


def run(
    checkpoint: options.CheckpointArgument,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME..]",
            autocompletion=completion.complete_dtype,
            help="Types in which to measure the cancellation: fp64, fp32, bf16, bf16_autocast, fp16. [default: all]",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=options.parse_path,
            metavar="FILE",
            help="Draw gradient norm and activity per block into FILE (.svg or .png; needs ppdgrow[plot]).",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Continue TEXT by a language model; the continuation comes last on stdout. A growth that keeps the "
            "function keeps it.",
            rich_help_panel=SAMPLE,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<int>",
            help="Tokens of the continuation. [default: 200]",
            rich_help_panel=SAMPLE,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number, metavar="<int>", help="Of the draws. [default: 0]", rich_help_panel=SAMPLE
        ),
    ] = None,
    data_dir: options.DataDirOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Check the mathematics of a checkpoint.

    Measured on real hidden states, with what each pair does. Tied pairs must cancel to the last bit, their
    members' gradients must be exact opposites, and their weights (theta_0) those that the growth recorded; every
    coupling and pair must be undone by its inverse within the bound of its rounding errors, and rotations must be
    orthogonal within theirs: exit code 7 where that fails. Trained, untied pairs are measured, not judged: how far
    their members are apart, how much they change the stream (below 0.001: idle), the loss without each of them.
    """
    narrator = Narrator(quiet=quiet, json=json)
    with narrator.status("importing torch"):
        from ppdgrow.checkpoint import locate_checkpoint
        from ppdgrow.cli.next_command import after
        from ppdgrow.probing.cancellation import DTYPES
        from ppdgrow.probing.probe import ProbeRequest, probe

    names = tuple(DTYPES) if dtype is None else tuple(part.strip() for part in dtype.split(","))
    with narrator.status(f"probing {checkpoint}"):
        report = probe(
            ProbeRequest(
                checkpoint=checkpoint,
                dtypes=names,
                device=device,
                precision=precision,
                data_dir=data_dir,
                plot=plot,
                sample=sample,
                tokens=tokens,
                seed=seed,
            ),
            narrator,
        )
    narrator.document(report.document())
    _print_result(report, narrator)
    if plot is not None:
        narrator.say(f"gradient norms and activity are drawn in {plot}")
    if report.sample is not None:
        drawn = report.sample
        narrator.say(f"{drawn.tokens} tokens after {drawn.prompt!r}, seed {drawn.seed}:")
        narrator.data(clean(drawn.text))
    if not report.passed:
        raise CheckFailedError("; ".join(report.failures))
    after(*locate_checkpoint(checkpoint), options.same_place(device, data_dir)).show(narrator)


def _print_result(report: ProbeReport, narrator: Narrator) -> None:
    """Pairs, then blocks, then notes and the judgement."""
    from ppdgrow.probing.table import block_rows, pair_rows

    if report.pairs:
        narrator.say("largest |P(x) - x| of each pair, by type, on hidden states of validation data")
        narrator.table(pair_rows(report))
        narrator.say(f"validation loss with all blocks: {report.loss:.4f}")
    narrator.say("round trips and their bounds are relative to the largest entry of the stream before the block")
    narrator.table(block_rows(report))
    for note in report.notes:
        narrator.say(note)
    tied = sum(pair.tied for pair in report.pairs)
    if report.passed and tied:
        narrator.say(f"all {tied} tied pairs cancel to the last bit")
    elif report.passed:
        narrator.say("every inverse holds; no pair is tied, so no cancellation is promised")
