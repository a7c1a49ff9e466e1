"""The training loop: steps, clipping, evaluation, saving, and stopping before anything non-finite is applied.

The host never waits for the device within a step: losses and norms stay there until the next flush.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from ppdgrow.config.schema import TrainConfig
from ppdgrow.config.state import Ledger, Validation
from ppdgrow.engine.device import Precision, autocast
from ppdgrow.engine.diagnosis import first_non_finite
from ppdgrow.engine.evaluate import NO_TARGET, BatchLike, Evaluation, evaluate, mean_loss
from ppdgrow.engine.memory import is_out_of_memory, microbatches_that_fit
from ppdgrow.engine.movement import MovementCheck
from ppdgrow.engine.signals import StopFlag, StoppedError
from ppdgrow.errors import ConfigError, DivergedError, InterruptedRunError
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.schedule import Schedule

FLUSH_EVERY = 10


class BatchSource(Protocol):
    """Training batches as a pure function of the step."""

    def at(self, step: int) -> BatchLike:
        """The batch of an absolute step (1-based)."""


class Listener(Protocol):
    """Where a run reports to. Called at flushes only, in the order of the steps."""

    def lines(self, lines: Sequence[dict[str, Any]]) -> None:
        """Metrics of finished steps, one dict each."""

    def save(self) -> None:
        """The engine stands at a step whose state should be saved."""

    def progress(self, step: int, latest: dict[str, Any]) -> None:
        """Something to show: the newest metrics line."""


@dataclass
class _Pending:
    """Figures of steps not yet read from the device."""

    steps: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    norms: list[dict[str, Tensor]] = field(default_factory=list)


class Engine:
    """A model in training, at some step. `run` takes it to a later one.

    Args:
        model: on `device`.
        optimizer: over the model's parameters.
        schedule: learning-rate factor by absolute step.
        new_factor: factor of the new group's rate by absolute step.
        batches: training batches by absolute step.
        evaluation: the fixed validation batches.
        figures: turns an evaluation into reported figures.
        tokens_per_step, flops_per_step: added to the ledger at each step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: NamedOptimizer,
        schedule: Schedule,
        *,
        new_factor: Callable[[int], float],
        batches: BatchSource,
        evaluation: Sequence[BatchLike],
        figures: Callable[[Evaluation], Validation],
        config: TrainConfig,
        device: torch.device,
        precision: Precision,
        step: int,
        ledger: Ledger,
        tokens_per_step: int,
        flops_per_step: int,
        stop: StopFlag,
    ) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.new_factor = new_factor
        self.batches, self.evaluation, self.figures = batches, evaluation, figures
        self.config, self.device, self.precision = config, device, precision
        self.step = step
        self.ledger = ledger
        self.tokens_per_step, self.flops_per_step = tokens_per_step, flops_per_step
        self.stop = stop
        self._validation: tuple[int, Validation] | None = None
        self._pending = _Pending()
        # Set at the first non-finite loss or norm and never cleared: later updates are suppressed too.
        self._suppressed = torch.zeros((), dtype=torch.float32, device=device)

    @property
    def lr_factor(self) -> float:
        """The schedule's value at the last step (0 before the first)."""
        return self.schedule.factor(self.step) if self.step > self.schedule.start else self.schedule.initial

    @property
    def validation(self) -> Validation | None:
        """Figures of the last evaluation, if it was at the current step."""
        return self._validation[1] if self._validation and self._validation[0] == self.step else None

    def run(
        self, last: int, listener: Listener, *, unfinished: dict[str, Any] | None = None, closing: bool = True
    ) -> None:
        """Train up to and including step `last`.

        Args:
            last: the last step.
            listener: hears of metrics, progress and moments to save.
            unfinished: the metrics line of the current step, if its evaluation was interrupted.
            closing: the last step ends the run, so it is evaluated and saved whether or not its turn has come.

        Raises:
            DivergedError: a loss or gradient was non-finite; the state is that of the last good step, saved.
            InterruptedRunError: the stop flag was set; the state is saved.
            CheckFailedError: a parameter has no gradient or does not move.
        """
        if unfinished is not None:
            listener.lines([unfinished | {"validation": self._evaluate(listener, [unfinished]).model_dump()}])
            if closing and self.step == last:
                listener.save()
        movement = MovementCheck(self.model, self.optimizer)
        self.model.train()
        while self.step < last:
            started = time.perf_counter()
            self._train_step(self.step + 1, movement, listener)
            at_end = self.step == last
            evaluate_now = self.step % self.config.eval_every == 0 or (closing and at_end)
            save_now = self.step % self.config.save_every == 0 or (closing and at_end)
            stop_now = bool(self.stop)  # read once: what is saved must have been flushed
            lines: list[dict[str, Any]] = []
            if evaluate_now or save_now or stop_now or at_end or self.step % FLUSH_EVERY == 0:
                lines = self._flush(listener, started)
            else:
                self._add_seconds(started)
            if evaluate_now:
                lines[-1]["validation"] = self._evaluate(listener, lines).model_dump()
            if lines:
                listener.lines(lines)
                listener.progress(self.step, lines[-1])
            if save_now or stop_now:
                listener.save()
            if stop_now and not (closing and at_end):
                self._raise_interrupted()

    def _train_step(self, step: int, movement: MovementCheck, listener: Listener) -> None:
        factor = self.schedule.factor(step)
        self.optimizer.set_rates(factor, self.new_factor(step))
        batch = self.batches.at(step)
        try:
            loss = self._backward(batch, self.config.accumulate)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            ran_out = True
        else:
            ran_out = False
        if ran_out:  # outside the handler, whose traceback would keep all tensors of the step
            self._raise_out_of_memory(batch, listener)
        movement.after_backward(step)
        norms = self.optimizer.clip()
        finite = torch.isfinite(torch.stack([loss, *norms.values()])).all()
        self._suppressed = torch.maximum(self._suppressed, (~finite).float())
        self.optimizer.step(self._suppressed)
        movement.after_update(self._suppressed)
        self.step = step
        self._pending.steps.append(step)
        self._pending.rates.append(self.config.lr * factor)
        self._pending.losses.append(loss)
        self._pending.norms.append(norms)

    def _backward(self, batch: BatchLike, microbatches: int, *, only_first: bool = False) -> Tensor:
        """Gradients of the mean loss over a batch, added up over its microbatches, and that loss.

        A microbatch counts by its share of the targets, so that the sum is the gradient of the whole batch.
        """
        losses = []
        for inputs, targets in zip(
            batch.inputs.tensor_split(microbatches), batch.targets.tensor_split(microbatches), strict=True
        ):
            with autocast(self.device, self.precision):
                logits = self.model(inputs)
            loss = mean_loss(logits, targets)
            if microbatches > 1:
                loss = loss * (_num_targets(targets).to(loss.dtype) / _num_targets(batch.targets))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if only_first:
                break
        return losses[0] if microbatches == 1 else torch.stack(losses).sum()

    def _raise_out_of_memory(self, batch: BatchLike, listener: Listener) -> NoReturn:
        """Save the last step, and say in how many microbatches a batch fits, having tried.

        Raises:
            ConfigError: always.
        """
        self.model.zero_grad(set_to_none=True)
        if self._pending.steps:
            listener.lines(self._flush(listener, time.perf_counter()))
            listener.save()

        def attempt(microbatches: int) -> None:
            try:
                self._backward(batch, microbatches, only_first=True)
            finally:
                self.model.zero_grad(set_to_none=True)

        size, microbatches = self.config.batch_size, self.config.accumulate
        fitting = microbatches_that_fit(attempt, size, microbatches)
        at_once = -(-size // microbatches)
        way_out = (
            "not even one example fits: use a smaller data.sequence_length, model.width or model.layers"
            if fitting is None
            else f"{-(-size // fitting)} at once fit: the same command with -o train.accumulate={fitting} goes on with "
            f"the same batches; or use train.batch_size={-(-size // fitting)} in a new folder"
        )
        raise ConfigError(
            f"out of memory at step {self.step + 1} with train.batch_size {size}, {at_once} examples at once; {way_out}"
        )

    def _add_seconds(self, started: float) -> None:
        elapsed = time.perf_counter() - started
        self.ledger = self.ledger.model_copy(update={"seconds": self.ledger.seconds + elapsed})

    def _flush(self, listener: Listener, started: float) -> list[dict[str, Any]]:
        """Read the pending figures from the device: one synchronisation for all of them."""
        pending, self._pending = self._pending, _Pending()
        scopes = list(pending.norms[0])
        rows = torch.stack(
            [torch.stack([loss, *norms.values()]) for loss, norms in zip(pending.losses, pending.norms, strict=True)]
        ).tolist()
        self._add_seconds(started)
        lines: list[dict[str, Any]] = []
        for step, rate, row in zip(pending.steps, pending.rates, rows, strict=True):
            if not all(value - value == 0 for value in row):
                self._raise_diverged(step, row, scopes, lines, listener)
            tokens = self.ledger.tokens + self.tokens_per_step
            flops = self.ledger.flops + self.flops_per_step
            self.ledger = self.ledger.model_copy(update={"tokens": tokens, "flops": flops})
            norm_keys = {"old": "grad_norm", "new": "grad_norm_new"}
            line = {"step": step, "train_loss": row[0], "lr": rate}
            line |= {norm_keys[scope]: value for scope, value in zip(scopes, row[1:], strict=True)}
            lines.append(line | {"tokens": tokens, "flops": flops})
        lines[-1]["timing"] = {"seconds": self.ledger.seconds}
        return lines

    def _raise_diverged(
        self, step: int, row: list[float], scopes: list[str], lines: list[dict[str, Any]], listener: Listener
    ) -> None:
        self.step = step - 1
        if lines:
            lines[-1]["timing"] = {"seconds": self.ledger.seconds}
            listener.lines(lines)
        listener.save()
        names = ["loss", *(f"gradient norm of the {scope} parameters" for scope in scopes)]
        bad = next(f"{name} is {value}" for name, value in zip(names, row, strict=True) if value - value != 0)
        place = first_non_finite(
            self.model, self.batches.at(step), device=self.device, precision=self.precision, backward=True
        )
        first = "" if place is None else f" (first {place})"
        raise DivergedError(
            f"diverged at step {step}: the {bad}{first}; the update was not applied and step {step - 1} is saved. "
            "Try a lower train.lr, a longer train.warmup_steps or a lower train.clip_norm, in a new folder",
            step,
        )

    def _evaluate(self, listener: Listener, lines: Sequence[dict[str, Any]]) -> Validation:
        """Evaluate now. If a signal comes meanwhile, save this step without its figures and stop."""
        try:
            evaluation = evaluate(
                self.model, self.evaluation, device=self.device, precision=self.precision, stop=self.stop
            )
        except StoppedError:
            listener.lines(lines)
            listener.save()
            self._raise_interrupted()
        if not math.isfinite(evaluation.loss):
            listener.lines(lines)
            listener.save()
            self._raise_diverged_evaluation(evaluation.loss)
        figures = self.figures(evaluation)
        self._validation = self.step, figures
        return figures

    def _raise_diverged_evaluation(self, loss: float) -> NoReturn:
        look = partial(first_non_finite, self.model, device=self.device, precision=self.precision, backward=False)
        place = next((place for place in map(look, self.evaluation) if place is not None), None)
        first = "" if place is None else f" (first {place})"
        raise DivergedError(
            f"the validation loss at step {self.step} is {loss}{first}: the model has diverged; use an earlier "
            "checkpoint",
            self.step,
        )

    def _raise_interrupted(self) -> NoReturn:
        number = self.stop.signal_number or 2
        raise InterruptedRunError(
            f"interrupted at step {self.step}, which is saved: the same command goes on from there", number
        )


def _num_targets(targets: Tensor) -> Tensor:
    return (targets != NO_TARGET).sum()
