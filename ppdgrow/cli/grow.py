"""`ppdgrow grow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppdgrow.cli.command import command
from ppdgrow.config.requests import GrowRequest
from ppdgrow.console import Narrator, format_count, format_flops

if TYPE_CHECKING:
    from ppdgrow.growth.grow import GrowResult

NAME = "grow"
EXAMPLE = """
  ppdgrow grow runs/shallow --pair ffn --pairs 3 --out runs/grown
  ppdgrow grow runs/grown --remove last --out runs/shallow-again
"""


@command(GrowRequest)
def run(request: GrowRequest, narrator: Narrator) -> None:
    """Add identity-cancelling pairs to a checkpoint.

    Or add rival blocks, or take a pair out. Prints the validation loss before and after on the same batches.
    Exits with 7, with nothing written, if a pair changes the function. Half-steps are the branches that must run one
    after the other: 2 in a layer, 2n + 1 in n adjacent pairs. The input is never written to; the last line of the
    output is the new run folder.
    """
    with narrator.status("importing torch"):
        from ppdgrow.checkpoint import RunFolder
        from ppdgrow.cli.next_command import propose_after
        from ppdgrow.growth.grow import grow

    with narrator.status(f"growing {request.checkpoint}"):
        result = grow(request, narrator)
    narrator.document(result.document())
    _print_result(result, narrator)
    if result.checkpoint == result.path:
        narrator.propose("next, see what its layers do", ("probe", result.path.as_posix()))
    else:
        propose_after(narrator, RunFolder(result.path), result.checkpoint, request)
    narrator.data(result.path.as_posix())


def _print_result(result: GrowResult, narrator: Narrator) -> None:
    shown, event = result.document(), result.event
    more = event.parameters_untied != event.parameters_after
    untied = f"{format_count(shown['parameters_untied'])} once untied" if more else ""
    parameters = [format_count(shown[f"parameters_{when}"]) for when in ("before", "after")]
    rows = [
        ["", "before", "after", ""],
        ["layers", str(event.layers_before), str(event.layers_after), result.place],
        ["parameters", *parameters, untied],
    ]
    if event.flops_per_token_before is not None:  # not known of a model of Transformers
        flops = [format_flops(shown[f"flops_per_token_{when}"]) for when in ("before", "after")]
        rows.append(["FLOP per token", *flops, ""])
        rows.append(["half-steps", str(event.half_steps_before), str(event.half_steps_after), ""])
    if event.bit_exact is None:
        rows.append(["outputs", "", "", "not compared (--no-eval)"])
    elif event.loss_before is not None:
        rows.append(["validation loss", f"{event.loss_before:.6f}", f"{event.loss_after:.6f}", event.verdict])
    else:
        rows.append(["outputs", "", "", f"{event.verdict} (one synthetic batch)"])
    narrator.table(rows)
