"""The frame around every command, on a command made for the purpose: help, errors, exit codes."""

from __future__ import annotations

import errno
import json as jsonlib
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer

from ppdgrow import __version__
from ppdgrow.cli.app import add_command, new_app, run
from ppdgrow.cli.command import parse_path
from ppdgrow.console import Narrator
from ppdgrow.errors import CheckFailedError, ConfigError, InterruptedRunError, InvalidInputError

EXAMPLE = """
  ppdgrow demo runs/a --layers 6 --an-option-that-makes-this-line-longer-than-eighty-columns
  ppdgrow demo runs/b
"""
FAILURES: dict[str, BaseException] = {
    "config": ConfigError("bad [red]key[/red]"),
    "input": InvalidInputError("cut off"),
    "check": CheckFailedError("not the identity"),
    "sigterm": InterruptedRunError("stopped at step 3", 15),
    "interrupt": KeyboardInterrupt(),
    "full": OSError(errno.ENOSPC, "No space left on device", "runs/a"),
    "readonly": OSError(errno.EROFS, "Read-only file system", "runs/a"),
    "rejected": typer.Exit(3),
    "bug": ZeroDivisionError("two\nlines"),
    "end": EOFError(),
}


def demo(
    checkpoint: Annotated[Path, typer.Argument(metavar="CKPT", help="Run folder or checkpoint.")],
    layers: Annotated[int, typer.Option(min=1, help="Depth of the model, in layers.", rich_help_panel="Model")] = 6,
    fail: Annotated[str | None, typer.Option(help="Fail in this way.", rich_help_panel="Model")] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(metavar="auto|cpu|cuda", help="Where.", rich_help_panel="Hardware")
    ] = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="auto|fp32|bf16", help="Type.", rich_help_panel="Hardware")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(parser=parse_path, help="Folder.", rich_help_panel="Data")] = None,
    out: Annotated[Path | None, typer.Option(parser=parse_path, help="Folder.", rich_help_panel="Output")] = None,
    json: Annotated[bool, typer.Option("--json", help="Switch.", rich_help_panel="Output")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Switch.", rich_help_panel="Output")] = False,
) -> None:
    """Show what a command looks like.

    And a second paragraph.
    """
    narrator = Narrator(quiet=quiet, json=json)
    if fail is not None:
        raise FAILURES[fail]
    narrator.say(f"{layers} layers on {device}, {precision}, {data_dir}")
    narrator.data(str(out or checkpoint))
    narrator.document({"schema": 1, "checkpoint": str(checkpoint)})


def other() -> None:
    """Do nothing."""


@pytest.fixture
def app() -> typer.Typer:
    app = new_app(EXAMPLE)
    add_command(app, demo, example=EXAMPLE)
    add_command(app, other, example="ppdgrow other", name="another")
    return app


def test_a_command_runs(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["demo", "runs/a", "--device", "cpu", "--precision", "bf16", "--data-dir", "d"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("runs/a\n", "6 layers on cpu, bf16, d\n")
    assert run(app, ["demo", "runs/a", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (jsonlib.loads(out), err) == ({"schema": 1, "checkpoint": "runs/a"}, "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_help_of_the_program(app: typer.Typer, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(app, arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.isascii()
    assert out.index("Commands:") < out.index("demo") < out.index("another") < out.index("Options:")
    assert "Show what a command looks like." in out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_of_a_command_is_grouped_and_shows_defaults(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert run(app, ["demo", flag]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [line.rstrip(":") for line in lines if line and not line.startswith((" ", "Usage"))]
    assert headings == ["Arguments", "Model", "Hardware", "Data", "Output", "Other", "Example"]
    assert any("--layers" in line and "layers.  [default: 6" in line for line in lines)
    assert any("--device auto|cpu|cuda" in line and "[default: auto]" in line for line in lines)
    assert "  And a second paragraph." in lines
    assert lines[lines.index("Example:") + 1 :] == [line for line in EXAMPLE.splitlines() if line]
    columns = {len(line) - len(line[29:].lstrip()) for line in lines if line.startswith("  --")}
    assert len(columns) == 1


@pytest.mark.parametrize("width", ["20", "50", "80", "200"])
def test_the_help_is_ascii_and_fits(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(app, ["demo", "--help"]) == 0
    out = capsys.readouterr().out
    text = out[: out.index("Example:")]
    assert out.isascii()
    assert "\x1b" not in out
    assert max(map(len, text.splitlines())) <= max(50, min(80, int(width)))


def test_the_version(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--version"]) == 0
    assert capsys.readouterr().out == f"ppdgrow {__version__}\n"


@pytest.mark.parametrize(
    ("failure", "exit_code", "words"),
    [
        ("config", 2, "bad [red]key[/red]"),
        ("input", 4, "cut off"),
        ("check", 7, "not the identity"),
        ("sigterm", 143, "stopped at step 3"),
        ("interrupt", 130, "interrupted"),
        ("end", 130, "interrupted"),
        ("full", 6, "cannot write 'runs/a': No space left on device"),
        ("readonly", 6, "Read-only file system"),
    ],
)
def test_a_failure_is_one_line_or_one_document(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], failure: str, exit_code: int, words: str
) -> None:
    assert run(app, ["demo", "runs/a", "--fail", failure]) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    line = err.splitlines()[-1]
    assert line.startswith("error: ")
    assert words in line
    assert err.strip() == line
    assert run(app, ["demo", "runs/a", "--fail", failure, "--json"]) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    document = jsonlib.loads(err)
    assert document == {"schema": 1, "error": line.removeprefix("error: "), "exit_code": exit_code}


def test_an_outcome_that_is_no_error_has_its_exit_code_and_no_message(
    app: typer.Typer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["demo", "runs/a", "--fail", "rejected"]) == 3
    assert capsys.readouterr() == ("", "")


def test_a_bug_shows_where_and_asks_for_a_report(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["demo", "runs/a", "--fail", "bug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("error: ZeroDivisionError: two lines. This is a bug in ppdgrow")
    assert run(app, ["demo", "runs/a", "--fail", "bug", "--json"]) == 1
    document = jsonlib.loads(capsys.readouterr().err)
    assert document["exit_code"] == 1
    assert "ZeroDivisionError" in document["traceback"]


@pytest.mark.parametrize(
    ("arguments", "words", "hint"),
    [
        (["dem"], "no such command 'dem'. Did you mean 'demo'?", "(see ppdgrow --help)"),
        (["demo"], "missing argument 'CKPT'", "(see ppdgrow demo --help)"),
        (["demo", "a", "b"], "unexpected extra argument(s) (b)", "(see ppdgrow demo --help)"),
        (["demo", "a", "--layrs", "3"], "--layers", "(see ppdgrow demo --help)"),
        (["demo", "a", "--layers"], "--layers", "(see ppdgrow demo --help)"),
        (["demo", "a", "--layers", "x"], "'--layers'", "(see ppdgrow demo --help)"),
        (["demo", "a", "--layers", "0"], "'--layers'", "(see ppdgrow demo --help)"),
        (["demo", "a", "--device", "[red]"], "'[red]' is not one of 'auto', 'cpu', 'cuda'", "demo --help)"),
        (["demo", "a", "--out="], "'--out': the path is empty", "(see ppdgrow demo --help)"),
        (["demo", "a", "--data-dir", " "], "'--data-dir': the path is empty", "(see ppdgrow demo --help)"),
        (["--nonsense"], "--nonsense", "(see ppdgrow --help)"),
    ],
)
def test_wrong_usage_is_exit_2_with_a_hint(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str, hint: str
) -> None:
    assert run(app, arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert words in err
    assert hint in err
    assert run(app, [*arguments, "--json"]) == 2
    document = jsonlib.loads(capsys.readouterr().err)
    assert sorted(document) == ["error", "exit_code", "schema"]
    assert document["exit_code"] == 2


def test_json_behind_a_double_dash_is_a_name(app: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["demo", "--fail", "config", "--", "--json"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_command_line_is_there_without_torch() -> None:
    code = "import sys, ppdgrow.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=60).returncode == 0


def test_completion_is_ascii(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_PPDGROW_COMPLETE", "source_bash")
    with pytest.raises(SystemExit) as ended:
        run(app, [])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "_PPDGROW_COMPLETE=complete_bash" in out
    assert out.isascii()
