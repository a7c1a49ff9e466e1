"""One round: try growths beside the ungrown twin, decide, and let one arm become the run.

On acceptance that is the grown arm. On rejection it is the twin: the very steps that a run without this growth would
have taken, from the state before the expansion. The other arms are removed, and what they cost is charged to the
ledger under `trials`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ppdgrow.checkpoint import RunFolder, append_jsonl, read_checkpoint, read_jsonl, write_checkpoint
from ppdgrow.checkpoint.events import Event
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.state import Cost
from ppdgrow.errors import ConfigError
from ppdgrow.growth.rules import Decision, paired_difference
from ppdgrow.growth.trials import Arm, Arms
from ppdgrow.surgery import GrowthRequest
from ppdgrow.training.context import Parent, RunContext, load_parent
from ppdgrow.training.growth_schedule import requests_of


@dataclass(frozen=True)
class Trial:
    """A growth that was tried, and what the rules say of it."""

    name: str
    request: GrowthRequest
    pair_lr: float
    attempt: int
    arm: Arm
    grow: Event
    check: Event
    decision: Decision


class Round:
    """The round of one growth entry.

    Args:
        context: of the run.
        run: its folder, whose newest checkpoint is the parent of the round.
        index: of the entry in the recipe.
        pair_lr: factor on the rate of the newest blocks, as the run has it now.
        header: shown above the progress bar.
        explain: whether to say what the figures of a decision do not say.
    """

    def __init__(
        self, context: RunContext, run: RunFolder, index: int, *, pair_lr: float, header: str, explain: bool
    ) -> None:
        self.context, self.run, self.index, self.pair_lr, self.explain = context, run, index, pair_lr, explain
        self._misfits: list[str] = []
        self.entry: GrowthConfig = context.recipe.growth[index]
        newest = run.newest_valid()
        assert newest is not None, "a round starts from a checkpoint"
        self.parent: Parent = load_parent(newest)
        self.end = self.parent.step + self.entry.trial.steps
        self.arms = Arms(context, self.parent, self.end, header)

    def play(self) -> None:
        """Try, decide, and leave the run at the end of the trial, accepted or as if it had never been tried.

        Raises:
            CheckFailedError: a pair changes the function of the model.
            DivergedError: the twin diverged, as the run would have.
            InterruptedRunError: a signal came; the same command goes on in the midst of the round.
        """
        step = self.parent.step
        self.context.narrator.say(
            f"step {step}  growth {self.index + 1} of {len(self.context.recipe.growth)}, tried until step {self.end}"
        )
        twin = self.arms.twin(self.pair_lr)
        assert twin.figures is not None
        self.context.narrator.say(f"  twin, not grown: validation loss {twin.figures.loss:.6f} at step {self.end}")
        trials = self._tries(twin)
        kept = _best([trial for trial in trials if trial.decision.accepted])
        if trials and self.explain:
            self.context.narrator.say(f"    {trials[0].decision.caution()}")
        self.context.narrator.say(
            f"step {self.end}  going on with {'the model without growth' if kept is None else f'trial {kept.name}'}"
        )
        self._adopt(trials, kept, twin)

    def _tries(self, twin: Arm) -> list[Trial]:
        """All candidates; and where none is accepted, the best of them again at lower rates."""
        base = self.context.recipe.train.pair_lr
        trials: list[Trial] = []
        for request in requests_of(self.entry):
            try:
                trials.append(self._try(request, base, 1, len(trials) + 1, twin))
            except ConfigError as error:
                self._misfits.append(str(error).replace("--", ""))
                self.context.narrator.warn(
                    f"growth {self.index + 1} does not fit the model as it stands: {self._misfits[-1]}"
                )
        lower, attempt, factor = self.entry.on_reject.lower_lr, 1, base
        while lower is not None and trials and attempt <= self.entry.on_reject.retries:
            if any(trial.decision.accepted for trial in trials):
                break
            attempt, factor = attempt + 1, factor * lower
            best = _best(trials) or trials[0]
            trials.append(self._try(best.request, factor, attempt, len(trials) + 1, twin))
        return trials

    def _try(self, request: GrowthRequest, pair_lr: float, attempt: int, number: int, twin: Arm) -> Trial:
        name = f"{self.index + 1}.{number}"
        arm, grow, check = self.arms.grown(name, request, pair_lr)
        config = self.entry.trial
        paired = None
        if twin.evaluation is not None and arm.evaluation is not None and twin.evaluation.counts.numel() > 1:
            paired = paired_difference(arm.evaluation, twin.evaluation)
        decision = Decision(
            rule=config.rule,
            loss_before=check["loss_before"],
            loss_after=None if arm.figures is None else arm.figures.loss,
            epsilon=config.epsilon,
            twin=paired,
            margin=config.margin,
        )
        say = self.context.narrator.say
        rate = "" if pair_lr == 1.0 else f" (rate of the new blocks x {pair_lr:g})"
        say(f"  trial {name}: {'accept' if decision.accepted else 'reject'}{rate}")
        for line in decision.lines():
            say(f"    {line}")
        return Trial(name, request, pair_lr, attempt, arm, grow, check, decision)

    def _adopt(self, trials: Sequence[Trial], kept: Trial | None, twin: Arm) -> None:
        """Let one arm become the run. The checkpoint comes last: without it, nothing was decided."""
        winner = twin if kept is None else kept.arm
        losers = [arm for arm in (twin, *(trial.arm for trial in trials)) if arm is not winner]
        checkpoint = read_checkpoint(winner.run.checkpoint_path(self.end))
        ledger = checkpoint.state.ledger
        for arm in losers:
            ledger = ledger.charged(arm.cost)
        state = checkpoint.state.model_copy(update={"ledger": ledger, "validation": winner.figures})
        lines = [line for line in read_jsonl(winner.run.metrics_path) if line["step"] > self.parent.step]
        append_jsonl(self.run.metrics_path, lines)
        append_jsonl(self.run.growth_path, self._events(trials, kept, twin))
        write_checkpoint(self.run.checkpoint_path(self.end), replace(checkpoint, state=state))
        self.run.prune(self.context.recipe.train.keep)
        shutil.rmtree(self.arms.folder, ignore_errors=True)

    def _events(self, trials: Sequence[Trial], kept: Trial | None, twin: Arm) -> list[Event]:
        """Three lines for each trial and one for the twin; or one that says that nothing fitted."""
        when = {"step": self.parent.step, "until": self.end, "growth": self.index + 1}
        if not trials:
            reason = f"it does not fit the model as it stands: {'; '.join(dict.fromkeys(self._misfits))}"
            return [{"event": "skip", **when, "reason": reason}]
        events: list[Event] = []
        for trial in trials:
            mark = when | {"trial": trial.name, "decision": "accept" if trial is kept else "reject"}
            decision = {
                "ids": trial.grow["ids"],
                "attempt": trial.attempt,
                "pair_lr": trial.pair_lr,
                "retry": any(o.request == trial.request and o.attempt == trial.attempt + 1 for o in trials),
                "passed": trial.decision.accepted,
                **trial.decision.document(),
                **_spent(trial.arm.cost),
            }
            events += [trial.grow | mark, trial.check | mark, {"event": "decision"} | mark | decision]
        loss = None if twin.figures is None else twin.figures.loss
        return [*events, {"event": "twin", **when, "kept": kept is None, "loss": loss, **_spent(twin.cost)}]


def _spent(cost: Cost) -> Event:
    return {"cost": {"tokens": cost.tokens, "flops": cost.flops}, "timing": {"seconds": cost.seconds}}


def _best(trials: Sequence[Trial]) -> Trial | None:
    """The trial with the lowest loss at its end; against one twin it is also the one with the largest gain."""
    whole = [trial for trial in trials if trial.decision.loss_after is not None]
    return min(whole, key=lambda trial: trial.decision.loss_after or 0.0, default=None)
