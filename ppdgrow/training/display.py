"""What people see of a training run: a line per evaluation, and on a terminal a progress bar below some lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ppdgrow.config.state import Ledger
from ppdgrow.console import Narrator, ProgressBar
from ppdgrow.engine.loop import Engine, MetricsLine

# What stands above the progress bar, from the step and the ledger.
Header = Callable[[int, Ledger], str]


class Display:
    """The listener that speaks.

    Args:
        narrator: of the command.
        engine: whose step and ledger are shown.
        label: of the run or of one of its arms.
        first: the step at which the bar is empty.
        last: the step at which it is full.
        latest: the metrics of the engine's step, if there are any.
        header: what stands above the bar.
    """

    def __init__(
        self,
        narrator: Narrator,
        engine: Engine,
        *,
        label: str,
        first: int,
        last: int,
        latest: MetricsLine | None,
        header: Header | None,
    ) -> None:
        self._narrator, self._engine, self._header, self._label = narrator, engine, header, label
        self._first, self._last = first, last
        self._latest, self._is_said = latest, True
        self._validation_loss: float | None = None
        self._bar: ProgressBar | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar while the block runs."""
        with self._narrator.progress(self._last - self._first, self._label) as self._bar:
            self._show_header()
            yield

    def on_steps(self, lines: Sequence[MetricsLine]) -> None:
        self._latest, self._is_said = lines[-1], False
        self._move()

    def on_evaluation(self, line: MetricsLine) -> None:
        self._validation_loss = line["validation"]["loss"]
        self._say(f"val loss {self._validation_loss:.4f}  ")
        self._move()

    def on_save(self) -> None:
        pass

    def say_last(self) -> None:
        """Say where a run stopped, if that step was not evaluated; the bar, which showed it, is gone."""
        if not self._is_said:
            self._say("")

    def _say(self, validation: str) -> None:
        self._is_said = True
        if self._latest is not None:
            prefix = "" if self._label == "training" else f"{self._label}: "
            self._narrator.say(
                f"{prefix}step {self._latest['step']}/{self._last}  train loss {self._latest['train_loss']:.4f}  "
                f"{validation}lr {self._latest['lr']:.1e}  {self._engine.ledger.seconds:.0f} s"
            )

    def _move(self) -> None:
        if self._bar is not None and self._latest is not None:
            self._show_header()
            self._bar.update(
                self._latest["step"] - self._first,
                loss=self._latest["train_loss"],
                val=self._validation_loss,
                lr=self._latest["lr"],
                tokens=self._engine.ledger.tokens,
            )

    def _show_header(self) -> None:
        if self._bar is not None and self._header is not None:
            self._bar.show(partial(self._header, self._engine.step, self._engine.ledger))
