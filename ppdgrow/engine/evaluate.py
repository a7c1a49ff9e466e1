"""Loss and accuracy of a model on fixed batches.

Shapes: B batch, T tokens, V vocabulary or classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppdgrow.config.state import Validation
from ppdgrow.data import NO_TARGET, Batch
from ppdgrow.engine.device import Precision, autocast
from ppdgrow.engine.stop_flag import StopFlag, StoppedError
from ppdgrow.errors import DivergedError


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats over all targets, computed in at least fp32."""
    return F.cross_entropy(_at_least_fp32(logits).flatten(0, -2), targets.flatten(), ignore_index=NO_TARGET)


def _at_least_fp32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


@dataclass(frozen=True)
class Evaluation:
    """Sums over a fixed set of batches: `losses[i]` in nats of example i over its `counts[i]` targets.

    `classes[i]` is the class of example i; None where an example has several targets.
    """

    losses: Tensor
    counts: Tensor
    correct: Tensor
    classes: Tensor | None = None

    @property
    def loss(self) -> float:
        return float(self.losses.sum() / self.counts.sum())

    @property
    def accuracy(self) -> float:
        return float(self.correct.sum() / self.counts.sum())

    def class_accuracy(self, names: Sequence[str] | None) -> dict[str, float] | None:
        """Fraction predicted right of each class that occurs, by its name; None where examples have no one class."""
        if self.classes is None or names is None:
            return None
        counts = torch.bincount(self.classes, minlength=len(names))
        right = torch.bincount(self.classes, weights=self.correct.double(), minlength=len(names))
        return {name: float(right[place] / counts[place]) for place, name in enumerate(names) if counts[place]}

    def figures(
        self, bytes_per_token: float | None, *, tokens: bool, class_names: Sequence[str] | None = None
    ) -> Validation:
        """The reported figures; of `tokens` also a perplexity, and bits per byte where the raw bytes of each are known.

        Raises:
            DivergedError: the loss is not finite.
        """
        loss = self.loss
        if not math.isfinite(loss):
            raise DivergedError(f"the validation loss is {loss}: the model has diverged; use an earlier checkpoint")
        # exp overflows near 709 nats; a loss that high has no perplexity worth a figure
        perplexity = math.exp(loss) if tokens and loss < 700 else None
        bits = loss / math.log(2) / bytes_per_token if bytes_per_token else None
        return Validation(
            loss=loss,
            accuracy=self.accuracy,
            perplexity=perplexity,
            bits_per_byte=bits,
            class_accuracy=self.class_accuracy(class_names),
        )


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: Precision,
    stop: StopFlag | None = None,
) -> Evaluation:
    """Per-example losses of `model` in evaluation mode; its mode is restored. See `evaluate_together`."""
    (evaluation,), _ = evaluate_together([model], batches, device=device, precision=precision, stop=stop)
    return evaluation


@torch.no_grad()
def evaluate_together(
    models: Sequence[nn.Module],
    batches: Iterable[Batch],
    *,
    device: torch.device,
    precision: Precision,
    stop: StopFlag | None = None,
) -> tuple[list[Evaluation], bool]:
    """Per-example losses of several models on the same batches, and whether all their logits agree to the last bit.

    Raises:
        StoppedError: the stop flag was set meanwhile.
    """
    training = [model.training for model in models]
    sums: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in models]
    same = True
    classes: list[Tensor] = []
    try:
        for model in models:
            model.eval()
        for batch in batches:
            if stop:
                raise StoppedError
            if batch.targets.ndim == 1:
                classes.append(batch.targets)
            first: Tensor | None = None
            for model, parts in zip(models, sums, strict=True):
                with autocast(device, precision):
                    logits = model(batch.inputs)
                parts.append(_example_sums(logits, batch.targets))
                same = same and (first is None or torch.equal(first, logits))
                first = logits if first is None else first
    finally:
        for model, mode in zip(models, training, strict=True):
            model.train(mode)
    known = torch.cat(classes).cpu() if classes else None
    found = [[torch.cat(columns).cpu() for columns in zip(*parts, strict=True)] for parts in sums]
    return [Evaluation(losses, counts, correct, known) for losses, counts, correct in found], same


def _example_sums(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per example: summed loss (float64), number of targets, number predicted right."""
    rows = _at_least_fp32(logits).reshape(targets.shape[0], -1, logits.shape[-1])
    wanted = targets.reshape(targets.shape[0], -1)
    losses = F.cross_entropy(rows.flatten(0, 1), wanted.flatten(), ignore_index=NO_TARGET, reduction="none")
    taken = wanted != NO_TARGET
    right = (rows.argmax(-1) == wanted) & taken
    return losses.view_as(wanted).double().sum(1), taken.sum(1), right.sum(1)
