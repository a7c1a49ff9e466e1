"""From a request model to the function that Typer reads: an option for each field, then `--json` and `--quiet`."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from ppdgrow.cli.completion import COMPLETERS, words
from ppdgrow.config.options import Option, Request, kinds, setting
from ppdgrow.config.yaml12 import parse_value
from ppdgrow.console import Narrator
from ppdgrow.errors import ConfigError

R = TypeVar("R", bound=Request)
_NARRATION = {
    "json": "Print one JSON document on stdout, and no narration.",
    "quiet": "No narration and no progress on stderr.",
}


def parse_path(text: str) -> Path:
    """A path from the command line; an empty one (an unset shell variable) is not the current folder."""
    if not text.strip() or "\0" in text:
        raise typer.BadParameter("the path is empty: give a folder, or leave the option out")
    return Path(text)


def parse_number(text: str) -> Any:
    """A number by the rules of recipe files; what is none stays as it is, for the schema to say what it expected."""
    try:
        value = parse_value(str(text), "")  # a default is no text
    except ConfigError:
        return text
    return text if value is None else value


def command(request: type[R]) -> Callable[[Callable[[R, Narrator], None]], Callable[..., None]]:
    """Give a function the options of a request; its docstring is the help of the command."""
    options = dict(request.options())
    switched_off = [name for name, option in options.items() if _is_off(option)]
    parameters = [_parameter(request, name, option) for name, option in options.items()]
    for flag, text in _NARRATION.items():
        info = typer.Option(f"--{flag}", help=text, rich_help_panel="Output")
        parameters.append(Parameter(flag, Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, info]))

    def build(function: Callable[[R, Narrator], None]) -> Callable[..., None]:
        def run(*, json: bool, quiet: bool, **given: Any) -> None:
            given |= {name: not given[name] for name in switched_off}
            function(request.parse(given, flags=True), Narrator(quiet=quiet, json=json))

        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        return run

    return build


def _is_off(option: Option) -> bool:
    """Whether a flag, such as `--no-eval`, switches its field off."""
    return str(option.flag).startswith("--no-")


def _parameter(request: type[Request], name: str, option: Option) -> Parameter:
    """What Typer reads; a number, or a word of a recipe key, it leaves to the schema."""
    field = request.model_fields[name]
    of_schema = option.key is not None and field.annotation is Any
    kind = kinds(setting(str(option.key)).annotation if of_schema else field.annotation)[0]
    details: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    listed = "[," in (option.metavar or "")
    details["autocompletion"] = words(*option.words, listed=listed) if option.words else COMPLETERS.get(name)
    if get_origin(kind) is Literal and of_schema:
        kind = str
    elif get_origin(kind) is tuple:
        kind = list[get_args(kind)[0]]  # type: ignore[misc]
    default = None if isinstance(field.default, tuple) else field.default
    if option.argument:
        info: Any = typer.Argument(**details)
    else:
        if kind in (int, float):
            details |= {"parser": parse_number, "metavar": option.metavar or f"<{kind.__name__}>"}
        elif kind in (Path, list[Path]):
            details["parser"] = parse_path
        info = typer.Option(str(option.flag), **details, rich_help_panel=option.heading)
    annotation: Any = Annotated[kind | None if default is None else kind, info]
    default = Parameter.empty if field.is_required() else not default if _is_off(option) else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
