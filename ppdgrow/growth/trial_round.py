"""One entry of the growth schedule: try growths beside the ungrown twin, decide, and go on with one of them.

If a growth is accepted, its run goes on. If all are rejected, the twin does: the very steps that a run without this
growth would have taken, from the state before it. The other runs are removed, and what they cost is charged to the
ledger under `trials`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ppdgrow.checkpoint import RunFolder, append_jsonl, read_checkpoint, read_jsonl, write_checkpoint
from ppdgrow.checkpoint.events import (
    CheckEvent,
    DecisionEvent,
    Event,
    GrowEvent,
    SkipEvent,
    TwinEvent,
    append_events,
    cost_keys,
)
from ppdgrow.errors import ConfigError
from ppdgrow.growth.trials import TrialRun, TrialRuns
from ppdgrow.surgery import GrowthRequest
from ppdgrow.training.acceptance import RULES, Decision, paired_difference
from ppdgrow.training.context import RunContext, load_parent
from ppdgrow.training.growth_schedule import requests_of


@dataclass(frozen=True)
class Trial:
    """A growth that was tried, and what the rules say of it."""

    name: str
    request: GrowthRequest
    pair_lr: float
    attempt: int
    trained: TrialRun
    grow: GrowEvent
    check: CheckEvent
    decision: Decision


class Round:
    """The trials of the growth entry `index` of the recipe, from the newest checkpoint of the run.

    `pair_lr` is the factor on the rate of the newest blocks, as the run has it now; `header` stands above the progress
    bar; `explain`: also say what the figures of a decision do not say.
    """

    def __init__(
        self, context: RunContext, run: RunFolder, index: int, *, pair_lr: float, header: str, explain: bool
    ) -> None:
        self.context, self.run, self.index, self.pair_lr, self.explain = context, run, index, pair_lr, explain
        self.say = context.narrator.say
        self.entry = context.recipe.growth[index]
        newest = run.newest_valid()
        assert newest is not None, "trials start from a checkpoint"
        self.parent = load_parent(newest)
        self.end = self.parent.step + self.entry.trial.steps
        self.runs = TrialRuns(context, self.parent, self.end, header)
        self.twin: TrialRun | None = None
        self.trials: list[Trial] = []
        self.misfits: list[str] = []

    def decide(self) -> None:
        """Try, decide, and leave the run at the end of the trial, grown or as if nothing had ever been tried.

        Raises:
            CheckFailedError: a pair changes the function of the model.
            DivergedError: the twin diverged, as the run would have; or the grown model, where there is no twin.
            InterruptedRunError: a signal came; the same command goes on in the midst of it.
        """
        step, number = self.parent.step, len(self.context.recipe.growth)
        self.say(f"step {step}  growth {self.index + 1} of {number}, tried until step {self.end}")
        if RULES[self.entry.trial.rule].trains_twin:
            self.twin = self.runs.train_twin(self.pair_lr)
            self.say(f"  twin, not grown: validation loss {self.twin.loss:.6f} at step {self.end}")
        self._try_all()
        kept = _best([trial for trial in self.trials if trial.decision.accepted])
        if self.trials and self.twin is not None and self.explain:
            self.say(f"    {self.trials[0].decision.caution()}")
        winner = self.twin if kept is None else kept.trained
        if winner is not None:
            name = "the model without growth" if kept is None else f"trial {kept.name}"
            self.say(f"step {self.end}  going on with {name}")
            self._go_on_with(winner)
        elif self.trials:
            raise self.trials[0].trained.error or AssertionError("only a trial that diverged is not accepted")
        else:
            append_events(self.run.growth_path, [self._skip(until=step)])

    def _try_all(self) -> None:
        """All candidates; and where none is accepted, the best of them again at lower rates."""
        rate = self.context.recipe.train.pair_lr
        for request in requests_of(self.entry):
            try:
                self._try(request, rate)
            except ConfigError as error:
                self.misfits.append(str(error).replace("--", ""))
                self.context.narrator.warn(
                    f"growth {self.index + 1} does not fit the model as it stands: {self.misfits[-1]}"
                )
        lower, retries = self.entry.on_reject.lower_lr, self.entry.on_reject.retries
        if lower is None or not self.trials or self.twin is None:
            return
        for attempt in range(2, retries + 2):
            if any(trial.decision.accepted for trial in self.trials):
                break
            rate *= lower
            self._try((_best(self.trials) or self.trials[0]).request, rate, attempt)

    def _try(self, request: GrowthRequest, pair_lr: float, attempt: int = 1) -> None:
        name = f"{self.index + 1}.{len(self.trials) + 1}"
        trained, grow, check = self.runs.train_grown(name, request, pair_lr)
        paired, theirs = None, None if self.twin is None else self.twin.evaluation
        if theirs is not None and trained.evaluation is not None and theirs.counts.numel() > 1:
            paired = paired_difference(trained.evaluation, theirs)
        assert check.loss_before is not None, "a trial is always evaluated"
        config = self.entry.trial
        decision = Decision(
            rule=config.rule,
            loss_before=check.loss_before,
            loss_after=trained.loss,
            epsilon=config.epsilon,
            twin=paired,
            margin=config.margin,
        )
        rate = "" if pair_lr == 1.0 else f" (rate of the new blocks x {pair_lr:g})"
        self.say(f"  trial {name}: {'accept' if decision.accepted else 'reject'}{rate}")
        for line in decision.lines():
            self.say(f"    {line}")
        self.trials.append(Trial(name, request, pair_lr, attempt, trained, grow, check, decision))

    def _go_on_with(self, winner: TrialRun) -> None:
        """Let one of the runs become the run. The checkpoint comes last: without it, nothing was decided."""
        checkpoint = read_checkpoint(winner.run.checkpoint_path(self.end))
        ledger = checkpoint.state.ledger
        for other in (self.twin, *(trial.trained for trial in self.trials)):
            if other is not None and other is not winner:
                ledger = ledger.charged(other.cost)
        state = checkpoint.state.model_copy(update={"ledger": ledger, "validation": winner.figures})
        lines = [line for line in read_jsonl(winner.run.metrics_path) if line["step"] > self.parent.step]
        append_jsonl(self.run.metrics_path, lines)
        append_events(self.run.growth_path, self._events(winner))
        write_checkpoint(self.run.checkpoint_path(self.end), replace(checkpoint, state=state))
        self.run.prune(self.context.recipe.train.keep)
        shutil.rmtree(self.runs.folder, ignore_errors=True)

    def _events(self, winner: TrialRun) -> Iterator[Event]:
        """Three for each trial and one for the twin; or one that says that nothing fitted."""
        when: dict[str, Any] = {"step": self.parent.step, "until": self.end, "growth": self.index + 1}
        if not self.trials:
            yield self._skip(until=self.end)
            return
        for trial in self.trials:
            mark = when | {"trial": trial.name, "decision": "accept" if trial.trained is winner else "reject"}
            yield trial.grow.model_copy(update=mark)
            yield trial.check.model_copy(update=mark)
            yield DecisionEvent(
                **mark,
                ids=trial.grow.ids,
                attempt=trial.attempt,
                pair_lr=trial.pair_lr,
                retry=any(o.request == trial.request and o.attempt == trial.attempt + 1 for o in self.trials),
                passed=trial.decision.accepted,
                **trial.decision.document(),
                **cost_keys(trial.trained.cost),
            )
        if self.twin is not None:
            yield TwinEvent(**when, kept=self.twin is winner, loss=self.twin.loss, **cost_keys(self.twin.cost))

    def _skip(self, *, until: int) -> SkipEvent:
        reason = f"it does not fit the model as it stands: {'; '.join(dict.fromkeys(self.misfits))}"
        return SkipEvent(step=self.parent.step, until=until, growth=self.index + 1, reason=reason)


def _best(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the lowest loss at its end; against one twin it is also the one with the largest gain."""
    whole = [trial for trial in trials if trial.decision.loss_after is not None]
    return min(whole, key=lambda trial: trial.decision.loss_after or 0.0, default=None)
