"""The ungrown control of a grown run: the command that trains its shallow model for as many FLOPs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ppdgrow.checkpoint import RunFolder, manifest_digest, read_config, read_state
from ppdgrow.checkpoint.events import Event, GrowEvent
from ppdgrow.checkpoint.lineage import insertions, lineage_up_to
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.schema import NOT_INHERITED, Recipe, flatten
from ppdgrow.config.state import TrainerState
from ppdgrow.config.yaml12 import format_value
from ppdgrow.errors import PPDGrowError
from ppdgrow.nn.cost import BACKWARD_FACTOR, tokens_per_example
from ppdgrow.training.context import resolved_recipe

Words = tuple[str, ...]
SEED = re.compile(r"(seed|s)[-_]?[0-9]+")


def control_command(
    run: RunFolder,
    architecture: Architecture,
    state: TrainerState,
    lineage: Iterable[Event],
    recipe: Recipe | None,
    *,
    of_arm: bool = False,
) -> Words | None:
    """Its words, without the program's name; None for a run that was not grown and trained, or does not say enough.

    It goes on from the checkpoint that was grown, where that is still there and its learning rate at the peak; else it
    trains the shallow model from the start. Either way by the recipe of the grown run. `of_arm`: see `beside`.
    """
    first = next(iter(insertions(lineage)), None)
    if first is None or recipe is None or first.layers_before is None or not first.flops_per_token_before:
        return None
    if state.step <= first.step:
        return None
    flops = state.ledger.flops + state.ledger.trials.flops
    tokens = recipe.train.batch_size * tokens_per_example(architecture)
    out = ("--out", word(beside(run, "control", of_arm=of_arm)))
    of_a_step = BACKWARD_FACTOR * first.flops_per_token_before * tokens
    parent = None if first.trial is not None else _undecayed(first)
    if parent is not None:
        own, spent = resolved_recipe(parent[0]).recipe, parent[2].ledger.flops
        steps = str(max(1, round((flops - spent) / of_a_step)))
        return ("train", name_of(*parent[:2]), *_changed(own, recipe), "--steps", steps, *out)
    shallow = ("train", "--recipe", word(run.recipe_path), "--layers", str(first.layers_before))
    return (*shallow, "--steps", str(round(flops / of_a_step)), *of_one_run(recipe), *out)


def _undecayed(grown: GrowEvent) -> tuple[RunFolder, Path, TrainerState] | None:
    """The checkpoint that was grown, if it is still there and its learning rate at the peak."""
    if grown.parent is None:
        return None
    folder = Path(grown.parent)
    try:
        state, same = read_state(folder), manifest_digest(folder) == grown.parent_sha256
    except (OSError, PPDGrowError):
        return None
    return (RunFolder(folder.parent.parent), folder, state) if same and state.lr_factor == 1.0 else None


def _changed(parent: Recipe, recipe: Recipe) -> Words:
    """The values in which a run differs from what it would inherit of its parent."""
    old, new = flatten(parent.model_dump(mode="json")), flatten(recipe.model_dump(mode="json"))
    keys = [key for key in new if key not in (*NOT_INHERITED, "model.layers") and new[key] != old[key]]
    return tuple(word for key in keys for word in ("-o", f"{key}={format_value(new[key])}"))


def beside(run: RunFolder, what: str, *, of_arm: bool = False) -> Path:
    """Where a run that is held against another goes: beside it, or beside the folder that holds the runs of its arm.

    `of_arm`: its folder is such a one; else that is known by a name such as `seed-3`.
    """
    place = _named(run.path)
    if of_arm or (SEED.fullmatch(place.name) and place.parent.name not in ("", "..")):
        folder = _named(place.parent)
        return folder.with_name(f"{folder.name}-{what}") / place.name
    return place.with_name(f"{place.name}-{what}")


@dataclass(frozen=True)
class Trio:
    """A grown run and the two that it is held against, by their places; see `beside`."""

    grown: RunFolder
    control: RunFolder
    baseline: RunFolder

    @property
    def command(self) -> Words | None:
        """That trains the control, where the grown run says enough; see `control_command`."""
        run, folder = self.grown, self.grown.checkpoints()[-1]
        try:
            architecture, state, recipe = read_config(folder), read_state(folder), resolved_recipe(run).recipe
            words = control_command(run, architecture, state, lineage_up_to(run.growth_path, state.step), recipe)
        except PPDGrowError:
            return None
        return None if words is None else (*words[:-1], word(self.control.path))


def trio_of(run: RunFolder, architecture: Architecture) -> Trio | None:
    """The trio of which an ungrown run is the control or the baseline; None where no run beside it was grown so."""
    place = _named(run.path)
    for folder, name in ((place, ""), (place.parent, place.name)):
        stem, _, what = folder.name.rpartition("-")
        if not stem or what not in ("control", "baseline"):
            continue
        places = [folder.with_name(f"{stem}{end}") / name for end in ("", "-control", "-baseline")]
        trio = Trio(*map(RunFolder, places))
        layers = _layers(trio.grown)
        if layers is not None and layers[what == "baseline"] == architecture.num_layers:
            return trio
    return None


def _layers(run: RunFolder) -> tuple[int | None, int] | None:
    """The depths of a run before its first growth and at its end; None where there is no such run."""
    try:
        folder = run.checkpoints()[-1]
        grown = insertions(lineage_up_to(run.growth_path, read_state(folder).step))
        return grown[0].layers_before, read_config(folder).num_layers
    except (OSError, IndexError, PPDGrowError):
        return None


def _named(path: Path) -> Path:
    return path if path.name not in ("", "..") else path.resolve()


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
