"""What two runs must agree in to be the same run to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ppdgrow.atomic import sha256_file
from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_jsonl, read_state
from ppdgrow.data import open_dataset
from ppdgrow.training.context import load_parent, task_of

# What depends on the clock, on where a run lies, or on who started it.
NOT_COMPARED = ("timing", "parent", "parent_sha256", "provenance")


def result(run: str, step: int | None = None) -> dict[str, Any]:
    """All that must not depend on where the run was stopped or what it tried, at a step (default: the newest)."""
    folder = RunFolder(Path(run))
    final = folder.newest_valid() if step is None else folder.checkpoint_path(step)
    assert final is not None
    checkpoint = read_checkpoint(final)
    flat = {f"weight {name}": t for name, t in checkpoint.tensors.items()}
    flat |= {f"{key} {name}": t for name, state in checkpoint.moments.items() for key, t in state.items()}
    flat |= {f"rng {name}": t for name, t in checkpoint.rng.items()}
    lines = [{key: value for key, value in line.items() if key != "timing"} for line in read_jsonl(folder.metrics_path)]
    lines = [line for line in lines if line["step"] <= checkpoint.state.step]
    ledger = checkpoint.state.ledger
    return {"step": checkpoint.state.step, "tensors": flat, "metrics": lines, "cost": (ledger.tokens, ledger.flops)}


def same(x: dict[str, Any], y: dict[str, Any]) -> bool:
    """Whether two results are equal, tolerance zero."""
    return (
        all(x[key] == y[key] for key in ("step", "metrics", "cost"))
        and x["tensors"].keys() == y["tensors"].keys()
        and all(torch.equal(x["tensors"][name], y["tensors"][name]) for name in x["tensors"])
    )


def events(run: str) -> list[dict[str, Any]]:
    """The lines of `growth.jsonl` without clock and place."""
    lines = read_jsonl(Path(run) / "growth.jsonl")
    return [{key: value for key, value in line.items() if key not in NOT_COMPARED} for line in lines]


def differences(x: str, y: str) -> list[str]:
    """In what two finished runs differ, tolerance zero; nothing is left out but the clock and the place.

    Compared are every checkpoint that `y` has: each tensor of it, its files by their sha256, its state; the metrics,
    the events, the recipe, and the batch that would come next.
    """
    runs = [RunFolder(Path(name)) for name in (x, y)]
    found = []
    for folder in runs[1].checkpoints():
        step = int(folder.name.removeprefix("step-"))
        try:
            one, other = result(x, step), result(y, step)
        except FileNotFoundError:
            found.append(f"step {step}: no checkpoint")
            continue
        tensors = one["tensors"].keys() ^ other["tensors"].keys()
        tensors |= {
            name
            for name in one["tensors"].keys() & other["tensors"].keys()
            if not torch.equal(one["tensors"][name], other["tensors"][name])
        }
        found += [f"step {step}: {name}" for name in sorted(tensors)]
        found += [f"step {step}: {key}" for key in ("metrics", "cost") if one[key] != other[key]]
        files = [_files(run.checkpoint_path(step)) for run in runs]
        found += [f"step {step}: {name}" for name in files[1] if files[0].get(name) != files[1][name]]
        states = [_state(run.checkpoint_path(step)) for run in runs]
        found += [f"step {step}: state {key}" for key in states[1] if states[0][key] != states[1][key]]
    found += ["events"] if events(x) != events(y) else []
    found += ["recipe"] if len({run.recipe_path.read_text() for run in runs}) > 1 else []
    batches = [_next_batch(name) for name in (x, y)]
    same_batch = all(torch.equal(one, other) for one, other in zip(*batches, strict=True))
    return found if same_batch else [*found, "next batch"]


def _files(folder: Path) -> dict[str, str]:
    """All of a checkpoint but its clock."""
    clock = ("trainer_state.json", "manifest.json")
    return {file.name: sha256_file(file) for file in folder.iterdir() if file.name not in clock}


def _state(folder: Path) -> dict[str, Any]:
    state = read_state(folder).model_dump()
    del state["ledger"]["seconds"], state["ledger"]["trials"]["seconds"]
    return state


def _next_batch(run: str) -> tuple[torch.Tensor, torch.Tensor]:
    parent = load_parent(Path(run))
    recipe = parent.recipe
    dataset = open_dataset(recipe.data, task_of(recipe), parent.checkpoint.tokenizer)
    batches = dataset.batches(
        "train", batch_size=recipe.train.batch_size, seed=recipe.train.seed, device=torch.device("cpu")
    )
    batch = batches.at(parent.step + 1)
    return batch.inputs, batch.targets


def metrics_faults(run: str, last: int, *, eval_every: int, evaluated: bool = True) -> list[str]:
    """What is wrong with the metrics of a run from step 1 to `last`, if anything.

    Args:
        run: the folder.
        last: the last step that must be there.
        eval_every: of the recipe; its multiples, and `last`, have a second line with figures.
        evaluated: whether that holds for `last` too, as for a finished run.
    """
    data = (Path(run) / "metrics.jsonl").read_bytes()
    faults = [] if data.endswith(b"\n") else ["the last line is cut"]
    steps: list[int] = []
    evaluated_steps: list[int] = []
    for number, text in enumerate(data.splitlines(), start=1):
        try:
            line = json.loads(text, parse_constant=_refuse)
            step = line["step"]
        except (ValueError, TypeError, KeyError) as error:
            faults.append(f"line {number}: {error}")
            continue
        own = "train_loss" in line
        (steps if own else evaluated_steps).append(step)
        if not own and (steps[-1:] != [step] or "validation" not in line):
            faults.append(f"line {number}: not the validation of the step before it")
    due = [step for step in range(1, last + 1) if step % eval_every == 0 or step == last]
    if evaluated_steps != due and (evaluated or evaluated_steps != due[:-1]):
        faults.append(f"validation at steps {evaluated_steps}, due at {due}")
    return faults if steps == list(range(1, last + 1)) else [*faults, f"steps {steps}"]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
