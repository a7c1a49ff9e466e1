"""Data on stdout, narration on stderr, and nothing that a name can break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ppdgrow.console import Narrator, format_count, format_flops, format_seconds

ROOT = Path(__file__).parents[2]
HOSTILE = "[red]x[/red] [/] :smile: [bold"
BAR = """
from ppdgrow.console import Narrator
narrator = Narrator({arguments})
with narrator.progress(total=1000, description="training") as bar:
    bar.update(400, loss=4.7, val=None, lr=2e-3, tokens=0)
    bar.update(412, loss=4.61, val=4.58, lr=2e-3, tokens=24576)
    narrator.say("a milestone")
narrator.data("runs/x")
"""


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"} | changes


def python(code: str, **changes: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", code], env=environment(**changes), capture_output=True, timeout=60)


def on_a_terminal(code: str, **changes: str) -> str:
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], env=environment(**changes), stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(master)
    assert process.wait(timeout=60) == 0
    return shown.decode()


def test_each_kind_of_text_goes_to_its_stream(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator()
    narrator.say(f"said {HOSTILE}")
    narrator.warn(f"warned {HOSTILE}")
    narrator.data(f"runs/{HOSTILE}")
    narrator.document({"not": "shown"})
    out, err = capsys.readouterr()
    assert out == f"runs/{HOSTILE}\n"
    assert err == f"said {HOSTILE}\nwarning: warned {HOSTILE}\n"


def test_quiet_keeps_warnings_and_data(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(quiet=True)
    narrator.say("no")
    narrator.warn("yes")
    narrator.data("yes")
    out, err = capsys.readouterr()
    assert (out, err) == ("yes\n", "warning: yes\n")


def test_json_leaves_one_document_and_an_empty_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(json=True)
    narrator.say("no")
    narrator.warn("no")
    narrator.data("no")
    narrator.table([["no"]])
    narrator.document({"schema": 1, "name": "été"})
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": 1, "name": "été"}
    assert out.isascii()
    assert out.count("\n") == 1
    assert err == ""


def test_a_document_never_holds_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        Narrator(json=True).document({"loss": float("nan")})


def test_a_table_is_aligned_by_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["layers", "6", "12"], ["validation loss", "4.213", "4.2", "the same"]]
    Narrator().table(rows, header=["", "before", "after"], align="lrrl")
    assert capsys.readouterr().out.splitlines() == [
        "                  before   after",
        "layers                 6      12",
        "validation loss    4.213     4.2   the same",
    ]


def test_a_table_is_never_cropped_wrapped_or_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    row = [HOSTILE, "x" * 500, "words " * 100 + "end", "\x1b[31m"]
    Narrator().table([row, ["short"]])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert not [cell for cell in (*row[:3], "\\x1b[31m") if cell not in lines[0]]
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)


def test_control_characters_of_a_name_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Narrator().say("a\x1b]0;title\x07\x9b\r")
    assert capsys.readouterr().err == "a\\x1b]0;title\\x07\\x9b\\x0d\n"


def test_the_bar_shows_figures_on_a_terminal() -> None:
    shown = on_a_terminal(BAR.format(arguments=""))
    for piece in ("training", "412/1000", "loss 4.61", "val 4.58", "lr 2.0e-03", "tok/s", "left", "runs/x"):
        assert piece in shown
    assert shown.count("a milestone") == 1, "what is said stays, above the bar"


@pytest.mark.parametrize(("arguments", "changes"), [("quiet=True", {}), ("json=True", {}), ("", {"TERM": "dumb"})])
def test_no_bar_where_it_is_not_wanted(arguments: str, changes: dict[str, str]) -> None:
    shown = on_a_terminal(BAR.format(arguments=arguments), **changes)
    assert "412/1000" not in shown
    assert ("a milestone" in shown) == (arguments == "")


def test_no_bar_in_a_log_file_even_if_colour_is_forced() -> None:
    result = python(BAR.format(arguments=""), FORCE_COLOR="1")
    assert (result.stdout, result.stderr) == (b"runs/x\n", b"a milestone\n")


def test_data_goes_to_stdout_while_a_bar_is_up(tmp_path: Path) -> None:
    code = f"""
import sys
from ppdgrow.console import Narrator
sys.stdout = open({str(tmp_path / "out")!r}, "w")
narrator = Narrator()
with narrator.progress(total=2, description="training") as bar:
    narrator.data("runs/x")
"""
    assert "runs/x" not in on_a_terminal(code)
    assert (tmp_path / "out").read_text() == "runs/x\n"


@pytest.mark.parametrize("width", ["20", "40"])
def test_a_narrow_terminal_crops_the_bar_to_one_line(width: str) -> None:
    shown = on_a_terminal(BAR.format(arguments=""), COLUMNS=width, NO_COLOR="1")
    assert "412/1000" in shown
    assert "tok/s" not in shown


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_any_name_can_be_shown_on_any_terminal(encoding: str) -> None:
    code = (
        "from ppdgrow.console import Narrator, prepare_streams; prepare_streams(); n = Narrator();"
        r"n.say('\u4e2d'); n.data('\u4e2d\udcff'); n.table([['\u4e2d']])"
    )
    result = python(code, PYTHONIOENCODING=encoding)
    assert result.returncode == 0
    assert result.stderr == b"\\u4e2d\n"
    assert result.stdout == b"\\u4e2d\\udcff\n\\u4e2d\n"


NARRATION = (
    "from ppdgrow.console import Narrator; n = Narrator(); n.say('s'); n.table([['t']]); n.data('d'); n.say('s')"
)


def test_a_full_disk_under_the_data_is_a_storage_error() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    code = (
        "import sys; from ppdgrow.console import Narrator; from ppdgrow.errors import StorageError; n = Narrator()\n"
        "sys.stdout = open('/dev/full', 'w')\n"
        "try: n.data('d')\n"
        "except StorageError as error: sys.exit(error.exit_code)"
    )
    result = python(code)
    assert (result.returncode, result.stderr) == (6, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("redirect", [">&-", "2>&-", "2>/dev/full", "| true", "2>&1 >/dev/null | true"])
def test_a_reader_that_leaves_is_no_failure(tmp_path: Path, redirect: str, unbuffered: str) -> None:
    if "/dev/full" in redirect and not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    # The reader is gone by the time of the first write.
    before = "sleep 0.3; " if "|" in redirect else ""
    script = f'{{ {before}"$0" -c "$1"; echo $? >"$2"; }} {redirect}'
    result = subprocess.run(
        ["sh", "-c", script, sys.executable, NARRATION, str(tmp_path / "code")],
        env=environment(PYTHONUNBUFFERED=unbuffered),
        capture_output=True,
        timeout=60,
    )
    assert (tmp_path / "code").read_text() == "0\n"
    assert b"Traceback" not in result.stderr
    assert b"Broken" not in result.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1500, "1.5 k"),
        (999_600, "1 M"),
        (2_300_000, "2.3 M"),
        (2_050_000, "2.05 M"),
        (7e10, "70 B"),
    ],
)
def test_counts(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("flops", "text"), [(512, "512 FLOP"), (13.9e6, "13.9 MFLOP"), (17.1e12, "17.1 TFLOP"), (5e27, "5000000 ZFLOP")]
)
def test_flops(flops: float, text: str) -> None:
    assert format_flops(flops) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (8.44, "8.4 s"),
        (9.99, "10 s"),
        (59.7, "1 m 0 s"),
        (111, "1 m 51 s"),
        (7385, "2 h 3 m 5 s"),
        (100800, "1 d 4 h 0 m"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_lines_above_the_bar_are_live_and_vanish_with_it() -> None:
    code = BAR.format(arguments="").replace(
        "    bar.update(412", '    bar.show(lambda: "layers\\n 4 |  ===\\n[bold]x\\x1b[2J")\n    bar.update(412'
    )
    shown = on_a_terminal(code)
    assert " 4 |  ===" in shown
    assert "[bold]x\\x1b[2J" in shown, "no markup, and control characters as text"
    assert shown.rstrip().endswith("runs/x")
    assert " 4 |  ===" not in python(code).stderr.decode()
