"""When a run grows: a pure function of recipe, step, decisions and losses."""

from __future__ import annotations

from typing import Any

import pytest

from ppdgrow.config.architecture import TokenInput, new_architecture
from ppdgrow.config.growth import GrowthConfig
from ppdgrow.config.schema import ModelConfig, Recipe
from ppdgrow.errors import ConfigError
from ppdgrow.training.growth_schedule import GrowthSchedule, is_plateau, planned_growths, requests_of

MODEL = new_architecture(
    ModelConfig(layers=2, width=16, heads=2), "lm", TokenInput(vocabulary_size=8, sequence_length=8)
)
NONE: frozenset[int] = frozenset()


def entry(at: int | str, steps: int = 10, **more: Any) -> GrowthConfig:
    return GrowthConfig.model_validate({"at": at, "trial": {"steps": steps}} | more)


def growth_schedule(*entries: GrowthConfig, first: int = 0, last: int = 100) -> GrowthSchedule:
    return GrowthSchedule(entries, first, last, eval_every=10)


def test_fixed_steps_come_in_their_order_and_then_the_end() -> None:
    plan = growth_schedule(entry(20), entry(50))
    assert (plan.next(0, NONE, []).step, plan.next(0, NONE, []).growth) == (20, None)
    assert plan.next(20, NONE, []).growth == 0
    assert plan.next(30, frozenset({0}), []).step == 50
    assert plan.next(50, frozenset({0}), []).growth == 1
    done = plan.next(60, frozenset({0, 1}), [])
    assert (done.step, done.growth) == (100, None)


@pytest.mark.parametrize(
    ("losses", "patience", "level"),
    [
        ([], 2, False),
        ([3.0, 3.0], 2, False),
        ([3.0, 3.0, 3.0], 2, True),
        ([3.0, 3.1, 2.9], 2, False),
        ([3.0, 2.0, 2.1, 2.2], 2, True),
        ([3.0, 2.0, 2.1, 2.2], 3, False),
        ([3.0, 2.9], 1, False),
        ([3.0, 3.1], 1, True),
    ],
)
def test_a_plateau_is_so_many_evaluations_without_a_new_best(losses: list[float], patience: int, level: bool) -> None:
    assert is_plateau(losses, patience) is level


def test_a_plateau_is_looked_for_at_each_evaluation_as_long_as_a_trial_fits() -> None:
    plan = growth_schedule(entry("plateau", patience=1), entry(60, steps=20))
    assert plan.next(0, NONE, []).step == 10
    assert plan.next(10, NONE, [3.0]).step == 20
    assert plan.next(20, NONE, [3.0, 3.0]).growth == 0
    assert plan.next(50, NONE, [3.0, 2.0, 1.0, 0.5, 0.4, 0.4]).growth == 0, "10 steps fit before step 60"
    late = plan.next(50, NONE, [5.0, 4.0, 3.0, 2.0, 1.0])
    assert (late.step, late.growth) == (60, None)
    ((index, reason),) = late.missed
    assert index == 0
    assert reason.startswith(
        "the validation loss had not levelled off by step 50, the last evaluation that leaves room"
    )


def test_two_plateaus_leave_room_for_both_trials() -> None:
    plan = growth_schedule(entry("plateau", steps=40), entry("plateau", steps=40))
    falling = [9.0, 8.0]
    assert plan.next(10, NONE, falling[:1]).step == 20
    later = plan.next(20, NONE, falling)
    assert [index for index, _ in later.missed] == [0], "a first trial from step 30 would leave no room for the second"
    assert later.step == 30


def test_candidates_take_from_the_entry_what_they_leave_out() -> None:
    tried = requests_of(
        entry(
            5,
            pair="attention",
            scale=0.3,
            candidates=["ffn", "zero", "end", "0,2", {"pairs": 3, "moments": "fresh"}, ["ffn", "attention"]],
        )
    )
    assert [(t.kinds, t.method, t.position, t.pairs, t.moments) for t in tried] == [
        (("ffn",), "pair", "interleave", 1, "copy_v"),
        (("attention",), "zero", "interleave", 1, "copy_v"),
        (("attention",), "pair", "end", 1, "copy_v"),
        (("attention",), "pair", "0,2", 2, "copy_v"),
        (("attention",), "pair", "interleave", 3, "fresh"),
        (("ffn", "attention"), "pair", "interleave", 2, "copy_v"),
    ]
    assert all(t.scale == 0.3 for t in tried)
    (alone,) = requests_of(entry(5, pair="attention,ffn", position=[1, 2]))
    assert (alone.kinds, alone.pairs, alone.position) == (("attention", "ffn"), 2, "1,2")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([entry(95)], "growth[0] needs 10 steps for its trial, from step 95"),
        ([entry(100, steps=1)], "growth[0] needs 1 step for its trial, from step 100"),
        ([entry("plateau", steps=101)], "growth[0] needs 101 steps for its trial, from step 0"),
        ([entry("plateau", steps=60), entry("plateau", steps=60)], "growth[1] needs 60 steps"),
        ([entry(10, position="3")], "growth[0]: position 3 does not exist"),
        ([entry(10, candidates=["ffn", "7"])], "growth[0]: position 7 does not exist"),
    ],
)
def test_what_cannot_be_tried_is_refused_at_the_start(entries: list[GrowthConfig], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned_growths(growth_schedule(*entries), MODEL)
    assert message in str(caught.value)


def test_a_growth_of_the_command_line_is_answered_in_its_words() -> None:
    rotated = entry(10, pair="orthogonal", scale=0.5)
    with pytest.raises(ConfigError, match=r"^--scale 0.5 does nothing to pairs of kind orthogonal"):
        planned_growths(growth_schedule(rotated), MODEL, {"growth[0].at": "--grow-at"})
    with pytest.raises(ConfigError, match=r"^growth\[0\]: scale 0.5 does nothing"):
        planned_growths(growth_schedule(rotated), MODEL, {"growth": "-o"})


def test_a_place_that_an_earlier_growth_makes_is_fine() -> None:
    planned_growths(growth_schedule(entry(10, pairs=2), entry(30, position="4")), MODEL)


def test_growths_must_leave_room_for_each_other() -> None:
    Recipe.model_validate({"growth": [{"at": 10, "trial": {"steps": 20}}, {"at": 30}]})
    with pytest.raises(ValueError, match=r"growth\[1\].at is 29, but the trial of growth\[0\] lasts until step 30"):
        Recipe.model_validate({"growth": [{"at": 10, "trial": {"steps": 20}}, {"at": 29}]})
