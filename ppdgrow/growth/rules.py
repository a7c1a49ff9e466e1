"""Whether a growth is kept: the parent rule and the twin rule, on losses of the same validation examples.

The parent rule compares a trial with the model before it; the twin rule with the ungrown model trained on the same
batches. Losses are in nats per target (per image under `classify`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ppdgrow.config.growth import Rule
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

    The interval covers the sampling of validation examples, taken as independent. It does not cover the noise of
    training: another seed is another difference.
    """

    mean: float
    low: float
    high: float
    examples: int

    @property
    def scope(self) -> str:
        """What the interval covers and what not, in words."""
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
    """A trial held against both rules, of which one decides.

    Args:
        rule: the one that decides.
        loss_before: of the model before the growth.
        loss_after: at the end of the trial; None if the trial diverged, which no rule accepts.
        epsilon: parent rule: accept iff `loss_after <= loss_before + epsilon`.
        twin: the paired difference to the twin, None where there is no twin.
        margin: twin rule: accept iff the upper end of the difference's 95 % interval is below it.
    """

    rule: Rule
    loss_before: float
    loss_after: float | None
    epsilon: float
    twin: PairedDifference | None
    margin: float

    @property
    def parent_passes(self) -> bool:
        """Whether the parent rule accepts."""
        return self.loss_after is not None and self.loss_after <= self.loss_before + self.epsilon

    @property
    def twin_passes(self) -> bool:
        """Whether the twin rule accepts; False without a twin."""
        return self.twin is not None and self.twin.high < self.margin

    @property
    def accepted(self) -> bool:
        """Whether the rule that decides accepts."""
        return self.parent_passes if self.rule == "parent" else self.twin_passes

    @property
    def change(self) -> float | None:
        """Loss after minus loss before."""
        return None if self.loss_after is None else self.loss_after - self.loss_before

    def document(self) -> dict[str, Any]:
        """All figures as plain values."""
        twin = self.twin
        return {
            "rule": self.rule,
            "loss_before": self.loss_before,
            "loss_after": self.loss_after,
            "epsilon": self.epsilon,
            "twin": None
            if twin is None
            else {"difference": twin.mean, "low": twin.low, "high": twin.high, "examples": twin.examples},
            "margin": self.margin,
        }

    def lines(self) -> list[str]:
        """Both figures in words, the one that decides first."""
        if self.change is None:
            return ["the trial diverged: its loss was not finite"]
        parent = (
            f"parent rule{self._decides('parent')}: {self.loss_before:.6f} -> {self.loss_after:.6f} "
            f"({self.change:+.6f}), bound <= {self.epsilon:+g}: {_verdict(self.parent_passes)}"
        )
        if self.twin is None:
            return [parent]
        twin = (
            f"twin rule{self._decides('twin')}: grown - twin {self.twin.mean:+.6f}, 95 % [{self.twin.low:+.6f}, "
            f"{self.twin.high:+.6f}], bound < {self.margin:+g}: {_verdict(self.twin_passes)}"
        )
        return [parent, twin] if self.rule == "parent" else [twin, parent]

    def _decides(self, rule: Rule) -> str:
        return " decides" if rule == self.rule else ""

    def caution(self) -> str:
        """What the figures do and do not say."""
        return PARENT_RULE_NOTE if self.twin is None else self.twin.scope


def _verdict(passes: bool) -> str:
    return "accepts" if passes else "rejects"
