"""Kill -9 at random moments and before every kind of operation on files: nothing is lost, the same command goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from killing import SCENARIOS, Bench, kinds, new_bench, random_kills, windows


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with new_bench(tmp_path_factory.mktemp("kills")) as made:
        yield made


RANDOM = {"train": 6, "progressive": 5, "grow-pair": 4, "resave": 2, "compare": 4}

# A scenario, and the operations before which it is killed, once for each kind.
WINDOWS = {
    "a save": ("train", r"(open|rename) r/checkpoints/\.tmp|fsync r/metrics"),
    "a save of another optimizer": ("muon", r"(open|rename) r/checkpoints/\.tmp"),
    "a prune": ("train", r"(rename|remove|rmdir) r/checkpoints/(step|\.tmp)"),
    "a save of a step that is there": ("resave", r"(remove|rmdir|fsync|open) r/checkpoints/\.tmp"),
    "an evaluation that was interrupted": ("unevaluated", r"open r/metrics"),
    "the card": ("train", r"(open|rename) .* for r/README"),
    "a new run": ("train", r"rename \.tmp-RANDOM -> r "),
    "growing": ("grow-pair", r"rename"),
    "the end of a trial that ends the run": ("trial-last", r"rmdir r/trials"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "progressive" else ()) for n in RANDOM]
)
def test_kills_at_random_moments(bench: Bench, name: str) -> None:
    random_kills(bench, name, RANDOM[name], seed=0)


@pytest.mark.parametrize("name", WINDOWS)
def test_a_kill_within(bench: Bench, name: str) -> None:
    scenario, pattern = WINDOWS[name]
    wrong = windows(bench, scenario, kinds(bench.unbroken(scenario)[0].operations, pattern))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [pytest.param("grow-pair", marks=pytest.mark.slow), "resave"])
def test_control_folders_that_are_written_in_place_are_found_out(bench: Bench, name: str) -> None:
    number = len(bench.unbroken(name)[0].operations)
    assert windows(bench, name, range(4, number, 2), in_place=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_many_kills_at_random_moments(bench: Bench, name: str) -> None:
    random_kills(bench, name, 40 if name in ("train", "progressive") else 16, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_before_each_kind_of_operation(bench: Bench, name: str) -> None:
    wrong = windows(bench, name, kinds(bench.unbroken(name)[0].operations))
    assert not wrong, "\n".join(wrong)
