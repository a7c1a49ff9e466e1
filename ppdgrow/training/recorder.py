"""What a training run leaves behind: metrics lines, checkpoints, and the closing document."""

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
from ppdgrow.checkpoint.events import read_events
from ppdgrow.checkpoint.lineage import growth_entries
from ppdgrow.config.state import TrainerState
from ppdgrow.engine.device import rng_state
from ppdgrow.engine.loop import Engine, MetricsLine
from ppdgrow.nn.cost import count_parameters
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
        engine, dataset = self.engine, self.context.setting.dataset
        self.run.check_present()
        state = TrainerState(
            step=engine.step,
            lr_factor=engine.lr_factor,
            ledger=engine.ledger,
            validation=engine.validation,
            train_loss=sum(line["train_loss"] for line in self.recent) / len(self.recent) if self.recent else None,
            data=dataset.identity(sum(len(batch.targets) for batch in engine.evaluation)),
            environment=self.context.environment,
        )
        checkpoint = Checkpoint(
            architecture=engine.model.architecture,
            tensors={name: tensor.detach().cpu() for name, tensor in engine.model.state_dict().items()},
            moments=engine.optimizer.moments(),
            rng=rng_state(engine.device),
            state=state,
            tokenizer=dataset.tokenizer_json,
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
