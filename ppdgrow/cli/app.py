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
    """Help with its options under headings and its example line by line."""

    rest: str  # the heading of options without one
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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then each `rich_help_panel` in the order in which it first occurs, then the rest."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if (record := parameter.get_help_record(ctx)) is not None:
                is_argument = parameter.param_type_name == "argument"
                heading = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else self.rest)
                groups.setdefault(heading, []).append(record)
        groups[self.rest] = groups.pop(self.rest)
        width = _width([record for records in groups.values() for record in records])
        for heading, records in groups.items():
            _write_list(formatter, heading, records, width)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog:  # not rewrapped
            formatter.write_paragraph()
            formatter.write("Example:\n")
            formatter.write("".join(f"  {line}".rstrip() + "\n" for line in cleandoc(self.epilog).splitlines()))


class PlainCommand(_PlainHelp, TyperCommand):
    rest = "Other"


class PlainGroup(_PlainHelp, TyperGroup):
    """The program itself: its help begins with the commands, in the order in which they were added."""

    rest = "Options"

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.commands[name].get_short_help_str(limit=200)) for name in self.list_commands(ctx)]
        _write_list(formatter, "Commands", commands, _width(commands))
        super().format_options(ctx, formatter)


def _print_help(ctx: Any, _parameter: Any, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        write_stdout(f"{ctx.get_help()}\n")
        raise typer.Exit


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
    columns = shutil.get_terminal_size().columns
    width = max(columns - 2, _LEAST_WIDTH) if columns < _NARROW + 2 else None
    app = typer.Typer(
        name=PROGRAM,
        cls=PlainGroup,
        epilog=example,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "terminal_width": width},
    )
    app.callback()(_program)
    return app


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
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    trace = None
    with interrupts() as received:
        try:
            outcome = get_command(app).main(given or ["--help"], prog_name=PROGRAM, standalone_mode=False)
            if outcome != _INTERRUPTED:
                return outcome if isinstance(outcome, int) else 0
            raise KeyboardInterrupt  # Typer turns Ctrl-C into this code before it can be caught here
        except PPDGrowError as error:
            message, code = str(error), error.exit_code
        except typer.TyperException as error:
            message, code = _usage_message(error, app, given), error.exit_code
        except (KeyboardInterrupt, Exception) as error:
            if received or isinstance(error, (KeyboardInterrupt, typer.Abort)):
                message, code = "interrupted", 128 + received[0] if received else _INTERRUPTED
            else:
                message, code, trace = _unexpected(error)
        report_error(message, code, as_json="--json" in options, traceback=trace)
        return code


def _unexpected(error: BaseException) -> tuple[str, int, str | None]:
    """Message, exit code and, of a bug, the traceback."""
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error).lower():
        message = "out of memory: use a smaller train.batch_size, data.sequence_length, model.width or model.layers"
        return message, ConfigError.exit_code, None
    if isinstance(error, OSError) and error.errno in _STORAGE:
        place = f" {error.filename!r}" if error.filename is not None else ""
        message = f"cannot write{place}: {error.strerror}; free some space or choose another folder with --out"
        return message, StorageError.exit_code, None
    what = " ".join(f"{type(error).__name__}: {error}".split())
    message = f"{what}. This is a bug in {PROGRAM}: please report it, with the command and the lines above"
    return message, PPDGrowError.exit_code, "".join(traceback.format_exception(error))


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
