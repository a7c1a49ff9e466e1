"""The ungrown control of a grown run: the command that trains its shallow model for as many FLOPs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ppdgrow.checkpoint import RunFolder, read_state
from ppdgrow.checkpoint.events import Event
from ppdgrow.checkpoint.lineage import insertions
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import TrainerState
from ppdgrow.errors import PPDGrowError
from ppdgrow.nn.cost import BACKWARD_FACTOR

Words = tuple[str, ...]


def control_command(
    run: RunFolder, state: TrainerState, lineage: Iterable[Event], recipe: Recipe | None
) -> Words | None:
    """Its words, without the program's name; None for a run that was not grown and trained, or does not say enough.

    It goes on from the checkpoint that was grown, where that is still there and its learning rate at the peak; else it
    trains the shallow model from the start.
    """
    first = next(iter(insertions(lineage)), None)
    if first is None or recipe is None or first.layers_before is None or not first.flops_per_token_before:
        return None
    if state.step <= first.step:
        return None
    flops = state.ledger.flops + state.ledger.trials.flops
    steps = round(flops / (BACKWARD_FACTOR * first.flops_per_token_before * state.ledger.tokens / state.step))
    place = run.path if run.path.name not in ("", "..") else run.path.resolve()
    out = ("--out", word(place.with_name(f"{place.name}-control")))
    if first.trial is None and first.parent is not None and _at_the_peak(Path(first.parent)):
        parent = Path(first.parent)
        return ("train", name_of(RunFolder(parent.parent.parent), parent), "--steps", str(steps - first.step), *out)
    shallow = ("train", "--recipe", word(run.recipe_path), "--layers", str(first.layers_before))
    return (*shallow, "--steps", str(steps), *of_one_run(recipe), *out)


def _at_the_peak(checkpoint: Path) -> bool:
    try:
        return read_state(checkpoint).lr_factor == 1.0
    except (OSError, PPDGrowError):
        return False


def of_one_run(recipe: Recipe) -> Words:
    """What takes away from a recipe that which belongs to a part of a longer training, or to a growth."""
    return (
        *(("-o", "growth=[]") if recipe.growth else ()),
        *(("-o", "train.horizon=null") if recipe.train.horizon is not None else ()),
        *(("--only", "all") if recipe.train.only != "all" else ()),
        *(() if recipe.train.decay else ("--decay",)),
    )


def name_of(run: RunFolder, folder: Path) -> str:
    """A checkpoint as a word of a command: its run, where it is the newest of it."""
    return word(run.path if [folder.name] == [path.name for path in run.checkpoints()[-1:]] else folder)


def word(path: Path) -> str:
    """A path that is not taken for an option."""
    return f"./{path.as_posix()}" if path.as_posix().startswith("-") else path.as_posix()
