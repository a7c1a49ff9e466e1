"""The paired difference of the twin rule: its mean, the coverage of its interval, and what pairing is worth."""

from __future__ import annotations

import pytest
import torch

from ppdgrow.engine.evaluate import Evaluation
from ppdgrow.errors import InvalidInputError
from ppdgrow.seeding import generator
from ppdgrow.training.acceptance import PairedDifference, paired_difference

TRUE_DIFFERENCE = 0.02  # nats per target
DRAWS = 2000


def evaluation(losses: torch.Tensor, counts: torch.Tensor) -> Evaluation:
    return Evaluation(losses.double(), counts, torch.zeros_like(counts))


def pair_of_models(draw: torch.Generator, examples: int) -> tuple[Evaluation, Evaluation]:
    """Two models on unequal examples, whose difficulty they share: it varies 20 times as much as their difference."""
    counts = torch.randint(5, 60, (examples,), generator=draw)
    difficulty = 4.0 + torch.randn(examples, generator=draw, dtype=torch.float64)
    apart = TRUE_DIFFERENCE + 0.05 * torch.randn(examples, generator=draw, dtype=torch.float64)
    return evaluation(counts * (difficulty + apart), counts), evaluation(counts * difficulty, counts)


def covered(found: PairedDifference) -> bool:
    return found.low <= TRUE_DIFFERENCE <= found.high


@pytest.mark.parametrize("examples", [32, 128])
def test_the_interval_covers_the_true_difference_as_often_as_it_says(examples: int) -> None:
    draw = generator(0, "coverage", examples)
    found = [paired_difference(*pair_of_models(draw, examples)) for _ in range(DRAWS)]
    assert 0.93 <= sum(map(covered, found)) / DRAWS <= 0.97
    below = sum(one.high < TRUE_DIFFERENCE for one in found) / DRAWS
    assert below <= 0.04, "the bound that decides is wrong on its own side in about 2.5 % of cases"


def test_control_half_the_interval_covers_too_rarely() -> None:
    draw = generator(0, "coverage", 32)
    found = [paired_difference(*pair_of_models(draw, 32)) for _ in range(DRAWS)]
    halved = [
        PairedDifference(f.difference, (f.difference + f.low) / 2, (f.difference + f.high) / 2, f.examples)
        for f in found
    ]
    assert sum(map(covered, halved)) / DRAWS < 0.8


def test_control_wrongly_paired_examples_give_a_wide_interval() -> None:
    grown, twin = pair_of_models(generator(0, "pairing"), 128)
    right = paired_difference(grown, twin)
    # Losses per target put on other examples: the difficulty that both models share no longer cancels.
    rolled = evaluation((twin.losses / twin.counts).roll(1) * twin.counts, twin.counts)
    wrong = paired_difference(grown, rolled)
    assert wrong.high - wrong.low > 10 * (right.high - right.low)


def test_the_mean_is_the_difference_of_the_losses_per_target() -> None:
    grown, twin = pair_of_models(generator(0, "mean"), 77)
    found = paired_difference(grown, twin)
    assert found.difference == pytest.approx(grown.loss - twin.loss, rel=1e-9)
    assert (found.low + found.high) / 2 == pytest.approx(found.difference)
    assert found.examples == 77
    unweighted = float((grown.losses / grown.counts - twin.losses / twin.counts).mean())
    assert abs(unweighted - found.difference) > 1e-5, "control: with unequal counts the mean of means is another number"


def test_the_same_model_twice_has_no_difference_at_all() -> None:
    grown, _ = pair_of_models(generator(0, "same"), 16)
    assert paired_difference(grown, grown) == PairedDifference(0.0, 0.0, 0.0, 16)


def test_other_examples_and_a_single_one_are_refused() -> None:
    counts = torch.tensor([3, 4])
    one = evaluation(torch.ones(2), counts)
    with pytest.raises(InvalidInputError, match="different examples"):
        paired_difference(one, evaluation(torch.ones(2), counts + 1))
    with pytest.raises(InvalidInputError, match="different examples"):
        paired_difference(one, evaluation(torch.ones(3), torch.tensor([3, 4, 5])))
    with pytest.raises(InvalidInputError, match="at least 2"):
        paired_difference(evaluation(torch.ones(1), counts[:1]), evaluation(torch.ones(1), counts[:1]))
