"""The training loop: steps, clipping, evaluation, saving, and stopping before anything non-finite is applied.

The host never waits for the device within a step: losses and norms stay there until the next flush.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor, nn

from ppdgrow.config.schema import TrainConfig
from ppdgrow.config.state import Ledger, Validation
from ppdgrow.data import NO_TARGET, Batch
from ppdgrow.engine.device import Precision, autocast
from ppdgrow.engine.diagnosis import first_non_finite, is_out_of_memory, microbatches_that_fit
from ppdgrow.engine.evaluate import Evaluation, evaluate, mean_loss
from ppdgrow.engine.movement_check import MovementCheck
from ppdgrow.engine.stop_flag import StopFlag, StoppedError
from ppdgrow.errors import ConfigError, DivergedError, InterruptedRunError
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.schedule import Schedule

FLUSH_EVERY = 10
NORM_KEYS = {"old": "grad_norm", "new": "grad_norm_new"}
MetricsLine = dict[str, Any]


class BatchSource(Protocol):
    """Training batches as a pure function of the absolute step (1-based)."""

    def at(self, step: int) -> Batch: ...


class Listener(Protocol):
    """What hears of a run, in the order in which things happen.

    Of steps at each flush, the last of which is the engine's; of an evaluation, by `step`, `validation` and `timing`;
    and that the engine's state should be saved.
    """

    def on_steps(self, lines: Sequence[MetricsLine]) -> None: ...

    def on_evaluation(self, line: MetricsLine) -> None: ...

    def on_save(self) -> None: ...


class _Pending(NamedTuple):
    """Figures of a step that are not yet read from the device; norms by scope, `old` and `new`."""

    step: int
    rate: float
    loss: Tensor
    norms: dict[str, Tensor]


@dataclass(eq=False)
class Engine:
    """A model in training, on `device`, at some step. `run` takes it to a later one.

    Attributes:
        schedule, new_factor: factors on the learning rate, and on that of the new group, by absolute step.
        evaluation: the fixed validation batches.
        figures: turns an evaluation into reported figures.
        first: the step before the run's first; its last is `config.steps` later.
        step: at which the model stands.
        ledger: what it cost so far; each step adds `tokens_per_step` and `flops_per_step`.
        evaluated: the step of the latest evaluation, with its figures.
    """

    model: nn.Module
    optimizer: NamedOptimizer
    schedule: Schedule
    _: KW_ONLY
    new_factor: Callable[[int], float]
    batches: BatchSource
    evaluation: Sequence[Batch]
    figures: Callable[[Evaluation], Validation]
    config: TrainConfig
    device: torch.device
    precision: Precision
    first: int
    step: int
    ledger: Ledger
    tokens_per_step: int
    flops_per_step: int
    stop: StopFlag
    evaluated: tuple[int, Validation | None] = (0, None)
    listeners: Sequence[Listener] = ()

    def __post_init__(self) -> None:
        self.last = self.first + self.config.steps
        self._pending: list[_Pending] = []
        # Set at the first non-finite loss or norm and never cleared: later updates are suppressed too.
        self._suppressed = torch.zeros((), dtype=torch.float32, device=self.device)

    @property
    def lr_factor(self) -> float:
        """The schedule's value at the last step (0 before the first)."""
        return self.schedule.factor(self.step) if self.step > self.schedule.start else self.schedule.initial

    @property
    def validation(self) -> Validation | None:
        """Figures of the current step, if it was evaluated."""
        step, figures = self.evaluated
        return figures if step == self.step else None

    def run(self, until: int) -> None:
        """Train up to and including step `until`; the run's last step is evaluated and saved in any case.

        Raises:
            DivergedError: a loss or gradient was non-finite; the state is that of the last good step, saved.
            InterruptedRunError: the stop flag was set; the state is saved.
            CheckFailedError: a parameter has no gradient or does not move.
        """
        movement = MovementCheck(self.model, self.optimizer)
        if self.step > self.first and self._is_due(self.config.eval_every) and self.validation is None:
            self._evaluate()  # it was interrupted there
            self._save()
        self.model.train()
        while self.step < until:
            started = time.perf_counter()
            self._train_step(self.step + 1, movement)
            evaluate_now, save_now = self._is_due(self.config.eval_every), self._is_due(self.config.save_every)
            stop_now = bool(self.stop)  # read once: what is saved must have been flushed
            if evaluate_now or save_now or stop_now or self.step == until or self.step % FLUSH_EVERY == 0:
                self._flush(started)
            else:
                self._add_seconds(started)
            if evaluate_now:
                self._evaluate()
            if save_now or stop_now:
                self._save()
            if stop_now and self.step != self.last:
                self._raise_interrupted()

    def _is_due(self, every: int) -> bool:
        return is_due(self.step, every, self.last)

    def _train_step(self, step: int, movement: MovementCheck) -> None:
        factor = self.schedule.factor(step)
        self.optimizer.set_rates(factor, self.new_factor(step))
        batch = self.batches.at(step)
        loss = None
        try:
            loss = self._backward(batch, self.config.accumulate)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if loss is None:  # outside the handler, whose traceback would keep all tensors of the step
            self._raise_out_of_memory(batch)
        movement.after_backward(step)
        norms = self.optimizer.clip()
        finite = torch.isfinite(torch.stack([loss, *norms.values()])).all()
        self._suppressed = torch.maximum(self._suppressed, (~finite).float())
        self.optimizer.step(self._suppressed)
        movement.after_update(self._suppressed)
        self.step = step
        self._pending.append(_Pending(step, self.config.lr * factor, loss, norms))

    def _backward(self, batch: Batch, microbatches: int, *, only_first: bool = False) -> Tensor:
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
                loss = loss * ((targets != NO_TARGET).sum().to(loss.dtype) / (batch.targets != NO_TARGET).sum())
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
            if only_first:
                break
        return losses[0] if microbatches == 1 else torch.stack(losses).sum()

    def _raise_out_of_memory(self, batch: Batch) -> NoReturn:
        """Save the last step, and say in how many microbatches a batch fits, having tried."""
        self.model.zero_grad(set_to_none=True)
        if self._pending:
            self._flush(time.perf_counter())
            self._save()

        def attempt(microbatches: int) -> None:
            try:
                self._backward(batch, microbatches, only_first=True)
            finally:
                self.model.zero_grad(set_to_none=True)

        size, microbatches = self.config.batch_size, self.config.accumulate
        fitting = microbatches_that_fit(attempt, size, microbatches)
        way_out = "not even one example fits: use a smaller data.sequence_length, model.width or model.layers"
        if fitting is not None:
            at_once = -(-size // fitting)
            way_out = (
                f"{at_once} at once fit: the same command with -o train.accumulate={fitting} goes on with the same "
                f"batches; or use train.batch_size={at_once} in a new folder"
            )
        found = f"out of memory at step {self.step + 1} with train.batch_size {size}"
        raise ConfigError(f"{found}, {-(-size // microbatches)} examples at once; {way_out}")

    def _add_seconds(self, started: float) -> None:
        elapsed = time.perf_counter() - started
        self.ledger = self.ledger.model_copy(update={"seconds": self.ledger.seconds + elapsed})

    def _flush(self, started: float) -> None:
        """Read the pending figures from the device: one synchronisation for all of them."""
        pending, self._pending = self._pending, []
        scopes = list(pending[0].norms)
        rows = torch.stack([torch.stack([figures.loss, *figures.norms.values()]) for figures in pending]).tolist()
        self._add_seconds(started)
        lines: list[MetricsLine] = []
        for (step, rate, *_), row in zip(pending, rows, strict=True):
            if not all(map(math.isfinite, row)):
                self._raise_diverged(step, row, scopes, lines)
            tokens, flops = self.ledger.tokens + self.tokens_per_step, self.ledger.flops + self.flops_per_step
            cost = {"tokens": tokens, "flops": flops}
            self.ledger = self.ledger.model_copy(update=cost)
            norms = {NORM_KEYS[scope]: norm for scope, norm in zip(scopes, row[1:], strict=True)}
            lines.append({"step": step, "train_loss": row[0], "lr": rate} | norms | cost)
        self._report_steps(lines)

    def _report_steps(self, lines: list[MetricsLine]) -> None:
        lines[-1]["timing"] = {"seconds": self.ledger.seconds}
        for listener in self.listeners:
            listener.on_steps(lines)

    def _save(self) -> None:
        for listener in self.listeners:
            listener.on_save()

    def _raise_diverged(self, step: int, row: list[float], scopes: list[str], lines: list[MetricsLine]) -> None:
        self.step = step - 1
        if lines:
            self._report_steps(lines)
        self._save()
        names = ["loss", *(f"gradient norm of the {scope} parameters" for scope in scopes)]
        bad = next(f"{name} is {value}" for name, value in zip(names, row, strict=True) if not math.isfinite(value))
        first = self._first_non_finite([self.batches.at(step)], backward=True)
        raise DivergedError(
            f"diverged at step {step}: the {bad}{first}; the update was not applied and step {step - 1} is saved. "
            "Try a lower train.lr, a longer train.warmup_steps or a lower train.clip_norm, in a new folder",
            step,
        )

    def _evaluate(self) -> None:
        """Evaluate this step. If a signal comes meanwhile, or the loss is not finite, save it without figures."""
        try:
            evaluation = evaluate(
                self.model, self.evaluation, device=self.device, precision=self.precision, stop=self.stop
            )
        except StoppedError:
            self._save()
            self._raise_interrupted()
        if not math.isfinite(evaluation.loss):
            self._save()
            first = self._first_non_finite(self.evaluation, backward=False)
            raise DivergedError(
                f"the validation loss at step {self.step} is {evaluation.loss}{first}: the model has diverged; use an "
                "earlier checkpoint",
                self.step,
            )
        figures = self.figures(evaluation)
        self.evaluated = self.step, figures
        timing = {"seconds": self.ledger.seconds}
        for listener in self.listeners:
            listener.on_evaluation({"step": self.step, "validation": figures.model_dump(), "timing": timing})

    def _first_non_finite(self, batches: Sequence[Batch], *, backward: bool) -> str:
        look = partial(first_non_finite, self.model, device=self.device, precision=self.precision, backward=backward)
        place = next((place for place in map(look, batches) if place is not None), None)
        return "" if place is None else f" (first {place})"

    def _raise_interrupted(self) -> NoReturn:
        raise InterruptedRunError(
            f"interrupted at step {self.step}, which is saved: the same command goes on from there",
            self.stop.signal_number or 2,
        )


def is_due(step: int, every: int, last: int) -> bool:
    """Whether a run that ends at step `last` evaluates, or saves, at a step."""
    return step % every == 0 or step == last
