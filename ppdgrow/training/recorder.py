"""What a training run leaves behind: metrics lines, checkpoints, the closing document, and the model card."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint import (
    Checkpoint,
    RunFolder,
    append_jsonl,
    manifest_digest,
    read_config,
    read_jsonl,
    read_state,
    write_checkpoint,
)
from ppdgrow.checkpoint.events import Event, read_events
from ppdgrow.checkpoint.lineage import growth_entries
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.state import TrainerState
from ppdgrow.console.page import plain
from ppdgrow.engine.device import rng_state
from ppdgrow.engine.loop import Engine, MetricsLine
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.training.context import RunContext

TRAIN_LOSS_STEPS = 50


class Recorder:
    """The listener that writes into a run folder. `recent` are the metrics of the last steps."""

    def __init__(self, context: RunContext, run: RunFolder, engine: Engine, shards: Mapping[str, str]) -> None:
        self.context, self.run, self.engine, self._shards = context, run, engine, shards
        steps = (line for line in read_jsonl(run.metrics_path) if "train_loss" in line)
        self.recent = deque(steps, maxlen=TRAIN_LOSS_STEPS)

    def on_steps(self, lines: Sequence[MetricsLine]) -> None:
        append_jsonl(self.run.metrics_path, lines)
        self.recent += lines

    def on_evaluation(self, line: MetricsLine) -> None:
        append_jsonl(self.run.metrics_path, [line])

    def on_save(self) -> None:
        """Write a checkpoint of the engine's step and prune older ones."""
        engine, setting = self.engine, self.context.setting
        self.run.check_present()
        state = TrainerState(
            step=engine.step,
            lr_factor=engine.lr_factor,
            ledger=engine.ledger,
            validation=engine.validation,
            train_loss=sum(line["train_loss"] for line in self.recent) / len(self.recent) if self.recent else None,
            data=setting.identity(),
            environment=setting.environment,
        )
        checkpoint = Checkpoint(
            architecture=engine.model.architecture,
            tensors={name: tensor.detach().cpu() for name, tensor in engine.model.state_dict().items()},
            moments=engine.optimizer.moments(),
            rng=rng_state(engine.device),
            state=state,
            tokenizer=setting.dataset.tokenizer_json,
            shards=self._shards,
        )
        write_checkpoint(self.run.checkpoint_path(engine.step), checkpoint)
        self.run.prune(engine.config.keep)


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
    name: str, architecture: Architecture, state: TrainerState, lineage: Sequence[Event], recipe: str
) -> str:
    """Markdown for `RUN/README.md`, the recipe embedded."""
    figures = state.validation
    lines = [
        f"# {name}",
        "",
        f"A {architecture.family} ({architecture.stream} stream, task {architecture.task}) trained with ppdgrow.",
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
    lines += ["", "## Lineage", ""]
    lines += [f"- {text}" for event in lineage if (text := event.line()) is not None] or ["- trained from scratch"]
    lines += ["", "## Recipe", "", "```yaml", recipe.rstrip("\n"), "```", ""]
    return "\n".join(lines)
