"""Whether growing paid: the criterion, its doubt and the command of the control, in verdict, JSON, page and picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import Command
from synthetic_runs import growth, trial, write_run

from ppdgrow.comparison.compare import compare_runs
from ppdgrow.comparison.criteria import PAYS
from ppdgrow.comparison.plot import draw_comparison
from ppdgrow.comparison.report import report_page
from ppdgrow.comparison.tables import verdict_lines
from ppdgrow.config.state import Cost

TOKENS_PER_STEP = 64  # of the recipe of the synthetic runs
SHALLOW = 1e9  # FLOPs of a step
DEEP = 2e9


def baseline(folder: Path, **changes: Any) -> Path:
    return write_run(folder / "baseline", {50: 3.0, 100: 2.0}, layers=4, flops=DEEP, **changes)


def grown(folder: Path, loss: float = 1.95, name: str = "grown", **changes: Any) -> Path:
    """2 layers for 50 steps, then 4 for 50."""
    per_token = round(SHALLOW / 3 / TOKENS_PER_STEP)
    event = growth(50, 2.8, 2.8, flops_per_token_before=per_token, parent=None)
    losses = {50: 2.8, 100: loss}
    return write_run(folder / name, losses, layers=4, flops=1.5e9, seconds=0.7, events=[event], **changes)


def control(folder: Path, loss: float, *, steps: int = 150, name: str = "control", **changes: Any) -> Path:
    """2 layers, trained for as many FLOPs as the grown run."""
    return write_run(folder / name, {75: 2.6, steps: loss}, layers=2, flops=SHALLOW, **changes)


def test_accept_without_a_control_says_that_nobody_knows_whether_growing_paid(tmp_path: Path, ppdgrow: Command) -> None:
    baseline(tmp_path), grown(tmp_path)
    found = ppdgrow("compare baseline grown")
    (verdict,) = (line for line in found.stdout.splitlines() if line.startswith("verdict:"))
    doubt = "whether growing paid is not known: there is no ungrown control"
    assert verdict == f"verdict: accept by 5 of 5 criteria against baseline; {doubt}"
    (command,) = (line for line in found.stderr.splitlines() if "-control" in line and " train " in line)
    assert command.split()[1:] == [
        *("train", "--recipe", "grown/recipe.yaml", "--layers", "2", "--steps", "150"),
        *("--out", "grown-control"),
    ]
    document = ppdgrow("compare baseline grown --json").document
    assert [document["verdict"], document["pays"], document["compute_gain"]] == ["accept", "not judged", None]


def test_the_same_with_a_control_that_is_as_good_is_a_reject(tmp_path: Path, ppdgrow: Command) -> None:
    baseline(tmp_path), control(tmp_path, 1.94), grown(tmp_path)
    found = ppdgrow("compare baseline control grown")
    (verdict,) = (line for line in found.stdout.splitlines() if line.startswith("verdict:"))
    assert verdict.startswith("verdict: reject, 5 of 6 criteria against baseline passed; growing did not pay")
    assert "-control" not in found.stderr
    document = ppdgrow("compare baseline control grown --json").document
    assert [document["verdict"], document["pays"]] == ["reject", "no"]
    (criterion,) = (one for one in document["criteria"] if one["name"] == PAYS)
    assert criterion["value"] == pytest.approx(0.01)
    assert [criterion["run"], criterion["passed"], criterion["bound"]] == ["grown", False, 0.0]


def test_a_worse_control_is_an_accept_with_its_gain(tmp_path: Path, ppdgrow: Command) -> None:
    baseline(tmp_path), control(tmp_path, 2.05), grown(tmp_path, 1.95), grown(tmp_path, 2.01, "above")
    document = ppdgrow("compare baseline control grown --json").document
    assert [document["verdict"], document["pays"]] == ["accept", "yes"]
    assert document["compute_gain"] is None, "below every ungrown run nothing is extrapolated"
    # A front from 2.05 for 150 GFLOP to 2.0 for 200: 2.01 is 4 / 5 of the way, on the logarithm.
    document = ppdgrow("compare baseline control above --json").document
    assert [document["pays"], document["compute_gain"]] == ["yes", pytest.approx((200 / 150) ** 0.8)]
    assert document["arms"][2]["front_difference"]["mean"] == pytest.approx(-0.04)


def test_the_interval_over_seeds_decides(tmp_path: Path) -> None:
    noise = (0.0, 0.02, -0.02)

    def arms(gains: tuple[float, ...]) -> list[Path]:
        folder = tmp_path / str(gains)
        for seed, (shift, gain) in enumerate(zip(noise, gains, strict=True)):
            baseline(folder / "b", seed=seed).rename(folder / "b" / f"seed-{seed}")
            control(folder / "c", 2.0 + shift, name=f"seed-{seed}", seed=seed)
            grown(folder / "g", 2.0 + shift - gain, name=f"seed-{seed}", seed=seed)
        return [folder / name for name in "bcg"]

    clear, unclear = compare_runs(arms((0.05, 0.06, 0.04))), compare_runs(arms((0.05, 0.1, -0.01)))
    assert [clear.pays, unclear.pays] == ["yes", "no"]
    (judged,) = (one for one in clear.criteria if one.name == PAYS and one.run == clear.grown[0].name)
    assert judged.seeds == 3
    assert judged.value == pytest.approx(-0.05)
    assert judged.high is not None
    assert -0.05 < judged.high < 0


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"lr_factor": 1.0, "recipe": {"train.decay": False}}, "there is no ungrown control"),
        ({"layers": 3}, "there is no ungrown control"),
        ({"steps": 20}, "it took more FLOPs than every ungrown run"),
    ],
)
def test_what_is_no_control(tmp_path: Path, changes: dict[str, Any], doubt: str) -> None:
    own = {"layers": 2} | changes
    steps = own.pop("steps", 150)
    runs = [grown(tmp_path), write_run(tmp_path / "other", {steps: 2.0}, flops=SHALLOW, **own)]
    deep = write_run(tmp_path / "baseline", {50: 3.0, 60: 2.1}, layers=4, flops=DEEP)
    comparison = compare_runs([deep, *runs])
    assert comparison.pays == "not judged"
    assert doubt in str(comparison.grown[0].pay_off)
    assert control_is_seen(tmp_path)


def control_is_seen(folder: Path) -> bool:
    """Control: with one, the same runs are judged."""
    return compare_runs([folder / "baseline", control(folder, 2.0), folder / "grown"]).pays != "not judged"


def test_a_grown_run_that_has_not_decayed_is_not_judged(tmp_path: Path) -> None:
    flat: dict[str, Any] = {"lr_factor": 1.0, "recipe": {"train.decay": False}}
    comparison = compare_runs([baseline(tmp_path), control(tmp_path, 2.05), grown(tmp_path, **flat)])
    assert comparison.pays == "not judged"
    pay_off = comparison.grown[0].pay_off
    assert pay_off is not None
    assert pay_off.doubt == "the learning rate of grown is not decayed at the end"
    assert not pay_off.needs_control


def test_a_control_beside_a_grown_arm_does_not_decide(tmp_path: Path) -> None:
    """It has criteria of its own, and fails some; what is judged is the growth."""
    comparison = compare_runs([baseline(tmp_path), control(tmp_path, 2.05), grown(tmp_path)])
    arms = {arm.name: comparison.verdict_on(arm) for arm in comparison.arms}
    assert arms == {"baseline": None, "control": "reject", "grown": "accept"}
    assert comparison.verdict == "accept"
    assert compare_runs([tmp_path / "baseline", tmp_path / "control"]).verdict == "reject", "alone it does"


def test_page_and_picture_show_it(tmp_path: Path) -> None:
    comparison = compare_runs([baseline(tmp_path), grown(tmp_path)])
    text = report_page(comparison, None).markdown()
    assert "## Did growing pay" in text
    assert "ppdgrow train --recipe" in text
    with_control = compare_runs([tmp_path / "baseline", control(tmp_path, 2.05), tmp_path / "grown"])
    assert "ppdgrow train --recipe" not in report_page(with_control, None).markdown().partition("## Every run")[0]
    assert b"training FLOPs in all" in draw_comparison(with_control, "svg")


def test_that_the_front_in_the_picture_is_of_means_is_said(tmp_path: Path) -> None:
    mpl = pytest.importorskip("matplotlib")

    def shown(*names: str) -> tuple[str, str]:
        found = compare_runs([tmp_path / name for name in names])
        with mpl.rc_context({"svg.fonttype": "none"}):
            return draw_comparison(found, "svg").decode(), report_page(found, None).markdown()

    for seed in (0, 1):
        baseline(tmp_path / "b", seed=seed).rename(tmp_path / "b" / f"seed-{seed}")
        control(tmp_path / "c", 2.05, name=f"seed-{seed}", seed=seed)
        grown(tmp_path / "g", name=f"seed-{seed}", seed=seed)
    picture, page = shown("b", "c", "g")
    assert "front of ungrown means (judged by seed)" in picture
    assert "by seed (the picture shows that of the means over seeds). Against" in page
    picture, page = shown("b/seed-0", "c/seed-0", "g/seed-0")
    assert ">front of ungrown runs<" in picture, "control"
    assert "of the means" not in picture + page.partition("## Cost")[0]


def test_of_many_grown_arms_the_verdict_counts(tmp_path: Path) -> None:
    def line(*names: str) -> str:
        return verdict_lines(compare_runs([tmp_path / name for name in ("baseline", "control", *names)]))[0]

    (
        baseline(tmp_path),
        control(tmp_path, 2.05),
        grown(tmp_path),
        grown(tmp_path, 2.2, "worse"),
        grown(tmp_path, 1.9, "b"),
    )
    flat: dict[str, Any] = {"lr_factor": 1.0, "recipe": {"train.decay": False}}
    grown(tmp_path, 1.9, "flat", **flat)
    assert line("grown", "worse").endswith(
        "grown: growing paid against ungrown training; worse: growing did not pay against ungrown training"
    )
    assert line("grown", "worse", "b").endswith("growing paid against ungrown training in 2 of 3 grown arms")
    assert line("grown", "worse", "flat").endswith(
        "in 1 of 3 grown arms, of 1 it is not known: the learning rate of flat is not decayed at the end"
    )


def doubt_of(*paths: Path) -> str:
    pay_off = compare_runs(list(paths)).grown[0].pay_off
    assert pay_off is not None
    return pay_off.doubt


def test_a_control_of_far_fewer_flops_does_not_show_that_it_paid(tmp_path: Path) -> None:
    """Between two distant runs the front is a line, above what runs between them would end at."""
    deep, far, own = baseline(tmp_path), control(tmp_path, 2.5, steps=60), grown(tmp_path, 1.99)
    assert doubt_of(deep, far, own) == "no ungrown control took about as many FLOPs"
    assert compare_runs([deep, far, grown(tmp_path, 2.4, "worse")]).pays == "no", (
        "that it did not pay is sure all the same"
    )
    assert doubt_of(deep, far, control(tmp_path, 2.05, name="near"), own) == ""


def test_a_cheaper_run_that_ends_lower_says_that_it_did_not_pay(tmp_path: Path) -> None:
    cheap = control(tmp_path, 1.9, steps=100)
    assert compare_runs([cheap, grown(tmp_path)]).pays == "no"
    assert doubt_of(cheap, grown(tmp_path, 1.85, "lower")) == "it took more FLOPs than every ungrown run"


def test_every_seed_needs_a_control(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / "b" / f"seed-{seed}", {100: 2.0}, layers=4, flops=DEEP, seed=seed)
        grown(tmp_path / "g", name=f"seed-{seed}", seed=seed)
    control(tmp_path / "c", 2.05, name="seed-0", seed=0)
    folders = [tmp_path / name for name in "bcg"]
    assert doubt_of(*folders) == "1 of 2 seeds have an ungrown control"
    control(tmp_path / "c", 2.05, name="seed-1", seed=1)
    assert doubt_of(*folders) == "", "control"


def test_a_run_that_tried_growths_is_no_control(tmp_path: Path) -> None:
    tried = control(tmp_path, 2.05, trials=Cost(flops=10, tokens=1, seconds=1.0))
    assert doubt_of(baseline(tmp_path), tried, grown(tmp_path)) == "there is no ungrown control"


def test_a_control_of_another_seed_is_said(tmp_path: Path) -> None:
    comparison = compare_runs([baseline(tmp_path), control(tmp_path, 2.05, seed=3), grown(tmp_path)])
    (criterion,) = (one for one in comparison.criteria if one.name == PAYS)
    assert criterion.note == "against ungrown runs of another seed; one seed: no interval"


def tried(folder: Path, decision: str = "reject", name: str = "tried", **changes: Any) -> Path:
    """2 layers for 100 steps, with a trial that cost a quarter of that beside it."""
    cost = {"tokens": 1, "flops": round(25 * SHALLOW)}
    *inserted, decided = trial("1.1", 50, 60, decision)
    events = [*inserted, decided | {"cost": cost, "timing": {"seconds": 1.0}}]
    spent = Cost(tokens=1, flops=cost["flops"], seconds=1.0)
    return write_run(folder / name, {50: 2.8, 100: 1.95}, flops=SHALLOW, events=events, trials=spent, **changes)


def test_growing_in_vain_did_not_pay(tmp_path: Path, ppdgrow: Command) -> None:
    """But for its trials the run is its own control: the same loss, to be had for 100 of 125 GFLOP."""
    baseline(tmp_path), tried(tmp_path)
    found = ppdgrow("compare baseline tried")
    (verdict,) = (line for line in found.stdout.splitlines() if line.startswith("verdict:"))
    assert verdict.endswith(
        "growing did not pay against ungrown training (compute gain 0.80): all trials were rejected"
    )
    assert verdict.startswith("verdict: reject")
    assert "-control" not in found.stderr, "none is needed"
    document = ppdgrow("compare baseline tried --json").document
    assert [document["pays"], document["compute_gain"]] == ["no", pytest.approx(0.8)]
    (criterion,) = (one for one in document["criteria"] if one["name"] == PAYS)
    assert [criterion["passed"], criterion["value"]] == [False, 0.0]
    assert criterion["note"] == "all trials were rejected; one seed: no interval"

    control(tmp_path, 1.9, steps=90)
    document = ppdgrow("compare baseline control tried --json").document
    assert document["arms"][2]["front_difference"]["mean"] == pytest.approx(0.05), "a better control counts"
    tried(tmp_path, "accept", "kept")
    assert "rejected" not in verdict_lines(compare_runs([tmp_path / "baseline", tmp_path / "kept"]))[0], "control"


def test_of_an_arm_the_seeds_that_grew_in_vain_count_too(tmp_path: Path) -> None:
    for seed in (0, 1):
        baseline(tmp_path / "b", seed=seed).rename(tmp_path / "b" / f"seed-{seed}")
    control(tmp_path / "c", 2.05, name="seed-0", seed=0)
    grown(tmp_path / "g", 1.95, name="seed-0", seed=0)
    tried(tmp_path / "g", name="seed-1", seed=1)
    comparison = compare_runs([tmp_path / name for name in "bcg"])
    (arm,) = comparison.grown
    assert arm.pay_off is not None
    assert arm.pay_off.difference is not None
    assert arm.pay_off.difference.mean == pytest.approx((-0.1 + 0.0) / 2)
    assert verdict_lines(comparison)[0].endswith(
        "did not pay against ungrown training: all trials of 1 of 2 seeds were rejected"
    )
