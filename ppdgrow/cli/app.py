"""The frame of the command line: plain ASCII help in groups, and one way in which every command fails."""

from __future__ import annotations

import errno
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from ppdgrow import __version__
from ppdgrow.cli import completion
from ppdgrow.config.explain import setting_of_flag
from ppdgrow.console import prepare_streams, report_error, write_stdout
from ppdgrow.console.tables import wrap_words
from ppdgrow.errors import ConfigError, PPDGrowError, StorageError
from ppdgrow.signals import interrupts

PROGRAM = "ppdgrow"
_WIDEST_OPTION = 30
_NARROW = 50  # Typer lays help out for at least this width, on any terminal
_LEAST_WIDTH = 18
_STORAGE = (errno.ENOSPC, errno.EROFS, errno.EDQUOT)
_INTERRUPTED = 130


class _PlainHelp:
    epilog: str | None

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        option.callback = _print_help  # a reader that left does not make it fail
        return option

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        if formatter.width >= _NARROW:
            super().format_usage(ctx, formatter)  # type: ignore[misc]
            return
        pieces = self.collect_usage_pieces(ctx)  # type: ignore[attr-defined]
        formatter.write("".join(f"{line}\n" for line in (f"Usage: {ctx.command_path}", *(f"  {p}" for p in pieces))))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:  # not rewrapped
            formatter.write_paragraph()
            formatter.write("Example:\n")
            formatter.write("".join(f"  {line}".rstrip() + "\n" for line in cleandoc(self.epilog).splitlines()))


class PlainCommand(_PlainHelp, TyperCommand):
    """A command whose help has its options under headings and its example line by line."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_groups(self, ctx, formatter, rest="Other")


class PlainGroup(_PlainHelp, TyperGroup):
    """The program itself: commands in the order in which they were added, then options, then an example."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.commands[name].get_short_help_str(limit=200)) for name in self.list_commands(ctx)]
        _write_list(formatter, "Commands", commands, _width(commands))
        _write_groups(self, ctx, formatter, rest="Options")


def _print_help(ctx: Any, _parameter: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        write_stdout(f"{ctx.get_help()}\n")
        raise typer.Exit


def _write_groups(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any, *, rest: str) -> None:
    """Arguments, then each `rich_help_panel` in the order in which it first occurs, then the rest."""
    groups: dict[str, list[tuple[str, str]]] = {}
    last: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        panel = getattr(parameter, "rich_help_panel", None)
        heading = panel or ("Arguments" if parameter.param_type_name == "argument" else rest)
        (last if heading == rest else groups.setdefault(heading, [])).append(record)
    if last:
        groups[rest] = last
    width = _width([record for records in groups.values() for record in records])
    for heading, records in groups.items():
        _write_list(formatter, heading, records, width)


def _width(records: Sequence[tuple[str, str]]) -> int:
    return min(max((len(name) for name, _ in records), default=0), _WIDEST_OPTION)


def _write_list(formatter: Any, heading: str, records: Sequence[tuple[str, str]], width: int) -> None:
    with formatter.section(heading):
        if formatter.width >= _NARROW:
            # Padded to one width, so that the columns of all groups line up.
            formatter.write_dl([(name.ljust(width), text) for name, text in records], col_max=width)
            return
        for name, text in records:  # no room beside the names
            lines = wrap_words(text, formatter.width - 6).splitlines()
            formatter.write("".join(f"{line}\n" for line in (f"  {name}", *(f"      {line}" for line in lines))))


def new_app(example: str | None = None) -> typer.Typer:
    """The program without commands; `add_command` gives it some."""
    app = typer.Typer(
        name=PROGRAM,
        cls=PlainGroup,
        epilog=example,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": _narrow_width()},
    )
    app.callback()(_program)
    return app


def _narrow_width() -> int | None:
    columns = shutil.get_terminal_size().columns
    return max(columns - 2, _LEAST_WIDTH) if columns < _NARROW + 2 else None


def add_command(app: typer.Typer, function: Callable[..., None], *, example: str, name: str | None = None) -> None:
    """Make a function a command: its docstring is the help, its annotated parameters are the options.

    It fails by raising a `PPDGrowError`; an outcome that has its own exit code is `raise typer.Exit(code)`.
    """
    app.command(name or function.__name__, cls=PlainCommand, epilog=example)(function)


def _print_version(wanted: bool) -> None:
    if wanted:
        write_stdout(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Grow neural networks in depth with identity-cancelling pairs, and test honestly whether it helps.

    Exit codes: 0 done or accepted; 1 a bug; 2 usage or configuration; 3 rejected (compare --accept); 4 an input or
    checkpoint is missing, cut off or altered; 5 diverged; 6 storage, full or read-only; 7 a check failed, such as a
    pair that does not cancel; 129, 130, 143 interrupted, with the state saved: the same command goes on.
    """


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command line, or that of the process, and return its exit code.

    Every failure ends in one message on stderr. No arguments at all are `--help`.
    """
    prepare_streams()
    if completion.wanted():
        return completion.answer(lambda: get_command(app).main([], prog_name=PROGRAM, standalone_mode=False))
    with interrupts() as received:
        return _run(app, arguments, received)


def _run(app: typer.Typer, arguments: Sequence[str] | None, received: list[int]) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    as_json = "--json" in options
    try:
        outcome = get_command(app).main(given or ["--help"], prog_name=PROGRAM, standalone_mode=False)
    except PPDGrowError as error:
        return _fail(str(error), error.exit_code, as_json)
    except typer.TyperException as error:
        return _fail(_usage_message(error, app, given), error.exit_code, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", _interrupted(received), as_json)
    except Exception as error:
        if received:
            return _fail("interrupted", _interrupted(received), as_json)
        if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error).lower():
            message = "out of memory: use a smaller train.batch_size, data.sequence_length, model.width or model.layers"
            return _fail(message, ConfigError.exit_code, as_json)
        if isinstance(error, OSError) and error.errno in _STORAGE:
            place = f" {error.filename!r}" if error.filename is not None else ""
            message = f"cannot write{place}: {error.strerror}; free some space or choose another folder with --out"
            return _fail(message, StorageError.exit_code, as_json)
        what = " ".join(f"{type(error).__name__}: {error}".split())
        message = f"{what}. This is a bug in {PROGRAM}: please report it, with the command and the lines above"
        return _fail(message, PPDGrowError.exit_code, as_json, traceback.format_exc())
    code = outcome if isinstance(outcome, int) else 0
    # Typer turns Ctrl-C into this code before it can be caught here.
    return _fail("interrupted", _interrupted(received), as_json) if code == _INTERRUPTED else code


def _interrupted(received: list[int]) -> int:
    return 128 + received[0] if received else _INTERRUPTED


def _fail(message: str, exit_code: int, as_json: bool, trace: str | None = None) -> int:
    report_error(message, exit_code, as_json=as_json, traceback=trace)
    return exit_code


def _usage_message(error: typer.TyperException, app: typer.Typer, given: Sequence[str]) -> str:
    message = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is not None:
        path = context.command_path
    else:  # the parser of options does not say whose they are
        names = [info.name for info in app.registered_commands]
        path = " ".join([PROGRAM, *(word for word in given[:1] if word in names)])
    flag = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None  # one that does not exist
    setting = setting_of_flag(flag) if flag and path == f"{PROGRAM} train" else None
    if setting is not None:
        message = f"no such option: {flag}; it is a recipe key: give -o {setting}"
    return f"{message[:1].lower()}{message[1:]} (see {path} --help)"
