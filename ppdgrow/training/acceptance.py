"""Whether a growth is kept: the acceptance rules, on losses of the same validation examples.

The parent rule compares a trial with the model before it; the twin rule with the ungrown model trained on the same
batches; `always` judges nothing. Losses are in nats per target (per image under `classify`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch

from ppdgrow.config.growth import GrowthConfig, Rule
from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.errors import InvalidInputError
from ppdgrow.statistics import CONFIDENCE, student_quantile

PARENT_RULE_NOTE = (
    "the parent rule hardly ever rejects, because the training budget itself lowers the loss: it does not show "
    "that the growth helped"
)

CAUTION = (
    "[..]: 95 % interval of the paired difference on the validation examples; it does not cover the noise of training "
    "(one seed)"
)


@dataclass(frozen=True)
class PairedDifference:
    """Loss of a grown model minus that of its twin on the same examples, with its 95 % interval.

    The interval covers the sampling of validation examples, taken as independent, and not the noise of training.
    """

    difference: float
    low: float
    high: float
    examples: int

    @property
    def scope(self) -> str:
        return (
            f"the 95 % interval covers the sampling of {self.examples} validation examples, not the noise of training "
            "(one seed)"
        )


def paired_difference(grown: Evaluation, twin: Evaluation) -> PairedDifference:
    """The paired difference of two evaluations of the same examples.

    With per-example differences d_i of summed losses and counts c_i of targets, the mean is the ratio
    r = sum d / sum c, and its standard error follows from the residuals d_i - r c_i (Cochran 1977, section 2.11).

    Raises:
        InvalidInputError: the examples are not the same, or fewer than two.
    """
    if not torch.equal(grown.counts, twin.counts):
        raise InvalidInputError(
            f"the two models were evaluated on different examples ({grown.counts.numel()} and "
            f"{twin.counts.numel()}): compare runs on the same data"
        )
    examples = grown.counts.numel()
    if examples < 2:
        raise InvalidInputError("a paired interval needs at least 2 validation examples: raise train.eval_batches")
    difference, counts = grown.losses - twin.losses, twin.counts.double()
    mean = float(difference.sum() / counts.sum())
    residuals = difference - mean * counts
    error = float((residuals.square().sum() * examples / (examples - 1)).sqrt() / counts.sum())
    half = student_quantile(0.5 + CONFIDENCE / 2, examples - 1) * error
    return PairedDifference(mean, mean - half, mean + half, examples)


@dataclass(frozen=True)
class Decision:
    """A trial held against both rules, of which `rule` decides by `epsilon` or `margin`.

    `loss_after` is that at the end of the trial, None if it diverged, which no rule accepts; `twin` is None where there
    is no twin.
    """

    rule: Rule
    loss_before: float
    loss_after: float | None
    epsilon: float
    twin: PairedDifference | None
    margin: float

    @property
    def accepted(self) -> bool:
        return RULES[self.rule].accepts(self)

    @property
    def change(self) -> float | None:
        return None if self.loss_after is None else self.loss_after - self.loss_before

    @property
    def change_in_words(self) -> str:
        """The losses in words."""
        return f"{self.loss_before:.6f} -> {self.loss_after:.6f} ({self.change:+.6f})"

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def rules(self) -> list[AcceptanceRule]:
        """The rule that decides, then those that judge too where a twin is trained."""
        judging = [rule for rule in RULES.values() if rule.trains_twin == RULES[self.rule].trains_twin]
        return sorted(judging, key=lambda rule: rule.name != self.rule)

    def lines(self) -> list[str]:
        """The figures in words, that of the rule that decides first; others stand beside it where there is a twin."""
        if self.change is None:
            return ["the trial diverged: its loss was not finite"]
        return [text for rule in self.rules if (text := rule.line(self)) is not None]

    def caution(self) -> str:
        """What its figures do not say."""
        return PARENT_RULE_NOTE if self.twin is None else self.twin.scope


class AcceptanceRule(ABC):
    """How a growth is judged after its trial, with figures of at least `min_examples` validation examples.

    `trains_twin`: the ungrown model is trained beside the trial, and is the run if the growth is rejected; without it
    nothing is rejected. `caution` is what to know before its decision is believed, `relation` how its figure is held
    against its bound, `judged_at` where.
    """

    name: ClassVar[Rule]
    trains_twin: ClassVar[bool] = True
    min_examples: ClassVar[int] = 1
    caution: ClassVar[str] = ""
    relation: ClassVar[Literal["<", "<="]] = "<="
    judged_at: ClassVar[str] = "step {trial:,} against step {parent:,}"

    @abstractmethod
    def accepts(self, decision: Decision) -> bool:
        """Whether a trial with these figures is kept; never one that diverged."""

    @abstractmethod
    def judged(self, decision: Decision) -> tuple[float | None, float]:
        """Its figure, None where it has none, and the bound that this is held against."""

    @abstractmethod
    def line(self, decision: Decision) -> str | None:
        """Its figure in words; None where it has none."""

    @abstractmethod
    def plan(self, entry: GrowthConfig) -> str:
        """What becomes of a growth, before it is tried, in words."""

    def _line(self, decision: Decision, figure: str) -> str:
        decides = " decides" if decision.rule == self.name else ""
        verdict = "accepts" if self.accepts(decision) else "rejects"
        return f"{self.name} rule{decides}: {figure}, bound {self.relation} {self.judged(decision)[1]:+g}: {verdict}"

    def _trial(self, entry: GrowthConfig, bound: str) -> str:
        reject = "taken out if rejected"
        if not entry.on_reject.remove:
            times = f"each at {entry.on_reject.lower_lr:g} times the rate before"
            reject = f"if rejected, up to {entry.on_reject.retries} more tries, {times}"
        return f"trial of {entry.trial.steps} steps, rule {self.name} ({bound} nats); {reject}"


class ParentRule(AcceptanceRule):
    """Accepts iff `loss_after <= loss_before + epsilon`."""

    name = "parent"
    caution = PARENT_RULE_NOTE

    def accepts(self, decision: Decision) -> bool:
        return decision.loss_after is not None and decision.loss_after <= decision.loss_before + decision.epsilon

    def judged(self, decision: Decision) -> tuple[float | None, float]:
        return decision.change, decision.epsilon

    def line(self, decision: Decision) -> str | None:
        return self._line(decision, decision.change_in_words)

    def plan(self, entry: GrowthConfig) -> str:
        return self._trial(entry, f"epsilon {entry.trial.epsilon:g}")


class TwinRule(AcceptanceRule):
    """Accepts iff the upper end of the 95 % interval of the paired difference to the twin is below `margin`."""

    name = "twin"
    min_examples = 2
    relation = "<"
    judged_at = "upper end of the 95 % interval at step {trial:,}"

    def accepts(self, decision: Decision) -> bool:
        return decision.twin is not None and decision.twin.high < decision.margin

    def judged(self, decision: Decision) -> tuple[float | None, float]:
        return None if decision.twin is None else decision.twin.high, decision.margin

    def line(self, decision: Decision) -> str | None:
        if (twin := decision.twin) is None:
            return None
        figure = f"grown - twin {twin.difference:+.6f}, 95 % [{twin.low:+.6f}, {twin.high:+.6f}]"
        return self._line(decision, figure)

    def plan(self, entry: GrowthConfig) -> str:
        return self._trial(entry, f"margin {entry.trial.margin:g}")


class AlwaysRule(AcceptanceRule):
    """Accepts every growth, unjudged: no twin is trained, and the grown model goes on as the run."""

    name = "always"
    trains_twin = False

    def accepts(self, decision: Decision) -> bool:
        return decision.loss_after is not None

    def judged(self, decision: Decision) -> tuple[float | None, float]:
        return decision.change, math.inf

    def line(self, decision: Decision) -> str | None:
        return f"always rule: nothing is judged; loss {decision.change_in_words}"

    def plan(self, entry: GrowthConfig) -> str:
        best = f", the best of them after {entry.trial.steps} steps" if len(entry.candidates) > 1 else ""
        return f"rule {self.name}: kept without a judgement{best}"


# The closed registry of acceptance rules.
RULES: dict[Rule, AcceptanceRule] = {rule.name: rule for rule in (ParentRule(), TwinRule(), AlwaysRule())}
