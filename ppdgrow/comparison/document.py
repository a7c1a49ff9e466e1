"""The JSON of `compare` (DESIGN section 4): of an arm and of a run, from the columns and what no table shows."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from ppdgrow.comparison.column import Column
from ppdgrow.comparison.columns import columns
from ppdgrow.comparison.curves import AXES, EqualFigures, EqualPoint, bands
from ppdgrow.comparison.measures import ComparedArm, single_runs
from ppdgrow.statistics import Estimate, estimate

# The keys of an arm and of a run, as they are written.
ARM_KEYS = (
    *("name", "runs", "seeds", "paired_seeds", "left_out", "loss", "accuracy", "train_loss", "test_loss"),
    *("test_accuracy", "on", "flops_ratio", "seconds_ratio", "loss_difference", "accuracy_difference"),
    *("cost_to_baseline_loss", "front_loss", "front_difference", "compute_gain", "pays", "pays_doubt"),
    *("controls", "verdict", "curves"),
)
RUN_KEYS = (
    *("name", "run", "checkpoint", "checkpoint_sha256", "seeds", "layers", "parameters", "flops_per_token"),
    *("half_steps", "steps", "tokens", "flops", "flops_ratio", "seconds", "seconds_ratio", "trials", "trials_kept"),
    *("trials_rejected", "lr_factor", "train_loss", "validation", "validation_step", "test", "on"),
    *("insertions", "gradient_spikes", "loss_spikes", "cost_to_baseline_loss", "equal", "curve", "arm"),
)


def arm_documents(arms: Sequence[ComparedArm], verdicts: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """The entries of all arms, with what was judged of each."""
    curves = {axis: bands([arm.histories for arm in arms], axis) for axis in AXES}
    shown = [column for column in columns(arms) if column.arm_key]
    documents = []
    for place, arm in enumerate(arms):
        figures = {column.arm_key: column.value(arm) for column in shown}
        found = {key: value.document() if isinstance(value, Estimate) else value for key, value in figures.items()} | {
            "name": arm.name,
            "runs": [run.name for run in arm.runs],
            "seeds": [history.seeds for history in arm.histories],
            "paired_seeds": [run.history.seeds for run in arm.pairs],
            "left_out": arm.left_out,
            "on": {data: _on(arm, data) for data in arm.first.on},
            "controls": [shlex.join(("ppdgrow", *words)) for words in arm.missing_controls()],
            "verdict": verdicts[arm.name],
            "curves": {axis: curves[axis][place] for axis in AXES},
        }
        documents.append(to_jsonable_python({key: found[key] for key in ARM_KEYS}))
    return documents


def _on(arm: ComparedArm, data: str) -> dict[str, Any]:
    """Means over the seeds on another data set, and the paired differences, which the baseline has not."""
    figures = [run.on[data].figures for run in arm.runs]
    found = {
        "loss": estimate([one.loss for one in figures]),
        "accuracy": estimate([100.0 * one.accuracy for one in figures]),  # per cent, as elsewhere
        "perplexity": estimate([one.perplexity for one in figures]),
        "bits_per_byte": estimate([one.bits_per_byte for one in figures]),
        "difference": arm.loss_difference_on(data),
        "bits_per_byte_difference": arm.bits_difference_on(data),
    }
    return {key: None if value is None else value.document() for key, value in found.items()}


def run_documents(arms: Sequence[ComparedArm]) -> list[dict[str, Any]]:
    """The entries of all runs."""
    singles = [single for arm in arms for single in single_runs(arm)]
    shown = [column for column in columns(singles) if column.run_key]
    return [_run(single, shown) for single in singles]


def _run(single: ComparedArm, shown: Sequence[Column]) -> dict[str, Any]:
    """An arm of one run, so that an estimate is of one value."""
    run, history, equal = single.first, single.first.history, single.first.equal
    figures = {column.run_key: column.value(single) for column in shown}
    found = {key: value.mean if isinstance(value, Estimate) else value for key, value in figures.items()} | {
        "name": history.name,
        "run": history.run.path.as_posix(),
        "checkpoint": history.checkpoint.as_posix(),
        "checkpoint_sha256": history.digest,
        "seeds": history.seeds,
        "layers": history.architecture.num_layers,
        "trials": history.state.ledger.trials,
        "trials_kept": history.trials_kept,
        "trials_rejected": history.trials_rejected,
        "lr_factor": history.state.lr_factor,
        "validation": run.validation,
        "validation_step": history.final.step,
        "test": run.test,
        "on": {data: found.figures for data, found in run.on.items()},
        "insertions": run.insertions,
        "cost_to_baseline_loss": None if equal is None else {axis: run.cost_to_loss(axis) for axis in AXES},
        "equal": None if equal is None else _equal(equal),
        "curve": [
            {"step": point.step, "loss": point.validation.loss, "flops": point.flops, "seconds": point.seconds}
            for point in history.metrics.evaluations
        ],
        "arm": single.name,
    }
    return to_jsonable_python({key: found[key] for key in RUN_KEYS})


def _equal(equal: EqualFigures) -> dict[str, Any]:
    return {
        "steps": _point(equal.steps, "step"),
        "flops": _point(equal.flops, "flops"),
        "seconds": _point(equal.seconds, "seconds"),
        "shared_steps": equal.shared_steps,
        "curve": [_point(point, "step") for point in equal.curve],
    }


def _point(point: EqualPoint | None, axis: str) -> dict[str, Any] | None:
    if point is None:
        return None
    return {axis: point.at, "loss": point.loss, "baseline_loss": point.baseline_loss, "difference": point.difference}
