"""What a finished run says of itself: the JSON of `train`, and the model card."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint import RunFolder, manifest_digest, read_config, read_state
from ppdgrow.checkpoint.events import Event, read_events
from ppdgrow.checkpoint.lineage import growth_entries
from ppdgrow.config.architecture import Architecture, PretrainedArchitecture
from ppdgrow.config.state import TrainerState
from ppdgrow.console.page import plain
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.pretrained.library import AUTO_CLASSES
from ppdgrow.training.control import Words


def train_document(run: RunFolder, folder: Path) -> dict[str, Any]:
    """The JSON of `train`, read from a finished run: a rerun prints the same document again."""
    state = read_state(folder)
    return {
        "schema": 1,
        "run": run.path.as_posix(),
        "checkpoint": folder.as_posix(),
        "checkpoint_sha256": manifest_digest(folder),
        "step": state.step,
        "parameters": count_parameters(read_config(folder)),
        "train_loss": state.train_loss,
        "validation": None if state.validation is None else state.validation.model_dump(),
        "seconds": state.ledger.seconds,
        "flops": state.ledger.flops,
        "tokens": state.ledger.tokens,
        "trials": state.ledger.trials.model_dump(),
        "growth": growth_entries(read_events(run.growth_path)),
    }


def model_card(
    name: str,
    architecture: Architecture,
    state: TrainerState,
    lineage: Sequence[Event],
    recipe: str,
    control: Words | None = None,
) -> str:
    """Markdown for `RUN/README.md`, the recipe and the command of the ungrown control embedded."""
    figures = state.validation
    lines = [
        f"# {name}",
        "",
        f"A {architecture.in_words}, for the task {architecture.task}, trained with ppdgrow.",
        "",
        "| | |",
        "| --- | --- |",
        f"| layers | {architecture.num_layers} |",
        f"| width | {architecture.width} |",
        f"| parameters | {count_parameters(architecture):,} |",
        f"| FLOPs per token, forward | {flops_per_token(architecture):,} |",
        f"| half-steps | {half_steps(architecture)} |",
        f"| optimizer steps | {state.step:,} |",
        f"| training tokens | {state.ledger.tokens:,} |",
        f"| training FLOPs | {state.ledger.flops:.4g} |",
        f"| data | {state.data.name}, tokenizer {state.data.tokenizer or 'none'} |",
        f"| environment | torch {state.environment.torch}, {state.environment.device}, "
        f"{state.environment.precision}, {state.environment.threads} threads |",
    ]
    if state.ledger.trials.flops:
        lines.append(f"| FLOPs of trials, in addition | {state.ledger.trials.flops:.4g} |")
    if figures is not None:
        lines.append(f"| validation loss | {figures.loss:.6f} nats |")
        lines.append(f"| validation accuracy | {figures.accuracy:.4f} |")
        lines += [
            f"| - of {plain(name)} | {accuracy:.4f} |" for name, accuracy in (figures.class_accuracy or {}).items()
        ]
    if isinstance(architecture, PretrainedArchitecture):
        lines += ["", *_loading(name, architecture, state.step)]
    lines += ["", "## Lineage", ""]
    lines += [f"- {text}" for event in lineage if (text := event.line()) is not None] or ["- trained from scratch"]
    if control is not None:
        text = "Whether growing paid shows beside the shallow model, trained for as many FLOPs without growing:"
        lines += ["", "## Ungrown control", "", text, "", f"    {shlex.join(('ppdgrow', *control))}"]
    lines += ["", "## Recipe", "", "```yaml", recipe.rstrip("\n"), "```", ""]
    return "\n".join(lines)


def _loading(name: str, architecture: PretrainedArchitecture, step: int) -> list[str]:
    """How Transformers loads the last checkpoint, which is a folder of its own."""
    folder = str(RunFolder(Path(name)).checkpoint_path(step))
    with_code = f"{folder!r}, trust_remote_code=True" if architecture.pairs else repr(folder)
    return ["## Loading", "", f"    {AUTO_CLASSES[architecture.task]}.from_pretrained({with_code})"]
