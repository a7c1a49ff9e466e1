"""`ppdgrow probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ppdgrow.cli import options
from ppdgrow.console import Narrator
from ppdgrow.errors import CheckFailedError

if TYPE_CHECKING:
    from ppdgrow.experiment.probe import ProbeReport

NAME = "probe"
EXAMPLE = """
  ppdgrow probe runs/grown
  ppdgrow probe runs/grown-trained --dtype fp32,bf16 --json
"""


def run(
    checkpoint: Annotated[Path, typer.Argument(metavar="CKPT", help="Run folder or checkpoint; only read.")],
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME..]",
            help="Types in which to measure the cancellation: fp64, fp32, bf16, bf16_autocast, fp16. [default: all]",
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
    members' gradients must be exact opposites, and every coupling must be undone by its inverse: exit code 7
    where that fails. Trained, untied pairs are measured, not judged.
    """
    from ppdgrow.experiment.cancellation import DTYPES
    from ppdgrow.experiment.probe import ProbeRequest, probe

    names = tuple(DTYPES) if dtype is None else tuple(part.strip() for part in dtype.split(","))
    narrator = Narrator(quiet=quiet, json=json)
    report = probe(
        ProbeRequest(
            checkpoint=checkpoint,
            dtypes=names,
            device=device,
            precision=precision,
            data_dir=data_dir,
        ),
        narrator,
    )
    narrator.document(report.document())
    _tell(report, narrator)
    if not report.passed:
        raise CheckFailedError("; ".join(report.failures))


def _tell(report: ProbeReport, narrator: Narrator) -> None:
    """Pairs, then blocks, then the judgement."""
    if report.pairs:
        names = list(report.pairs[0].cancellation)
        rows = [
            [
                "pair",
                "kind",
                "state",
                *names,
                "round trip",
                "opposite gradients",
                "separation",
                "activity",
                "loss without",
            ]
        ]
        for pair in report.pairs:
            rows.append(
                [
                    pair.id,
                    pair.kind,
                    "tied" if pair.tied else "untied",
                    *(_figure(pair.cancellation[name].max_abs) for name in names),
                    f"{pair.round_trip.relative:.1e}",
                    _opposite(pair.gradient_antisymmetry),
                    _figure(pair.separation),
                    _figure(pair.activity),
                    f"{pair.ablation_loss:.4f}",
                ]
            )
        narrator.say("largest |P(x) - x| of each pair, by type, on hidden states of validation data")
        narrator.table(rows)
        narrator.say(f"validation loss with all blocks: {report.loss:.4f}")
    rows = [["block", "kind", "round trip", "gradient norm"]]
    for block in report.blocks:
        trip = "no inverse" if block.round_trip is None else f"{block.round_trip.relative:.1e}"
        rows.append([block.id, block.kind, trip, f"{block.gradient_norm:.3g}"])
    narrator.table(rows)
    tied = sum(pair.tied for pair in report.pairs)
    if report.passed and tied:
        narrator.say(f"all {tied} tied pairs cancel to the last bit")
    elif report.passed:
        narrator.say("every inverse holds; no pair is tied, so no cancellation is promised")


def _figure(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"


def _opposite(value: float | None) -> str:
    if value is None:
        return "no gradient"
    return "exact" if value == 0 else f"off by {value:.2g}"
