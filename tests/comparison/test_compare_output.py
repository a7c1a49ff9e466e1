"""The files of `compare`: curves and pages, whole, self-contained, with nothing in a name taken as markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from command_line import TINY, Command
from synthetic_runs import growth, write_run

from ppdgrow.checkpoint import read_jsonl
from ppdgrow.comparison import plot
from ppdgrow.comparison.compare import Comparison, compare_runs
from ppdgrow.comparison.plot import draw_comparison
from ppdgrow.comparison.report import report_page
from ppdgrow.console.page import Table
from ppdgrow.console.picture import COLOURS
from ppdgrow.training.context import Setting

mpl = pytest.importorskip("matplotlib", reason="pictures are drawn with matplotlib, the extra `plot`")

HOSTILE = "a <script>alert(1)</script> [x](javascript:y) | `b` $z$ \u00e9"
COMMAND = "ppdgrow grow runs/shallow --pair ffn"


def comparison(folder: Path, name: str = "grown") -> Comparison:
    """Two seeds of a baseline and of a grown arm that spikes at its insertion."""
    made = {
        "command": COMMAND,
        "ppdgrow": "0.1.0",
        "commit": "abc123",
        "python": "3.12.1",
        "machine": "Abacus, 2 cores",
    }
    for seed in range(2):
        base = {step: 5.0 - 0.01 * step + 0.01 * seed for step in (10, 20, 40)}
        write_run(folder / "base" / f"seed-{seed}", base, flops=20.0, seed=seed)
        event = growth(20, 4.8, 4.9, provenance=made)
        write_run(folder / name / f"seed-{seed}", {10: 4.9, 20: 4.8, 40: 4.5}, seed=seed, events=[event])
    return compare_runs([folder / "base", folder / name])


class Tags(HTMLParser):
    """Every tag with its attributes, and whether all are closed."""

    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    found = comparison(tmp_path)
    page = report_page(found, draw_comparison(found, "svg")).html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "iframe", "object", "a"} & {tag for tag, _ in tags.found}
    sources = [attributes["src"] for tag, attributes in tags.found if tag == "img"]
    assert len(sources) == 1
    assert (sources[0] or "").startswith("data:image/svg+xml;base64,")
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?:https?:|//)", page)


def test_both_pages_hold_the_figures_every_seed_and_how_they_were_made(tmp_path: Path) -> None:
    found = comparison(tmp_path)
    page = report_page(found, None)
    tags = Tags()
    tags.feed(page.html())
    for text in (tags.text, page.markdown()):
        assert "0.1000" in text, "the jump of the insertion"
        assert text.count("4.5000") >= 2, "the loss of each seed"
        assert f"    {COMMAND}" in text
        for made in ("Abacus, 2 cores", "commit abc123", "3.12.1", "torch 2.14.1"):
            assert made in text
        for criterion in found.criteria:
            assert criterion.name in text
        assert "no arm passed" in text.lower()


def test_names_are_text_and_not_markup(tmp_path: Path) -> None:
    name = HOSTILE.replace("/", ":")
    found = comparison(tmp_path, name)
    page = report_page(found, draw_comparison(found, "svg"))
    tags = Tags()
    tags.feed(page.html())
    assert "script" not in {tag for tag, _ in tags.found}
    assert name in tags.text
    # No Markdown is read within a block of HTML.
    markdown = re.sub(r"<(summary|pre)>.*?</\1>", "", page.markdown(), flags=re.DOTALL)
    for live in (r"(?<!\\)<(?!/?(?:details|summary|pre)>|c)", r"(?<!\\)\]\(", r"(?<!\\)`", r"(?<!\\)\$"):
        assert not re.search(live, markdown), live


def test_markdown_tables_have_rows_of_one_width(tmp_path: Path) -> None:
    text = report_page(comparison(tmp_path, "a|b"), None).markdown()
    for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_the_same_comparison_gives_the_same_bytes(tmp_path: Path) -> None:
    found = comparison(tmp_path)
    first = draw_comparison(found, "svg")
    assert first == draw_comparison(found, "svg")
    assert first.startswith(b"<?xml")
    assert draw_comparison(found, "png").startswith(b"\x89PNG")


def drawn(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that a comparison is drawn into: the losses in the first row of panels, the differences below."""
    kept: list[Any] = []

    def keep(figure: Any, _: str) -> bytes:
        kept.append(figure)
        return b""

    monkeypatch.setattr(plot, "render", keep)
    plot.draw_comparison(comparison, "svg")
    return kept[0]


def test_panels_of_a_column_have_one_range_and_means_end_where_their_seeds_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over wall-clock, where the seeds of an arm end at different times."""
    for arm, pace in (("base", 1.0), ("other", 1.2)):
        for seed in range(3):
            losses = {10: 5.0, 20: 4.5 + 0.1 * seed, 40: 4.0 + 0.1 * seed}
            write_run(tmp_path / arm / f"seed-{seed}", losses, seed=seed, seconds=pace * (1 + 0.2 * seed))
    found = compare_runs([tmp_path / "base", tmp_path / "other"])
    panels = drawn(found, monkeypatch).axes
    for upper, lower, axis in zip(panels[:3], panels[3:6], ("steps", "flops", "seconds"), strict=True):
        assert upper.get_xlim() == lower.get_xlim()
        for line, compared in zip(upper.lines, found.arms, strict=True):
            ends = [
                run.history.step if axis == "steps" else getattr(run.history.state.ledger, axis)
                for run in compared.runs
            ]
            assert line.get_xdata()[-1] == pytest.approx(sum(ends) / 3)
            assert line.get_ydata()[-1] == pytest.approx(fmean(run.validation.loss for run in compared.runs))
    fastest = min(run.history.state.ledger.seconds for run in found.arms[0].runs)
    assert panels[5].lines[-1].get_xdata()[-1] > fastest, "differences too"


def test_the_panel_of_the_front_has_a_point_per_run_and_joins_a_grown_one_to_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_run(tmp_path / "deep", {20: 4.2, 40: 4.0}, flops=20.0)]
    paths.append(write_run(tmp_path / "shallow", {20: 4.3, 40: 4.1}, flops=10.0))
    paths.append(write_run(tmp_path / "grown", {20: 4.3, 40: 3.9}, flops=15.0, events=[growth(20, 4.3, 4.3)]))
    panel = drawn(compare_runs(paths), monkeypatch).axes[6]
    assert panel.get_xscale() == "log"
    lines = [list(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in panel.lines]
    points = [line for line in lines if len(line) == 1]
    assert all([point] in points for point in ((800.0, 4.0), (400.0, 4.1), (600.0, 3.9)))
    assert [(300.0, 4.3), (600.0, 3.9)] in lines, "from where it grew"
    assert [(400.0, 4.1), (800.0, 4.0)] in lines, "the front"


def test_no_two_arms_share_a_colour_or_a_stroke() -> None:
    strokes = [plot._stroke(place) for place in range(1 + 4 * len(COLOURS))]
    assert len({stroke["color"] for stroke in strokes[: 1 + len(COLOURS)]}) == 1 + len(COLOURS) == 13
    assert len({(stroke["color"], stroke["linestyle"]) for stroke in strokes}) == len(strokes)


def test_the_title_counts_the_arms_without_the_baseline_and_verdicts_stand_by_the_names(tmp_path: Path) -> None:
    losses = {"base": 4.2, "a": 4.1, "b": 4.0, "c": 3.9}
    paths = [write_run(tmp_path / name, {20: loss}) for name, loss in losses.items()]
    page = report_page(compare_runs(paths), None)
    assert page.title == "stdlib: 3 arms against base"
    table = next(block for block in page.blocks if isinstance(block, Table))
    assert table.header[:2] == ("arm", "verdict")
    assert [row[:2] for row in table.rows] == [("base", "baseline"), *((name, "reject") for name in "abc")]
    assert report_page(compare_runs(paths[:2]), None).title == "stdlib: a against base"
    assert re.search(r"td:first-child \{ position: sticky", page.html()), "names stay in view where a table scrolls"


def test_the_command_writes_what_it_says(tmp_path: Path, ppdgrow: Command) -> None:
    comparison(tmp_path)
    done = ppdgrow("compare base grown --plot c.svg --report pages.md --report pages.html")
    written, following = done.stderr.splitlines()[:3], done.stderr.splitlines()[3:]
    assert written == ["written: c.svg", "written: pages.md", "written: pages.html"]
    assert following == ["next, see what the blocks of grown/seed-1 do:", "  ppdgrow probe grown/seed-1"]
    assert "](<c.svg>)" in (tmp_path / "pages.md").read_text(encoding="utf-8")
    assert "data:image/svg+xml" in (tmp_path / "pages.html").read_text(encoding="utf-8")
    ppdgrow("compare base grown --report alone.md")
    assert "![" not in (tmp_path / "alone.md").read_text(encoding="utf-8"), "there is no picture to show"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--plot c.pdf", 2, "ends with .svg or .png"),
        ("--report r.txt", 2, "ends with .html or .md"),
        ("--plot no/c.svg", 6, "does not exist"),
        ("--report no/r.md", 6, "does not exist"),
        ("--report r.md --report ./r.md", 2, "named twice"),
        ("--accept --report r.md", 2, "--report with --accept"),
        ("--accept --plot c.svg --test", 2, "--plot and --test with --accept"),
        ("--accept --on stdlib", 2, "--on with --accept"),
        ("--device cpu", 2, "--device without --test or --on DATA"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, ppdgrow: Command, options: str, code: int, said: str
) -> None:
    done = ppdgrow(f"compare nowhere nowhere-else {options}", code=code)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_older_file(
    tmp_path: Path, ppdgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison(tmp_path)
    page = tmp_path / "r.md"
    page.write_text("older")

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ppdgrow.console.picture.replace_file", full)
    assert "No space left" in ppdgrow("compare base grown --report r.md", code=6).stderr
    assert page.read_text() == "older"


def test_the_test_split_is_read_on_demand_only(ppdgrow: Command) -> None:
    for name, layers in (("base", 1), ("other", 2)):
        ppdgrow(f"train --steps 10 --layers {layers} --out {name}", *TINY)
    plain = ppdgrow("compare base other --json").document
    tested = ppdgrow("compare base other --json --test").document
    assert [run["test"] for run in plain["runs"]] == [None, None]
    assert [arm["test_loss"] for arm in plain["arms"]] == [None, None]
    for run, arm in zip(tested["runs"], tested["arms"], strict=True):
        assert run["test"]["loss"] == arm["test_loss"]["mean"]
        assert run["test"]["loss"] != run["validation"]["loss"], "another split"
        assert run["test"]["accuracy"] > 0
    assert tested["criteria"] == plain["criteria"], "it decides nothing"


def test_the_picture_names_every_arm_and_marks_growths_between_evaluations(tmp_path: Path) -> None:
    write_run(tmp_path / "base", {10: 4.9, 40: 4.5})
    write_run(tmp_path / "_hidden", {10: 4.9, 40: 4.6}, events=[growth(20, 4.8, 4.8)])
    with mpl.rc_context({"svg.fonttype": "none"}):
        marked = draw_comparison(compare_runs([tmp_path / "base", tmp_path / "_hidden"]), "svg").decode()
    write_run(tmp_path / "ungrown", {10: 4.9, 40: 4.6})
    with mpl.rc_context({"svg.fonttype": "none"}):
        plain = draw_comparison(compare_runs([tmp_path / "base", tmp_path / "ungrown"]), "svg").decode()
    assert ">_hidden</text>" in marked
    circles = ["fill: #ffffff; stroke" in text for text in (marked, plain)]
    assert circles == [True, False], "open circles where it grew"


def test_the_test_split_is_read_once_per_checkpoint(
    tmp_path: Path, ppdgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("base", "other"):
        ppdgrow(f"train --steps 5 --layers {1 + (name == 'other')} --out {name}", *TINY)
    first = ppdgrow("compare base other --json --test").document
    assert len(read_jsonl(tmp_path / "other" / "test.jsonl")) == 1
    monkeypatch.setattr(Setting, "evaluate_checkpoint", lambda *_, **__: pytest.fail("read again"))
    assert ppdgrow("compare base other --json --test").document["runs"] == first["runs"]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    ppdgrow("train other --steps 5 --out other-on")
    ppdgrow("compare base other-on --test")
    assert not {line["checkpoint_sha256"] for line in read_jsonl(tmp_path / "other-on" / "test.jsonl")} & {
        run["checkpoint_sha256"] for run in first["runs"]
    }, "another checkpoint is another reading"
    (tmp_path / "other" / "test.jsonl").write_text(
        (tmp_path / "other" / "test.jsonl").read_text().replace('"loss"', '"lost"')
    )
    assert "remove the file" in ppdgrow("compare base other --test", code=4).stderr
