"""What comes next, as commands to paste: grow a model, train it, hold it against a baseline, write a report."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ppdgrow.checkpoint import RunFolder, read_config, read_state
from ppdgrow.checkpoint.events import TrainEvent
from ppdgrow.checkpoint.lineage import by_hand, insertions, lineage_up_to, steps_to_go
from ppdgrow.comparison.compare import Comparison
from ppdgrow.comparison.history import RunHistory
from ppdgrow.config.architecture import PretrainedArchitecture
from ppdgrow.config.requests import CompareRequest, GrowRequest, ProbeRequest, TrainRequest
from ppdgrow.console import Narrator
from ppdgrow.training.context import resolved_recipe
from ppdgrow.training.control import Trio, Words, beside, control_command, name_of, of_one_run, trio_of, word


def propose_after(
    narrator: Narrator, run: RunFolder, folder: Path, request: TrainRequest | GrowRequest | ProbeRequest
) -> None:
    """Propose what a checkpoint calls for, computed where the command just run was asked to.

    Raises:
        ConfigError, InvalidInputError: the run's files are broken.
    """
    flags = [] if request.device == "auto" else ["--device", request.device]
    if request.data_dir is not None and not isinstance(request, TrainRequest):  # its recipe has it
        flags += ["--data-dir", str(request.data_dir)]
    architecture, state, recipe = read_config(folder), read_state(folder), resolved_recipe(run).recipe
    name = name_of(run, folder)
    lineage = lineage_up_to(run.growth_path, state.step)
    if isinstance(architecture, PretrainedArchitecture):
        first = next((event.parent for event in lineage if isinstance(event, TrainEvent)), None)
        if first is None or not Path(first).exists():
            return None
        return narrator.propose("next, hold it against the model before", ("compare", word(Path(first)), name))
    train = ("train", name, "--steps", str(steps_to_go(lineage, state.step, recipe.train.steps)), *flags)
    changes = by_hand(lineage)
    trained = bool(changes) and isinstance(changes[-1], TrainEvent)
    trio = None if insertions(lineage) or state.lr_factor == 1.0 else trio_of(run, architecture)
    if trio is not None:
        return _propose_comparison(narrator, trio, flags)
    if state.lr_factor != 1.0 and not (trained and architecture.newest_ids):
        narrator.say(
            f"the learning rate of {name} ended at {state.lr_factor:.2g} of its peak: the next train warms up to the "
            "peak again (--no-decay is for a run that will be continued)"
        )
    if not trained:
        return narrator.propose("next, train it", train)
    if not architecture.newest_ids:
        return narrator.propose("next, grow it", ("grow", name, *flags))
    if state.lr_factor == 1.0:
        return narrator.propose("next, train it on, to a decayed learning rate", train)
    baseline = word(beside(run, "baseline"))
    control: Words = ("train", "--recipe", word(run.recipe_path), "--layers", str(architecture.num_layers))
    control += ("--steps", str(state.step), *of_one_run(recipe), *flags, "--out", baseline)
    why = f"next, hold it against {architecture.num_layers} layers trained from the start for as many steps"
    ungrown = control_command(run, architecture, state, lineage, recipe)
    if ungrown is None:
        return narrator.propose(why, control, ("compare", baseline, name))
    why += ", and against the shallow model trained on for as many FLOPs (its ungrown control)"
    return narrator.propose(
        why, control, (*ungrown[:-2], *flags, *ungrown[-2:]), ("compare", baseline, ungrown[-1], name)
    )


def _propose_comparison(narrator: Narrator, trio: Trio, flags: Sequence[str]) -> None:
    """Propose to compare a grown run with its control and its baseline, of which one has just been trained."""
    missing = None if trio.control.checkpoints() else trio.command
    ungrown = [run for run in (trio.baseline, trio.control) if run.checkpoints()]
    paths = [word(run.path) for run in (*ungrown, *([] if missing is None else [trio.control]), trio.grown)]
    why = f"next, hold {paths[-1]} against {' and '.join(paths[:-1])}"
    controls = [] if missing is None else [(*missing[:-2], *flags, *missing[-2:])]
    narrator.propose(why, *controls, ("compare", *paths))


def propose_after_comparison(narrator: Narrator, comparison: Comparison, request: CompareRequest) -> None:
    """Propose what a comparison calls for: an arm that is not ready, the run that a decision keeps, else a report."""
    known = [run.history for run in comparison.runs if run.history.recipe is not None]
    if comparison.decision is not None:
        number, what = (1, "the trial") if comparison.verdict == "accept" else (0, "the parent")
        if comparison.runs[number].history.is_folder:
            return None  # it has no recipe to go on by
        if comparison.runs[number].history in known:
            return narrator.propose(f"next, go on with {what}", _train(comparison.runs[number].history))
    for history in known:
        if history.untrained:
            return narrator.propose(f"{history.name} was grown and never trained: train it first", _train(history))
    for history in known:
        if history.state.lr_factor == 1.0:
            return narrator.propose(f"next, train {history.name} on, to a decayed learning rate", _train(history))
    given = {path.resolve() for path in request.paths}
    controls = [words for arm in comparison.grown for words in arm.missing_controls(given)]
    if controls:
        arms = [Path(words[-1]) for words in controls]
        folders = [out.parent if out.parent.name.endswith("-control") else out for out in arms]
        paths = dict.fromkeys(map(word, (request.paths[0], *folders, *request.paths[1:])))
        return narrator.propose("next, train the ungrown control", *controls, ("compare", *paths))
    if request.report:
        last = comparison.runs[-1].history
        probe = ("probe", name_of(last.run, last.checkpoint))
        return narrator.propose(f"next, see what the blocks of {last.name} do", probe)
    report = "report.html" if find_spec("matplotlib") else "report.md"
    words = ("compare", *map(word, request.paths), *_evaluated(request), "--report", report)
    return narrator.propose("next, every figure on one page", words)


def _evaluated(request: CompareRequest) -> Words:
    """What was evaluated on other data, and how, as words of a command; these figures are recorded."""
    on = tuple(part for data in request.on for part in ("--on", data))
    where = {"--data-dir": request.data_dir, "--device": request.device, "--precision": request.precision}
    given = (part for flag, value in where.items() if value is not None for part in (flag, str(value)))
    return (*on, *given) if on else ()


def _train(history: RunHistory) -> Words:
    assert history.recipe is not None
    steps = steps_to_go(history.events, history.step, history.recipe.train.steps)
    return ("train", name_of(history.run, history.checkpoint), "--steps", str(steps))
