"""`compare` on terminals of 60 to 120 columns with 2, 4 and 12 arms of long names: nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_runs import growth, write_run

from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.tables import comparison_rows, criteria_matrix, criteria_rows, short_names
from ppdgrow.console import Narrator
from ppdgrow.console.page import Table

STEM = "stdlib-transformer-coupled-6"
WIDTHS = (60, 80, 100, 120)
ARMS = (2, 4, 12)


@pytest.fixture(scope="module", params=ARMS)
def arms(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two seeds each, named by the trainer and not by hand."""
    folder = tmp_path_factory.mktemp("runs")
    for arm in range(request.param):
        for seed in range(2):
            losses = {10: 5.0 - 0.1 * arm, 20: 4.2 - 0.03 * arm + 0.013 * seed, 40: 3.9 - 0.02 * arm - 0.1 * seed * arm}
            write_run(
                folder / f"{STEM}-{'trained-' if arm else ''}{7654321 * arm + 11259375:08x}" / f"seed-{seed}",
                losses,
                seed=seed,
                flops=3e9 * (1 - 0.05 * arm),
                events=[growth(20, losses[20], losses[20])] if arm else [],
            )
    return sorted(folder.iterdir(), key=lambda path: "trained" in path.name)


def shown(comparison: Comparison, width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from ppdgrow.cli.compare import _print_result

    monkeypatch.setattr(Narrator, "width", property(lambda _: width))
    _print_result(comparison, Narrator())


def tables(comparison: Comparison, width: int | None) -> list[Table]:
    many = len(comparison.arms) > 4
    criteria = [criteria_matrix(comparison)] if many else list(criteria_rows(comparison).values())
    return [comparison_rows(comparison, width), *criteria]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_line_fits_and_every_word_is_whole(
    arms: list[Path], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare_runs(arms)
    shown(comparison, width, monkeypatch)
    text = capsys.readouterr().out
    legend = short_names(comparison, width)
    assert set(legend) == {arm.name for arm in comparison.arms}
    assert len(set(legend.values())) == len(arms)
    for line in text.splitlines():
        assert len(line) <= width or line.split()[-1] in legend, line
    for name in legend:
        assert text.count(name) == 1 + sum(name in other for other in legend if other != name), "once, in the legend"
    words = text.split()
    for table in tables(comparison, width):
        for cell in (cell for row in table.rows for cell in row[1:]):
            assert set(cell.split()) <= set(words), cell
    for figure in ("TFLOP", "GFLOP", "s", "k", "%", "pt"):
        assert not [line for line in text.splitlines() if line.split()[:1] == [figure]], "a figure keeps its unit"


def test_a_pipe_gets_whole_names_and_one_line_for_a_row(
    arms: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison = compare_runs(arms)
    shown(comparison, None, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    rows = comparison_rows(comparison).rows
    assert [line.split("  ")[0] for line in lines[1 : 1 + len(rows)]] == [row[0] for row in rows]
    assert all(arm.name in " ".join(lines) for arm in comparison.arms)
    assert max(map(len, lines[1 : 1 + len(rows)])) > 100, "control: a terminal would break it"


def test_arms_stand_beside_each_other_only_where_that_fits(arms: list[Path]) -> None:
    comparison = compare_runs(arms)
    beside = {width: comparison_rows(comparison, width).header[0] == "" for width in (60, 120, 400)}
    assert beside == {60: False, 120: len(arms) == 2, 400: len(arms) <= 4}


def test_names_that_fit_are_left_alone(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, {20: loss}) for name, loss in (("base", 4.1), ("other", 4.0))]
    assert short_names(compare_runs(paths), 60) == {}
    long = write_run(tmp_path / f"base-{'x' * 30}", {20: 3.9})
    assert short_names(compare_runs([*paths, long]), 60) == {long.name: "arm 2"}, "numbered, where nothing is shared"
