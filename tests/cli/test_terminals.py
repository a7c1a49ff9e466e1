"""Terminals of 20 to 200 columns, three encodings, with and without colour, and pipes: nothing breaks."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pseudo_terminals import SEQUENCE, colours, environment, piped, screen, terminal
from rich.cells import cell_len

from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.console.tables import wrap_words

WIDTHS = [20, 40, 80, 200]
ENCODINGS = ["ascii", "cp1252", "utf-8"]
MODES: dict[str, dict[str, Any]] = {"plain": {}, "no colour": {"NO_COLOR": "1"}, "dumb": {"TERM": "dumb"}}

LONG = "/a/place/that/is/much-too-long-for-one-line/of-a-narrow/terminal/step-00000010"
NAME = "caf\xe9 \u4e2d\u6587 [red]x[/red] [/] a\nb"
SPOKEN = f"""
import sys
from ppdgrow.console import Narrator, prepare_streams, report_error
prepare_streams()
name, path = {NAME!r}, {LONG!r}
narrator = Narrator()
narrator.say(f"the run {{name}} goes on from the checkpoint {{path}} at the rate that it had")
narrator.warn("one-seed-of-each-arm is a hint, not evidence: run at least three of them")
with narrator.progress(total=1000, description="training") as bar:
    bar.show(lambda: "layers\\n 4 |  ===")
    bar.update(400, loss=4.7, val=None, lr=2e-3, tokens=0)
    narrator.say("half of it is done by now")
    bar.update(412, loss=4.61, val=4.58, lr=2e-3, tokens=24576)
narrator.table([["layers", "6", "12"], [name, "4.213077", path]], header=["", "before", "after"])
narrator.data(path)
report_error(f"{{name}} is not a run", 4, as_json=False)
"""
TINY = (
    "--layers 2 --width 16 --steps 6 -o model.heads=2 -o data.sequence_length=16 -o train.batch_size=4 "
    "-o train.eval_batches=2 -o train.warmup_steps=2"
)


def in_encoding(text: str, encoding: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("width", WIDTHS)
def test_everything_that_a_narrator_shows(width: int, encoding: str, mode: str) -> None:
    shown = terminal("-c", SPOKEN, width=width, encoding=encoding, **MODES[mode])
    assert shown.code == 0, shown.out
    assert "Traceback" not in shown.out
    if mode == "dumb":
        assert "\x1b" not in shown.out
    assert bool(colours(shown.out)) == (mode == "plain")
    text = SEQUENCE.sub("", shown.out)
    # The path is one piece wherever it stands: narration, table, data.
    assert text.count(LONG) == 3
    for word in (
        "one-seed-of-each-arm",
        "checkpoint",
        "evidence:",
        "[red]x[/red]",
        in_encoding("\u4e2d\u6587", encoding),
    ):
        assert word in text
    assert ("412/1000" in text) == (mode != "dumb")

    final = screen(shown.out, width)
    assert not [line for line in final if "412/1000" in line or "4 |" in line], "the bar leaves nothing behind"
    warned = final[begins(final, "warning:") : begins(final, "half")]
    assert " ".join(warned) == ("warning: one-seed-of-each-arm is a hint, not evidence: run at least three of them")
    assert max(map(len, warned)) <= width


def begins(lines: list[str], word: str) -> int:
    return next(number for number, line in enumerate(lines) if line.startswith(word))


def test_control_the_screen_sees_a_bar_that_stays() -> None:
    shown = "said\r\n\x1b[?25ltraining 400/1000\r\x1b[2Kdone\r\n"
    assert screen(shown, 40) == ["said", "done", ""]
    assert screen(shown.replace("\x1b[2K", ""), 40) == ["said", "donening 400/1000", ""]
    assert screen("a\r\nb\r\n\x1b[1A\x1b[2K\x1b[1A\x1b[2Kc", 9) == ["c", "", ""]
    assert screen("\u4e2d\u6587x", 4) == ["\u4e2d\u6587", "x"]


@pytest.mark.parametrize("force", [{}, {"FORCE_COLOR": "1"}, {"FORCE_COLOR": "1", "COLUMNS": "20"}])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_pipe_gets_one_line_for_each_message_and_no_escape_codes(encoding: str, force: dict[str, Any]) -> None:
    shown = piped("-c", SPOKEN, encoding=encoding, **force)
    assert shown.code == 0
    assert "\x1b" not in shown.out + shown.err
    assert [line.split()[0] for line in shown.err.splitlines()] == ["the", "b", "warning:", "half", "error:", "b"]
    assert shown.out.splitlines()[-1] == LONG
    assert len([line for line in shown.out.splitlines() if "layers" in line]) == 1


@pytest.mark.parametrize("columns", ["0", "1", "abc", "-5", "\xb2", "\u0663", "999999999", "9" * 5000])
def test_a_broken_size_of_the_terminal_is_no_failure(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = terminal("-c", SPOKEN, width=80, COLUMNS=columns, LINES=columns)
    assert shown.code == 0, shown.out
    text = SEQUENCE.sub("", shown.out)
    assert "warning:" in text
    assert text.count(LONG) == 3
    monkeypatch.setenv("COLUMNS", columns)
    assert run(build_app(), ["grow", "--help"]) == 0
    assert "Example:" in capsys.readouterr().out


@functools.cache
def plain_help(command: str) -> str:
    return piped("-m", "ppdgrow", *command.split(), "--help", COLUMNS="80").out


@pytest.mark.parametrize(("width", "mode"), [*((width, "plain") for width in WIDTHS), (20, "no colour"), (20, "dumb")])
def test_help_is_readable(width: int, mode: str) -> None:
    shown = terminal("-m", "ppdgrow", "grow", "--help", width=width, encoding="ascii", **MODES[mode])
    assert shown.code == 0
    assert shown.out.isascii()
    assert "\x1b" not in shown.out
    assert_readable(shown.out.replace("\r\n", "\n"), plain_help("grow"), width)


@pytest.mark.parametrize("width", [20, 35, 51, 60, 200])
@pytest.mark.parametrize("command", ["", "probe", "compare"])
def test_help_of_the_others_is_readable(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(build_app(), [*command.split(), "--help"]) == 0
    assert_readable(capsys.readouterr().out, plain_help(command), width)


def test_control_a_word_that_is_cut_is_seen() -> None:
    whole = plain_help("probe")
    with pytest.raises(AssertionError):
        assert_readable(whole.replace("checkpoint", "check\npoint", 1), whole, 80)


def assert_readable(found: str, whole: str, width: int) -> None:
    """The same words as at 80 columns, none cut but at a hyphen, and lines that fit (but for words that do not)."""
    assert words(found) == words(whole)
    for line in found[: found.index("Example:")].splitlines():
        assert len(line) <= min(width, 80) or len(line.split()) <= 3, line


def words(page: str) -> list[str]:
    return re.sub(r"[\s-]+", " ", page).split()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_error_with_a_hostile_name(encoding: str, mode: str) -> None:
    arguments = ("-m", "ppdgrow", "probe", "x", "--device", NAME)
    shown = terminal(*arguments, width=40, encoding=encoding, PYTHONUTF8="1", **MODES[mode])
    assert shown.code == 2
    text = SEQUENCE.sub("", shown.out)
    assert text.startswith("error: ")
    assert "Traceback" not in text
    assert "[red]x[/red]" in text
    assert in_encoding("\u4e2d\u6587", encoding) in text
    assert max(map(cell_len, text.splitlines())) <= 40
    assert bool(colours(shown.out)) == (mode == "plain")
    if mode == "plain":  # the document is not wrapped
        document = json.loads(terminal(*arguments, "--json", width=20, encoding=encoding, PYTHONUTF8="1").out)
        assert "\u4e2d\u6587" in document["error"]


# Several commands in one process: torch is imported once.
COMMANDS = """
import sys
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
for line in {lines!r}:
    code = run(build_app(), line)
    if code:
        sys.exit(f"{{line}}: exit code {{code}}")
"""


def test_the_commands_on_terminals_and_in_pipes(tmp_path: Path) -> None:
    grown = "r/\xe9 [b]"
    train = ["train", *TINY.split(), "--out"]
    shown = terminal("-m", "ppdgrow", *train, "r/a", width=20, cwd=tmp_path)
    assert shown.code == 0, shown.out
    assert "\x1b[2K" in shown.out, "there was a bar"
    final = screen(shown.out, 20)
    assert [line for line in final if line][-1] == "r/a"
    assert not [line for line in final if line.startswith("training")], "the bar leaves nothing behind"
    assert "step 6/6  train loss" in final, "evaluations stay above the bar"
    assert " ".join(final).startswith("run folder r/a, steps 1 to 6"), "what was being done has left no line"
    for doing in ("importing torch ..", "reading stdlib .."):
        assert doing in SEQUENCE.sub("", shown.out).replace("\r\n", " ")

    grow, probe, compare = ["grow", "r/a", "--out", grown], ["probe", grown], ["compare", "r/a", grown]
    code = COMMANDS.format(lines=[grow, probe, compare])
    shown = terminal("-c", code, width=40, encoding="ascii", cwd=tmp_path, TERM="dumb", PYTHONUTF8="1")
    assert shown.code == 0, shown.out
    assert "\x1b" not in shown.out
    lines = shown.out.splitlines()
    assert "r/\\xe9 [b]" in lines
    assert any("validation loss" in line and line.endswith("identical to the last bit") for line in lines)
    assert any(line.startswith("all 1 tied pairs") for line in lines)
    assert any("\\xe9 [b]" in line for line in lines[lines.index("r/\\xe9 [b]") + 1 :])

    code = COMMANDS.format(lines=[[*train, "r/b"], [*compare, "--json"], ["probe", "r/a", "--json"]])
    shown = piped("-c", code, encoding="cp1252", cwd=tmp_path, FORCE_COLOR="1", COLUMNS="20", PYTHONUTF8="1")
    assert shown.code == 0, shown.err
    assert "\x1b" not in shown.out + shown.err
    path, *documents = shown.out.splitlines()
    assert path == "r/b"
    assert [json.loads(document)["schema"] for document in documents] == [1, 1]


INTERRUPTED = """
import os, signal, sys
from ppdgrow.data.batches import Batches
draw = Batches.at
def at(batches, step):
    if step == 8:
        os.kill(os.getpid(), signal.SIGINT)
    return draw(batches, step)
Batches.at = at
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
sys.exit(run(build_app(), sys.argv[1:]))
"""


def test_an_interrupted_run_leaves_its_losses_on_the_terminal(tmp_path: Path) -> None:
    arguments = ["train", *TINY.split(), "--steps", "20", "-o", "train.eval_every=5", "--out", "r"]
    shown = terminal("-c", INTERRUPTED, *arguments, width=100, cwd=tmp_path)
    assert shown.code == 130, shown.out
    *_, evaluated, last, error = [line for line in screen(shown.out, 100) if line]
    assert re.fullmatch(r"step 5/20  train loss \d\.\d{4}  val loss \d\.\d{4}  lr 2\.0e-03  \d+ s", evaluated)
    assert re.fullmatch(r"step 8/20  train loss \d\.\d{4}  lr 2\.0e-03  \d+ s", last)
    assert error.startswith("error: interrupted at step 8, which is saved")


STATUS = """
import sys
from ppdgrow.console import Narrator, report_error
narrator = Narrator({arguments})
try:
    with narrator.status("reading the data"):
        narrator.now("training the tokenizer\\n\\x1b[2J, which has a very long name")
        narrator.warn("a warning")
        with narrator.progress(2, "training") as bar:
            narrator.now("not beside a bar")
            bar.update(1)
        narrator.now("not after it")
        raise ValueError
except ValueError:
    report_error("failed", 4, as_json=False)
"""


def test_what_is_being_done_is_shown_on_a_terminal_and_vanishes() -> None:
    shown = terminal("-c", STATUS.format(arguments=""), width=30)
    assert "reading the data .." in shown.out
    assert shown.out.count("training the tokenizer\r") == 2, "again below the warning"
    assert [line for line in screen(shown.out, 30) if line] == ["warning: a warning", "error: failed"]
    assert "beside" not in shown.out
    assert "after" not in shown.out
    for quiet in (
        terminal("-c", STATUS.format(arguments=""), width=30, TERM="dumb").out,
        terminal("-c", STATUS.format(arguments="quiet=True"), width=30).out,
        piped("-c", STATUS.format(arguments="")).err,
    ):
        lines = SEQUENCE.sub("", quiet).splitlines()
        assert lines == ["warning: a warning", "error: failed"]


@pytest.mark.parametrize("redirect", ["| true", ">&-", "2>&-", ">&- 2>&- <&-", "2>/dev/full"])
@pytest.mark.parametrize("arguments", ["--help", "grow --help", "--version"])
def test_help_without_a_reader_is_no_failure(tmp_path: Path, arguments: str, redirect: str) -> None:
    if "/dev/full" in redirect and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    before = "sleep 0.2; " if "|" in redirect else ""
    script = f'{{ {before}"$0" -m ppdgrow {arguments}; echo $? >code; }} {redirect}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable], env=environment("utf-8"), capture_output=True, cwd=tmp_path, timeout=60
    )
    assert (tmp_path / "code").read_text() == "0\n"
    assert done.stderr == b""


def test_a_run_outlives_its_terminal(tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    code = """
import sys
from ppdgrow.console import Narrator
with Narrator().progress(total=9, description="training") as bar:
    bar.update(1)
    sys.stdin.readline()
    bar.update(2)
Narrator().say("said")
print("done")
"""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment("utf-8"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=slave,
    )
    os.close(slave)
    assert os.read(master, 1), "the bar is there"
    os.close(master)
    out, _ = process.communicate(b"\n", timeout=60)
    assert (process.returncode, out) == (0, b"done\n")


def test_words_are_wrapped_whole() -> None:
    assert wrap_words("a bb ccc", 4) == "a bb\nccc"
    assert wrap_words(f"see {LONG} there", 20) == f"see\n{LONG}\nthere"
    assert wrap_words("  one  two\n\n three ", 9) == "  one\ntwo\n\n three"
    assert wrap_words("\u4e2d\u6587 \u4e2d\u6587", 8) == "\u4e2d\u6587\n\u4e2d\u6587", "wide characters count twice"
    assert wrap_words("\u4e2d\u6587 \u4e2d\u6587", 9) == "\u4e2d\u6587 \u4e2d\u6587"
