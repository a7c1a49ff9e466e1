"""Which runs are seeds of one arm, and what runs and arms are called."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ppdgrow.checkpoint import RunFolder
from ppdgrow.checkpoint.lineage import by_hand
from ppdgrow.comparison.comparability import recipe_differences
from ppdgrow.comparison.history import DivergedRunError, RunHistory, join_seeds, read_history
from ppdgrow.comparison.measures import ComparedArm
from ppdgrow.config.schema import flatten
from ppdgrow.errors import ConfigError, InvalidInputError

# Recipe keys in which the seeds of one arm may differ.
FREE = frozenset({"train.seed", "data.name", "data.directory", "train.eval_every", "train.save_every", "train.keep"})
# What tells a training, or a growth by hand, from another one: not its ids, losses or places in the file system.
EVENT_KEYS = ("event", "step", "steps", "method", "kinds", "positions", "source", "scale", "moments")
_SEED = re.compile(r"(?:^|[-_./ ]+)(?:seed|s)?[-_./ ]*\d*$", flags=re.IGNORECASE)


class _Given(NamedTuple):
    """What one path of the command line stands for; `left_out` says why runs do not count, by name."""

    histories: list[RunHistory]
    is_folder: bool
    left_out: dict[str, str]


def read_arms(
    paths: Sequence[Path], known: Mapping[Path, RunHistory] = MappingProxyType({})
) -> tuple[list[ComparedArm], list[str]]:
    """The arms of these paths, in their order, not yet held against each other.

    A path may be a run, a checkpoint, or a folder whose subfolders are runs: these are one arm, by the word of the
    user; those that are broken, or unfinished beside finished ones, are left out and named, as is a run that diverged
    before it was ever evaluated. Runs that are given one by one are grouped where they agree in all but the seed,
    unless one arm would be all that is left. `known` are the histories of paths that are no runs.

    Returns:
        The arms, and what to warn of them.

    Raises:
        ConfigError: a folder holds a seed twice.
        InvalidInputError: a path is no run, its files are broken, or it was never evaluated.
    """
    given = [_Given([known[path]], False, {}) if path in known else _read(path) for path in paths]
    if not given[0].histories:
        raise InvalidInputError(f"the baseline cannot be one: {next(iter(given[0].left_out.values()))}")
    named = iter(name_histories([history for one in given for history in one.histories]))
    arms, warnings = [], []
    for path, one in zip(paths, given, strict=True):
        histories = [next(named) for _ in one.histories]
        name = one_line(path.resolve().name)
        for reason in dict.fromkeys(one.left_out.values()):
            runs = ", ".join(run for run, why in one.left_out.items() if why == reason)
            warnings.append(f"{name}: left out {runs}: {reason}" if one.is_folder else f"left out {runs}: {reason}")
        if one.is_folder and histories:
            arms.append(ComparedArm.of(name, _by_seed(histories, path), tuple(one.left_out)))
            warnings += _warnings(arms[-1].histories)
        elif histories:
            arms.append(ComparedArm.of(histories[0].name, histories))
    taken: set[str] = set()
    grouped = _grouped(arms, [not one.is_folder for one in given if one.histories])
    return [replace(arm, name=_unique_name(arm.name, taken)) for arm in grouped], warnings


def _read(path: Path) -> _Given:
    runs = runs_in(path)
    found: dict[Path, RunHistory] = {}
    left_out: dict[str, str] = {}
    diverged = 0
    for run in runs or [path]:
        try:
            found[run] = read_history(run)
        except InvalidInputError as error:
            if not runs and not isinstance(error, DivergedRunError):
                raise
            left_out[one_line(run.resolve().name)] = str(error)
            diverged += isinstance(error, DivergedRunError)
    if diverged < len(left_out) and not found:
        raise InvalidInputError(f"no run in {str(path)!r} can be compared; {next(iter(left_out.values()))}")
    finished = {run: history for run, history in found.items() if history.cut_short is None}
    if runs and finished:
        left_out |= {run.name: str(history.cut_short) for run, history in found.items() if run not in finished}
        found = finished
    return _Given([*found.values()], is_folder=bool(runs), left_out=left_out)


def runs_in(path: Path) -> list[Path]:
    """The runs, whole or not, in a folder that is none itself; else nothing."""
    try:
        if not path.is_dir() or RunFolder(path).checkpoints() or RunFolder(path).recipe_path.exists():
            return []
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
        runs = [entry for entry in folders if RunFolder(entry).checkpoints() or RunFolder(entry).recipe_path.exists()]
    except OSError:
        return []  # read_history says what is wrong with it
    return runs if any(RunFolder(run).checkpoints() for run in runs) else []


def _by_seed(histories: Sequence[RunHistory], path: Path) -> list[RunHistory]:
    ordered = sorted(histories, key=lambda history: history.seeds)
    for one, other in pairwise(ordered):
        if one.seeds == other.seeds:
            raise ConfigError(
                f"{str(path)!r} holds seed {join_seeds([one])} twice, in {one.run.path.name!r} and "
                f"{other.run.path.name!r}: a folder of runs is one arm with different seeds; give single runs instead"
            )
    return ordered


def _grouped(arms: Sequence[ComparedArm], loose: Sequence[bool]) -> list[ComparedArm]:
    """Loose runs that agree in all but the seed, put together in the place of the first of them."""
    keys = [signature(arm.first.history) if free else None for arm, free in zip(arms, loose, strict=True)]
    merged: list[ComparedArm] = []
    for arm, key in zip(arms, keys, strict=True):
        seeds = [other.first.history for other, its_key in zip(arms, keys, strict=True) if its_key == key]
        if key is None or len(seeds) < 2 or len({history.seeds for history in seeds}) < len(seeds):
            merged.append(arm)
        elif arm.first.history is seeds[0]:
            own = {history.name for history in seeds}
            others = [history for arm in arms for history in arm.histories if history.name not in own]
            ordered = sorted(seeds, key=lambda history: history.seeds)
            merged.append(ComparedArm.of(_common_name(ordered, others), ordered))
    return merged if len(merged) > 1 else list(arms)


def signature(history: RunHistory) -> str | None:
    """What a run has in common with the other seeds of its arm; None where its recipe is not known.

    Growths that the run decided on itself follow from the recipe, and may differ from seed to seed.
    """
    if history.recipe is None:
        return None
    recipe = {key: value for key, value in flatten(history.recipe.model_dump(mode="json")).items() if key not in FREE}
    data = history.state.data.sha256.get("validation", history.state.data.name)  # by its content where that is known
    return json.dumps([history.step, data, recipe, _by_hand(history)], sort_keys=True, default=str)


def _by_hand(history: RunHistory) -> list[dict[str, Any]]:
    """The trainings, growths and removals that somebody ordered, as far as seeds of one arm have them in common."""
    return [{key: getattr(event, key, None) for key in EVENT_KEYS} for event in by_hand(history.events)]


def _warnings(histories: Sequence[RunHistory]) -> Iterator[str]:
    """What the runs of one folder differ in beside their seeds."""
    first, *others = histories
    found: dict[str, list[str]] = {}
    for other in others:
        if first.recipe is None or other.recipe is None:
            continue
        differing = [f"{key} {ours} and {theirs}" for key, ours, theirs in recipe_differences(first, other, FREE)]
        if first.step != other.step:
            differing.append(f"steps {first.step:,} and {other.step:,}")
        elif _by_hand(first) != _by_hand(other):
            differing.append("how they were trained and grown, see their growth.jsonl")
        if differing:
            found.setdefault(", ".join(differing), []).append(other.name)
    for differences, names in found.items():
        yield f"{first.name} and {', '.join(names)} are in one folder but are not seeds of one arm: {differences}"


def name_histories(histories: Sequence[RunHistory]) -> list[RunHistory]:
    """The same histories under names that differ: more of the path, then the step, then a number.

    Runs that lie in one folder are named by as much of their paths.
    """
    folders = [history.run.path.resolve() for history in histories]
    parts: dict[Path, int] = {}
    for folder in folders:
        parts[folder.parent] = max(parts.get(folder.parent, 1), _parts_needed(folder, set(folders) - {folder}))
    places = list(zip(folders, (history.step for history in histories), strict=True))
    steps = Counter(folder for folder, _ in set(places))
    taken: set[str] = set()
    named: list[RunHistory] = []
    for history, (folder, step) in zip(histories, places, strict=True):
        name = one_line("/".join(folder.parts[-parts[folder.parent] :]))
        name = f"{name}@{step}" if steps[folder] > 1 else name
        named.append(replace(history, name=_unique_name(name, taken)))
    return named


def _parts_needed(folder: Path, others: set[Path]) -> int:
    """How many parts at the end of a path tell it apart from the others."""
    lengths = range(1, len(folder.parts) + 1)
    return next((n for n in lengths if all(other.parts[-n:] != folder.parts[-n:] for other in others)), len(lengths))


def _common_name(seeds: Sequence[RunHistory], others: Sequence[RunHistory]) -> str:
    """`base` of `base-seed-0` and `base-seed-1`.

    Where the names have nothing but the seed in common, that of the folder that holds these and no others; else all.
    """
    names = [history.name for history in seeds]
    columns = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in columns)
    shared = _SEED.sub("", common)
    if shared == common and all(name == common or name[len(common)].isdecimal() for name in names):
        shared = common.rstrip("0123456789")  # of a number that is the seed: base10 and base11
    folder = Path(os.path.commonpath([history.run.path.resolve() for history in seeds]))
    if not shared and not any(history.run.path.resolve().is_relative_to(folder) for history in others):
        shared = one_line(folder.name)
    return shared or ", ".join(names)


def _unique_name(name: str, taken: set[str]) -> str:
    """The name, with a number if it is taken already; it is taken then."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name} ({number})"
    taken.add(unique)
    return unique


def one_line(name: str) -> str:
    """A name of the file system as it can stand in a row of a table."""
    return name.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
