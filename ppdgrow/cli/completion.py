"""Completion in the shell: what can stand at the place of a word, without torch.

Typer calls the functions of this module for the options that name them, and keeps what begins with the typed text.
Where nothing fits, the shell completes file names on its own.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer

from ppdgrow.config.kinds import DATA_NAMES
from ppdgrow.config.options import kinds, setting
from ppdgrow.config.schema import recipe_keys
from ppdgrow.console import write_stdout
from ppdgrow.console.terminal import encodable

# Keys of type str of which the schema names no words.
_OPEN_WORDS = {"data.name": DATA_NAMES, "data.tokenizer": ("byte", "word", "bpe:4096", "null")}
_VARIABLE = "_PPDGROW_COMPLETE"
_MOST_ENTRIES = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_BREAKS = re.compile("[=:]+")


def quietly(function: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """No completion where a folder cannot be read; and no name that would break the protocol of the shells."""

    @functools.wraps(function)
    def guarded(*arguments: Any, **keywords: Any) -> list[str]:
        try:
            found = function(*arguments, **keywords)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home folder
            return []
        # Typer's answer to zsh loses quotes and backslashes.
        hostile = set("'\"\\") if os.environ.get(_VARIABLE) == "complete_zsh" else set()
        return [name for name in found if not _CONTROL.search(name) and not hostile & set(name)]

    return guarded


def words(*names: str, listed: bool = False) -> Callable[[str], list[str]]:
    """Completes one of some words, or the last of several with commas between them."""

    def complete(incomplete: str) -> list[str]:
        head = incomplete[: incomplete.rfind(",") + 1] if listed else ""
        return [f"{head}{name}" for name in names]

    return complete


@quietly
def complete_run(incomplete: str) -> list[str]:
    """Run folders at the typed place and one folder below it; the checkpoints of a run that ends in `/`."""
    return _runs(incomplete, arms=False)


@quietly
def complete_arm(incomplete: str) -> list[str]:
    """As `complete_run`, and folders that hold runs."""
    return _runs(incomplete, arms=True)


@quietly
def complete_data(incomplete: str) -> list[str]:
    """Data sets, and files of the same beginning."""
    names = [name for name in DATA_NAMES if name.startswith(incomplete)]
    if not names or not incomplete:
        return names
    return names + [entry.name + "/" * entry.is_dir() for entry in _entries(Path(), incomplete)]


@quietly
def complete_removal(ctx: typer.Context) -> list[str]:
    """`last`, and the pairs of the run that is given."""
    ids: dict[str, None] = {}
    with suppress(OSError, ValueError, AttributeError, TypeError):  # `last` is offered all the same
        # While the value of an option is missing, Typer has not yet sorted the arguments into parameters.
        given = ctx.params.get("checkpoint") or "".join(ctx.args[:1])
        run = Path(str(given)).expanduser()
        run = run.parent.parent if run.parent.name == "checkpoints" else run
        for line in (run / "growth.jsonl").read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            for name in event.get("ids", ()):
                ids.pop(name, None)
                if event.get("event") != "remove":
                    ids[name] = None
    return ["last", *map(str, ids)]


@quietly
def complete_setting(incomplete: str) -> list[str]:
    """Recipe keys, and after `=` the words that a key takes, or its default."""
    key, equals, _ = incomplete.partition("=")
    found = [name for name in recipe_keys() if (name == key if equals else name.startswith(key))]
    if len(found) != 1:
        return [f"{name}=" for name in found]
    settings = [f"{found[0]}={word}" for word in _words(found[0])]
    # A single result would be followed by a space: offer what can come behind it too.
    return settings if equals else [f"{found[0]}=", *settings]


# By the name of the field; of others Typer knows the words, or the shell the files.
COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "checkpoint": complete_run,
    "twin": complete_run,
    "paths": complete_arm,
    "data": complete_data,
    "on": complete_data,
    "remove": complete_removal,
    "override": complete_setting,
}


def _words(key: str) -> list[str]:
    if key in _OPEN_WORDS:
        return list(_OPEN_WORDS[key])
    if "." not in key:
        return []
    annotation, default = setting(key).annotation, setting(key).default
    words = ["true", "false"] if annotation is bool else []
    words += [str(word) for kind in kinds(annotation) if get_origin(kind) is Literal for word in get_args(kind)]
    null = ["null"] if NoneType in get_args(annotation) else []
    shown = default if isinstance(default, str) else json.dumps(default, separators=(",", ":"))
    return list(dict.fromkeys([*words, *null] if words else [*null, shown]))


def _runs(incomplete: str, *, arms: bool) -> list[str]:
    head = incomplete[: incomplete.rfind("/") + 1]
    place = Path(head or ".").expanduser()
    if _is_run(place):
        return [f"{head}checkpoints/{entry.name}" for entry in _entries(place / "checkpoints", "step-")]
    if place.name == "checkpoints" and _is_run(place.parent):
        return [f"{head}{entry.name}" for entry in _entries(place, "step-")]
    found = []
    for entry in _entries(place, incomplete[len(head) :]):
        if _is_run(entry):
            found.append(f"{head}{entry.name}")
            continue
        below = [f"{head}{entry.name}/{run.name}" for run in _entries(entry, "") if _is_run(run)]
        found += [f"{head}{entry.name}"] * bool(arms and below) + below
    return found


def _is_run(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "checkpoints").is_dir() or (folder / "recipe.yaml").is_file()
    return False


def _entries(folder: Path, beginning: str) -> list[Path]:
    """Those of this beginning; none where the folder cannot be read."""
    hidden = beginning.startswith(".")
    with suppress(OSError), os.scandir(folder) as scan:
        names = (entry.name for entry in scan)
        fitting = (name for name in names if name.startswith(beginning) and (hidden or not name.startswith(".")))
        return [folder / name for name in sorted(islice(fitting, _MOST_ENTRIES))]
    return []


def wanted() -> bool:
    """Whether a shell asks for completions."""
    return os.environ.get(_VARIABLE, "").startswith("complete_")


def answer(program: Callable[[], object]) -> int:
    """Let the program print completions, as Typer does, and put them as the shell that asked for them takes them.

    Bash cuts words at `=` and `:`, and wants only what follows the last of them, quoted for the command line.
    Whatever fails, the person who pressed a key sees no message.
    """
    bash = os.environ.get(_VARIABLE) == "complete_bash"
    head, quote = _join_words() if bash else ("", "")
    page, code = io.StringIO(), 0
    try:
        with redirect_stdout(page), redirect_stderr(io.StringIO()):
            program()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except (Exception, KeyboardInterrupt):
        return 1
    lines = page.getvalue().splitlines()
    if bash:
        lines = [line.removeprefix(head) for line in lines]
        lines = [line for line in lines if _fits(line, quote)] if quote else [_escaped(line) for line in lines]
    # An escape for what stdout cannot say would be a name that does not exist.
    write_stdout("".join(f"{line}\n" for line in lines if encodable(line, sys.stdout) == line))
    return code


def _join_words() -> tuple[str, str]:
    """Undo in the environment that bash cut words; what precedes the last cut in the last of them, and its quote."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    number = os.environ.get("COMP_CWORD", "")
    current = int(number) if number.isascii() and number.isdigit() else len(words) - 1
    joined: list[str] = []
    last, glue = "", False
    for place, word in enumerate(words[: current + 1]):
        sign = bool(_BREAKS.fullmatch(word))
        last = "" if sign else word
        if joined and place > 1 and (sign or (glue and word)):
            joined[-1] += word
        else:
            joined.append(word)
        glue = sign
    before = joined[-1].removesuffix(last)
    if before.startswith("-"):  # of `--option=value` Typer completes the value
        before = before.partition("=")[2]
    os.environ["COMP_WORDS"] = "\n".join(joined)
    os.environ["COMP_CWORD"] = str(len(joined) - 1)
    with suppress(ValueError):  # of a quote that is open
        before = "".join(shlex.split(before))
    return before, last[:1] if last[:1] in ("'", '"') else ""


def _fits(word: str, quote: str) -> bool:
    """Whether a word means itself within quotes, also to the script, which expands patterns."""
    return not set(word) & set(quote + "*?[" + ("$`\\!" if quote == '"' else ""))


def _escaped(word: str) -> str:
    # A tilde at the beginning stays what it is to the shell: the home folder.
    return re.sub(r"[^\w@%+=:,./~\-]|(?<=.)~", lambda match: f"\\{match[0]}", word)
