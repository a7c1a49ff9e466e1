"""`ppdgrow grow`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ppdgrow.cli import completion, options
from ppdgrow.console import Narrator, format_count, format_flops

if TYPE_CHECKING:
    from ppdgrow.growth.grow import GrowResult

NAME = "grow"
EXAMPLE = """
  ppdgrow grow runs/shallow --pair ffn --pairs 3 --out runs/grown
  ppdgrow grow runs/grown --remove last --out runs/shallow-again
"""

GROWTH = "Growth"


def run(
    checkpoint: options.CheckpointArgument,
    pair: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[,KIND..]",
            autocompletion=completion.complete_pair,
            help="Kind of the pairs: ffn (two MLPs), attention, recurrent or convolution (that mixer and an MLP), "
            "attention-first (attention if there is no such pair yet, else ffn), depthwise (each channel for itself), "
            "orthogonal or linear (linear maps, which add little: controls). The last of a list repeats. "
            "[default: ffn]",
            rich_help_panel=GROWTH,
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<int>",
            help="Number of pairs, each two layers. [default: as many as are listed, or 1]",
            rich_help_panel=GROWTH,
        ),
    ] = None,
    position: Annotated[
        str,
        typer.Option(
            metavar="WHERE",
            autocompletion=completion.complete_position,
            help="end, start, middle, interleave (spread evenly; one pair: middle), or after which blocks, such as "
            "2,4,6 (0: before the first).",
            rich_help_panel=GROWTH,
        ),
    ] = "interleave",
    source: Annotated[
        Literal["copy", "slice", "random"] | None,
        typer.Option(
            help="Where theta_0, the weights from which both members of a pair start, comes from: copy (the nearest "
            "preceding branch of the kind), slice (of a full-width one), random. [default: copy in a coupled stream, "
            "slice in a residual one]",
            rich_help_panel=GROWTH,
        ),
    ] = None,
    scale: Annotated[
        float,
        typer.Option(
            parser=options.parse_number,
            metavar="<float>",
            help="Factor on the output projections of theta_0.",
            rich_help_panel=GROWTH,
        ),
    ] = 1.0,
    method: Annotated[
        Literal["pair", "zero", "copy", "fresh"],
        typer.Option(
            help="pair, or a rival that adds as many whole layers: zero (copies with zero output), copy "
            "(stacking at end, interleaving), fresh (random).",
            rich_help_panel=GROWTH,
        ),
    ] = "pair",
    moments: Annotated[
        Literal["fresh", "copy_v", "copy"],
        typer.Option(
            help="Optimizer state of new parameters: fresh (none), copy_v (second moment of the source), "
            "copy (first moment too).",
            rich_help_panel=GROWTH,
        ),
    ] = "copy_v",
    remove: Annotated[
        str | None,
        typer.Option(
            metavar="last|ID",
            autocompletion=completion.complete_removal,
            help="Take a pair out instead of growing.",
            rich_help_panel=GROWTH,
        ),
    ] = None,
    no_eval: Annotated[
        bool,
        typer.Option(
            "--no-eval", help="Skip the losses; outputs are compared on a synthetic batch.", rich_help_panel=GROWTH
        ),
    ] = False,
    data_dir: options.DataDirOption = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = None,
    out: options.OutOption = None,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Add identity-cancelling pairs to a checkpoint.

    Or add rival blocks, or take a pair out. Prints the validation loss before and after on the same batches.
    Exits with 7, with nothing written, if a pair changes the function. Half-steps are the branches that must run one
    after the other: 2 in a layer, 2n + 1 in n adjacent pairs. The input is never written to; the last line of the
    output is the new run folder.
    """
    narrator = Narrator(quiet=quiet, json=json)
    with narrator.status("importing torch"):
        from ppdgrow.cli.next_command import after
        from ppdgrow.growth.grow import GrowRequest, grow, growth_asked

    asked: dict[str, Any] = {"pair": pair, "pairs": pairs, "position": position, "source": source}
    asked |= {"scale": scale, "method": method, "moments": moments}
    growth = growth_asked(asked, remove=remove, source="the command line")
    request = GrowRequest(
        checkpoint=checkpoint,
        growth=growth,
        remove=remove,
        evaluate=not no_eval,
        out=out,
        device=device,
        precision=precision,
        data_dir=data_dir,
    )
    with narrator.status(f"growing {checkpoint}"):
        result = grow(request, narrator)
    narrator.document(result.document())
    _print_result(result, narrator)
    flags = options.same_place(device, data_dir)
    after(result.run, result.run.checkpoint_path(result.event.step), flags).show(narrator)
    narrator.data(result.run.path.as_posix())


def _print_result(result: GrowResult, narrator: Narrator) -> None:
    """Before and after side by side."""
    shown, event = result.document(), result.event
    more = event.parameters_untied != event.parameters_after
    untied = f"{format_count(shown['parameters_untied'])} once untied" if more else ""
    rows = [
        ["", "before", "after", ""],
        ["layers", str(event.layers_before), str(event.layers_after), result.place],
        ["parameters", format_count(shown["parameters_before"]), format_count(shown["parameters_after"]), untied],
        [
            "FLOP per token",
            format_flops(shown["flops_per_token_before"]),
            format_flops(shown["flops_per_token_after"]),
            "",
        ],
        ["half-steps", str(event.half_steps_before), str(event.half_steps_after), ""],
    ]
    if event.loss_before is not None:
        rows.append(["validation loss", f"{event.loss_before:.6f}", f"{event.loss_after:.6f}", event.verdict])
    else:
        rows.append(["outputs", "", "", f"{event.verdict} (one synthetic batch)"])
    narrator.table(rows)
