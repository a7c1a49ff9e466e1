"""`ppdgrow probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdgrow.cli.command import command
from ppdgrow.config.requests import ProbeRequest
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


@command(ProbeRequest)
def run(request: ProbeRequest, narrator: Narrator) -> None:
    """Check the mathematics of a checkpoint.

    Measured on real hidden states, with what each pair does. Tied pairs must cancel to the last bit, their
    members' gradients must be exact opposites, and their weights (theta_0) those that the growth recorded; every
    coupling and pair must be undone by its inverse within the bound of its rounding errors, and rotations must be
    orthogonal within theirs: exit code 7 where that fails. Trained, untied pairs are measured, not judged: how far
    their members are apart, how much they change the stream (below 0.001: idle), the loss without each of them.
    """
    with narrator.status("importing torch"):
        from ppdgrow.checkpoint import locate_checkpoint
        from ppdgrow.cli.next_command import propose_after
        from ppdgrow.probing.probe import probe

    with narrator.status(f"probing {request.checkpoint}"):
        report = probe(request, narrator)
    narrator.document(report.document())
    _print_result(report, narrator)
    if request.plot is not None:
        narrator.say(f"gradient norms and activity are drawn in {request.plot}")
    if report.sample is not None:
        drawn = report.sample
        narrator.say(f"{drawn.tokens} tokens after {drawn.prompt!r}, seed {drawn.seed}:")
        narrator.data(clean(drawn.text))
    if not report.passed:
        raise CheckFailedError("; ".join(report.failures))
    if report.loss is not None:
        propose_after(narrator, *locate_checkpoint(request.checkpoint), request)


def _print_result(report: ProbeReport, narrator: Narrator) -> None:
    """Pairs, then blocks, then notes and the judgement."""
    from ppdgrow.probing.report import block_rows, pair_rows

    if report.pairs:
        states = "a synthetic batch" if report.loss is None else "validation data"
        narrator.say(f"largest |P(x) - x| of each pair, by type, on hidden states of {states}")
        narrator.table(pair_rows(report))
    if report.pairs and report.loss is not None:
        narrator.say(f"validation loss with all blocks: {report.loss:.4f}")
    if any(block.round_trip is not None for block in report.blocks):
        narrator.say("round trips and their bounds are relative to the largest entry of the stream before the block")
    narrator.table(block_rows(report))
    for note in report.notes:
        narrator.say(note)
    tied = sum(pair.tied for pair in report.pairs)
    if report.passed and tied:
        narrator.say(f"all {tied} tied pairs cancel to the last bit")
    elif report.passed and any(block.round_trip is not None for block in report.blocks):
        narrator.say("every inverse holds; no pair is tied, so no cancellation is promised")
