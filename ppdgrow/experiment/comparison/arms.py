"""Which runs are seeds of one arm, and what the arm is called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint import RunFolder
from ppdgrow.config.schema import flatten
from ppdgrow.errors import ConfigError
from ppdgrow.experiment.comparison.history import RunHistory, name_histories
from ppdgrow.experiment.comparison.reading import read_history

# Recipe keys in which the seeds of one arm may differ.
FREE = frozenset({"train.seed", "data.directory", "train.eval_every", "train.save_every", "train.keep"})
# What tells a training, or a growth by hand, from another one: not its ids, losses or places in the file system.
EVENT_KEYS = ("event", "step", "steps", "method", "kinds", "positions", "source", "scale", "moments")
_SEED = re.compile(r"[-_./ ]+(?:seed|s)?[-_./ ]*\d*$", flags=re.IGNORECASE)


@dataclass(frozen=True)
class Arm:
    """Runs that differ in nothing but their seeds, by rising seed."""

    name: str
    histories: tuple[RunHistory, ...]


def read_arms(paths: Sequence[Path]) -> tuple[list[Arm], list[str]]:
    """The arms of these paths, in their order.

    A path may be a run, a checkpoint, or a folder whose subfolders are runs: these are one arm, by the word of the
    user. Runs that are given one by one are grouped where they agree in all but the seed, unless one arm would be
    all that is left.

    Returns:
        The arms, and what to doubt of them.

    Raises:
        ConfigError: a folder holds a seed twice.
        InvalidInputError: a path is no run, its files are broken, or it was never evaluated.
    """
    folders = [runs_in(path) for path in paths]
    flat = [run for path, runs in zip(paths, folders, strict=True) for run in runs or [path]]
    histories = iter(name_histories([read_history(path) for path in flat]))
    arms: list[Arm] = []
    loose: list[bool] = []
    for path, runs in zip(paths, folders, strict=True):
        loose.append(not runs)
        if runs:
            arms.append(Arm(path.resolve().name, _by_seed([next(histories) for _ in runs], path)))
        else:
            history = next(histories)
            arms.append(Arm(history.name, (history,)))
    doubts = [doubt for arm in arms for doubt in _doubts(arm)]
    return _unique(_grouped(arms, loose)), doubts


def runs_in(path: Path) -> list[Path]:
    """The runs in a folder that is none itself, else nothing."""
    try:
        if not path.is_dir() or RunFolder(path).checkpoints() or (path / "recipe.yaml").exists():
            return []
        runs = [entry for entry in path.iterdir() if entry.is_dir() and RunFolder(entry).checkpoints()]
    except OSError:
        return []  # read_history says what is wrong with it
    return sorted(
        runs, key=lambda run: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", run.name)]
    )


def _by_seed(histories: Sequence[RunHistory], path: Path) -> tuple[RunHistory, ...]:
    ordered = sorted(histories, key=lambda history: history.seeds)
    for one, other in pairwise(ordered):
        if one.seeds == other.seeds:
            raise ConfigError(
                f"{str(path)!r} holds seed {_seeds(one)} twice, in {one.run.path.name!r} and {other.run.path.name!r}: "
                "a folder of runs is one arm with different seeds; give single runs instead"
            )
    return tuple(ordered)


def _grouped(arms: Sequence[Arm], loose: Sequence[bool]) -> list[Arm]:
    """Loose runs that agree in all but the seed, put together in the place of the first of them."""
    groups: dict[str, list[RunHistory]] = {}
    keys = [signature(arm.histories[0]) if free else None for arm, free in zip(arms, loose, strict=True)]
    for arm, key in zip(arms, keys, strict=True):
        if key is not None:
            groups.setdefault(key, []).append(arm.histories[0])
    merged: list[Arm] = []
    for arm, key in zip(arms, keys, strict=True):
        seeds = groups.get(key or "", [])
        if len(seeds) < 2 or len({history.seeds for history in seeds}) < len(seeds):
            merged.append(arm)
        elif arm.histories[0] is seeds[0]:
            ordered = tuple(sorted(seeds, key=lambda history: history.seeds))
            merged.append(Arm(_common_name([history.name for history in ordered]), ordered))
    return merged if len(merged) > 1 else list(arms)


def signature(history: RunHistory) -> str | None:
    """What a run has in common with the other seeds of its arm; None where its recipe is not known.

    Growths that the run decided on itself follow from the recipe, and may differ from seed to seed.
    """
    if history.recipe is None:
        return None
    recipe = {key: value for key, value in flatten(history.recipe.model_dump(mode="json")).items() if key not in FREE}
    return json.dumps([history.step, recipe, _by_hand(history)], sort_keys=True, default=str)


def _by_hand(history: RunHistory) -> list[dict[str, Any]]:
    """The trainings, growths and removals that somebody ordered, as far as seeds of one arm have them in common."""
    return [
        {key: event.get(key) for key in EVENT_KEYS}
        for event in history.lineage
        if event.get("event") in ("train", "grow", "remove") and "trial" not in event
    ]


def _common_name(names: Sequence[str]) -> str:
    """`base` of `base-seed-0` and `base-seed-1`; all names where they have nothing in common."""
    columns = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in columns)
    shared = _SEED.sub("", common)
    if shared == common and all(name == common or name[len(common)].isdecimal() for name in names):
        shared = common.rstrip("0123456789")  # of a number that is the seed: base10 and base11
    return shared or ", ".join(names)


def _unique(arms: Sequence[Arm]) -> list[Arm]:
    """The same arms under names that differ."""
    named: list[Arm] = []
    taken: set[str] = set()
    for arm in arms:
        unique, number = arm.name, 1
        while unique in taken:
            number += 1
            unique = f"{arm.name} ({number})"
        taken.add(unique)
        named.append(Arm(unique, arm.histories))
    return named


def _doubts(arm: Arm) -> Iterator[str]:
    """What the runs of one folder differ in beside their seeds."""
    first = arm.histories[0]
    for other in arm.histories[1:]:
        if first.recipe is None or other.recipe is None:
            continue
        ours, theirs = (flatten(history.recipe.model_dump()) for history in (first, other) if history.recipe)
        differing = [
            f"{key} {ours[key]} and {theirs[key]}" for key in ours if key not in FREE and ours[key] != theirs[key]
        ]
        if first.step != other.step:
            differing.append(f"steps {first.step:,} and {other.step:,}")
        elif _by_hand(first) != _by_hand(other):
            differing.append("how they were trained and grown, see their growth.jsonl")
        if differing:
            differences = ", ".join(differing)
            yield f"{first.name} and {other.name} stand in one folder but are no seeds of one arm: {differences}"


def _seeds(history: RunHistory) -> str:
    return ", ".join(map(str, history.seeds))
