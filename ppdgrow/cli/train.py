"""`ppdgrow train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ppdgrow.cli.command import command
from ppdgrow.config.explain import key_table
from ppdgrow.config.requests import TrainRequest
from ppdgrow.console import Narrator

if TYPE_CHECKING:
    from ppdgrow.training.dry_run import Preview

NAME = "train"
EXAMPLE = """
  ppdgrow train --layers 6 --data wikitext2 --steps 1000 --no-decay --out runs/shallow
  ppdgrow train runs/grown --steps 1000 --out runs/grown-trained
  ppdgrow train --layers 2 --grow-to 6 --grow-at 50% --pair attention --data wikitext2 --out runs/in-one
"""


@command(TrainRequest)
def run(request: TrainRequest, narrator: Narrator) -> None:
    """Train a model from scratch, or on from a checkpoint.

    The last line of the output is the run folder. The same command again goes on where it stopped, and a
    finished run is not run again. A tied pair is untied by the first step. A recipe with growth: entries grows
    on the way, and keeps each growth only if its trial earns it, held against the loss before or against its twin, the
    ungrown model trained on the same batches.
    """
    if request.keys:
        _list_keys(narrator)
        return
    with narrator.status("importing torch"):
        from ppdgrow.checkpoint import RunFolder
        from ppdgrow.cli.next_command import propose_after
        from ppdgrow.growth.train import train

    if request.repeated:
        narrator.say(f"-o was given more than once for a key, the last one holds: {', '.join(request.repeated)}")
    if request.dry_run:
        from ppdgrow.training.dry_run import make_preview

        preview = make_preview(request, narrator)
        document = preview.document
        _print_result(preview, narrator)
    else:
        document = train(request, narrator)
        run_folder, final = RunFolder(Path(document["run"])), Path(document["checkpoint"])
        propose_after(narrator, run_folder, final, request)
    narrator.document(document)
    narrator.data(document["run"])


def _list_keys(narrator: Narrator) -> None:
    """Each key on a line of its own, so that grep finds it."""
    header = ["key", "default", "expected", "meaning"]
    rows = list(key_table())
    narrator.document({"schema": 1, "keys": [dict(zip(header, row, strict=True)) for row in rows]})
    narrator.table(rows, header=header, align="llll")


def _print_result(preview: Preview, narrator: Narrator) -> None:
    """What a dry run found: facts, then figures before and after growth."""
    from ppdgrow.training.dry_run import facts, figures

    narrator.table(list(facts(preview)), align="ll")
    narrator.data("")
    header = ["", "at the start", *(["after growth"] if preview.prepared.planned else [])]
    narrator.table(list(figures(preview)), header=header)
