"""What people see of a training run: a line per evaluation, and on a terminal a progress bar below some lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from ppdgrow.config.state import Ledger
from ppdgrow.console import Narrator, ProgressBar
from ppdgrow.engine.loop import Engine, MetricsLine

# What stands above the progress bar, from the step and the ledger.
Header = Callable[[int, Ledger], str]


@dataclass
class Display:
    """The listener that speaks.

    Attributes:
        label: of the run or of one of its arms.
        first, last: the steps at which the bar is empty and full.
        latest: the metrics of the engine's step, if there are any.
        header: what stands above the bar.
    """

    narrator: Narrator
    engine: Engine
    label: str
    first: int
    last: int
    latest: MetricsLine | None
    header: Header | None
    _bar: ProgressBar | None = field(default=None, init=False)
    _validation_loss: float | None = field(default=None, init=False)
    _is_said: bool = field(default=True, init=False)

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self.narrator.progress(self.last - self.first, self.label) as self._bar:
            self._show_header()
            yield

    def on_steps(self, lines: Sequence[MetricsLine]) -> None:
        self.latest, self._is_said = lines[-1], False
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
        if self.latest is not None:
            prefix = "" if self.label == "training" else f"{self.label}: "
            self.narrator.say(
                f"{prefix}step {self.latest['step']}/{self.last}  train loss {self.latest['train_loss']:.4f}  "
                f"{validation}lr {self.latest['lr']:.1e}  {self.engine.ledger.seconds:.0f} s"
            )

    def _move(self) -> None:
        if self._bar is not None and self.latest is not None:
            self._show_header()
            self._bar.update(
                self.latest["step"] - self.first,
                loss=self.latest["train_loss"],
                val=self._validation_loss,
                lr=self.latest["lr"],
                tokens=self.engine.ledger.tokens,
            )

    def _show_header(self) -> None:
        if self._bar is not None and self.header is not None:
            self._bar.show(partial(self.header, self.engine.step, self.engine.ledger))
