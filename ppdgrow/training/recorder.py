"""What a training run leaves behind and shows: metrics lines, checkpoints, progress, and the closing document."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ppdgrow.atomic import write_file
from ppdgrow.checkpoint import (
    Checkpoint,
    RunFolder,
    append_jsonl,
    lines_up_to,
    manifest_digest,
    read_config,
    read_jsonl,
    read_state,
    write_checkpoint,
)
from ppdgrow.checkpoint.events import growth_entries
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.state import DataIdentity, Environment, Ledger, TrainerState
from ppdgrow.console import Narrator, ProgressBar
from ppdgrow.engine.device import rng_state
from ppdgrow.engine.loop import Engine
from ppdgrow.nn.cost import count_parameters

TRAIN_LOSS_STEPS = 50

# What stands above the progress bar, from the step and the ledger.
Header = Callable[[int, Ledger], str]


@dataclass
class Recorder:
    """The engine's listener: writes into a run folder, and moves the bar.

    Attributes:
        owed: the step whose line stands in the metrics without its validation; the first line written replaces it.
    """

    run: RunFolder
    architecture: Architecture
    environment: Environment
    identity: Callable[[], DataIdentity]
    tokenizer: str | None
    keep: int
    first: int
    last: int
    label: str
    assignment: dict[str, str]
    narrator: Narrator
    engine: Engine
    owed: int | None = None
    bar: ProgressBar | None = field(default=None, init=False)
    header: Header | None = field(default=None, init=False)
    validation_loss: float | None = field(default=None, init=False)
    _untold: dict[str, Any] | None = field(default=None, init=False)

    def lines(self, lines: Sequence[dict[str, Any]]) -> None:
        """Append metrics; evaluated steps are also told."""
        self._write(lines)
        for line in lines:
            if "validation" in line:
                self.validation_loss = line["validation"]["loss"]
                self._print_result(line)
        self._untold = None if not lines or "validation" in lines[-1] else lines[-1]

    def tell_last(self) -> None:
        """Say where a run stopped, if that step was not evaluated; the bar, which showed it, is gone."""
        if self._untold is not None:
            self._print_result(self._untold)

    def _print_result(self, line: dict[str, Any]) -> None:
        prefix = "" if self.label == "training" else f"{self.label}: "
        validation = f"val loss {line['validation']['loss']:.4f}  " if "validation" in line else ""
        self.narrator.say(
            f"{prefix}step {line['step']}/{self.last}  train loss {line['train_loss']:.4f}  "
            f"{validation}lr {line['lr']:.1e}  {line['timing']['seconds']:.0f} s"
        )

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        owed, self.owed = self.owed, None
        if owed is None:
            append_jsonl(self.run.metrics_path, lines)
            return
        # At once, so that a kill leaves the old line or the new one, and never none.
        whole = [*lines_up_to(self.run.metrics_path, owed - 1), *lines]
        write_file(self.run.metrics_path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in whole))

    def save(self) -> None:
        """Write a checkpoint of the engine's step and prune older ones."""
        engine = self.engine
        self.run.check_present()
        recent = [line["train_loss"] for line in read_jsonl(self.run.metrics_path)[-TRAIN_LOSS_STEPS:]]
        state = TrainerState(
            step=engine.step,
            lr_factor=engine.lr_factor,
            ledger=engine.ledger,
            validation=engine.validation,
            train_loss=sum(recent) / len(recent) if recent else None,
            data=self.identity(),
            environment=self.environment,
        )
        checkpoint = Checkpoint(
            architecture=self.architecture,
            tensors={name: tensor.detach().cpu() for name, tensor in engine.model.state_dict().items()},
            moments=engine.optimizer.moments(),
            rng=rng_state(engine.device),
            state=state,
            tokenizer=self.tokenizer,
        )
        write_checkpoint(self.run.checkpoint_path(engine.step), checkpoint, assignment=self.assignment)
        self.run.prune(self.keep)

    def progress(self, step: int, latest: dict[str, Any]) -> None:
        """Move the bar."""
        if self.bar is None:
            return
        self.show()
        self.bar.update(
            step - self.first,
            loss=latest["train_loss"],
            val=self.validation_loss,
            lr=latest["lr"],
            tokens=self.engine.ledger.tokens,
        )

    def show(self) -> None:
        """Bring the lines above the bar up to date."""
        if self.bar is not None and self.header is not None:
            self.bar.show(partial(self.header, self.engine.step, self.engine.ledger))


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
        "growth": growth_entries(read_jsonl(run.growth_path)),
    }
