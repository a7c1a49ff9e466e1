"""Schedules are pure functions of the step: peak, decay, going on, horizon."""

from __future__ import annotations

import itertools

import pytest

from ppdgrow.config.schema import TrainConfig
from ppdgrow.errors import ConfigError
from ppdgrow.optim.schedule import Schedule, make_schedule


def schedule(first: int = 0, last: int = 1000, initial: float = 0.0, **changes: object) -> Schedule:
    made, _ = make_schedule(TrainConfig.model_validate(changes), first=first, last=last, initial=initial)
    return made


def factors(made: Schedule) -> list[float]:
    return [made.factor(step) for step in range(made.start + 1, made.end + 1)]


@pytest.mark.parametrize("kind", ["wsd", "cosine"])
@pytest.mark.parametrize("decay", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_no_step_has_rate_zero_and_none_exceeds_the_peak(kind: str, decay: bool, steps: int) -> None:
    assert all(0 < factor <= 1 for factor in factors(schedule(last=steps, schedule=kind, decay=decay)))


def test_wsd_rises_stays_and_decays_to_nearly_nothing() -> None:
    values = factors(schedule(warmup_steps=100, decay_fraction=0.3))
    assert values[0] == pytest.approx(0.01)
    assert values[99:700] == [1.0] * 601
    assert values[-1] == pytest.approx(1 / 301)
    assert all(later < earlier for earlier, later in itertools.pairwise(values[700:]))


def test_cosine_is_half_in_the_middle() -> None:
    assert schedule(schedule="cosine", warmup_steps=0).factor(500) == pytest.approx(0.5, abs=2e-3)


def test_no_decay_stays_at_the_peak() -> None:
    assert factors(schedule(decay=False))[100:] == [1.0] * 900


def test_going_on_from_an_undecayed_run_has_no_second_warm_up() -> None:
    assert schedule(first=500, last=1500, initial=1.0).factor(501) == 1.0
    assert schedule(first=500, last=1500, initial=0.2).factor(501) == pytest.approx(0.2 + 0.8 / 100)


@pytest.mark.parametrize("kind", ["wsd", "cosine"])
def test_with_a_horizon_two_parts_are_one_schedule(kind: str) -> None:
    whole = schedule(last=1000, schedule=kind)
    parts = [schedule(0, 400, horizon=1000, schedule=kind), schedule(400, 1000, 0.5, horizon=1000, schedule=kind)]
    assert [parts[step > 400].factor(step) for step in range(1, 1001)] == [
        whole.factor(step) for step in range(1, 1001)
    ]


def test_a_horizon_after_an_undecayed_run_has_no_second_warm_up() -> None:
    assert schedule(first=20, last=25, initial=1.0, horizon=1000).factor(21) == 1.0


def test_a_horizon_before_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1000"):
        schedule(horizon=999)


def test_a_long_warm_up_is_cut_to_a_tenth_and_said_so() -> None:
    made, notes = make_schedule(TrainConfig(warmup_steps=100), first=0, last=200, initial=0.0)
    assert made.warmup_steps == 20
    assert notes == ["warm-up cut from 100 to 20 steps, a tenth of the schedule"]
    assert make_schedule(TrainConfig(warmup_steps=0), first=0, last=200, initial=0.0)[1] == []
