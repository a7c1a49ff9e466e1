"""Options that several commands share, each with its type, its help and its heading in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ppdgrow.cli import completion
from ppdgrow.config.yaml12 import parse_value
from ppdgrow.errors import ConfigError

DATA = "Data"
HARDWARE = "Hardware"
OUTPUT = "Output"


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


def same_place(device: str, data_dir: Path | None = None) -> list[str]:
    """The flags with which another command computes where this one did, on its copy of the data."""
    where = [] if device == "auto" else ["--device", device]
    return where if data_dir is None else [*where, "--data-dir", str(data_dir)]


CheckpointArgument = Annotated[
    Path,
    typer.Argument(metavar="CKPT", autocompletion=completion.complete_run, help="Run folder or checkpoint; only read."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and no narration.", rich_help_panel=OUTPUT)
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", help="No narration and no progress on stderr.", rich_help_panel=OUTPUT)
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=parse_path,
        metavar="FOLDER",
        help="Output run folder; without it one is named and printed.",
        rich_help_panel=OUTPUT,
    ),
]
DeviceOption = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option("--device", metavar="auto|cpu|cuda", help="Where to compute.", rich_help_panel=HARDWARE),
]
PrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16"] | None,
    typer.Option(
        "--precision",
        metavar="auto|fp32|bf16",
        help="fp32, or bf16 autocast; without it, as the run was trained.",
        rich_help_panel=HARDWARE,
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        parser=parse_path,
        metavar="FOLDER",
        help="Folder with local copies of the data sets; without it PPDGROW_DATA, else a download.",
        rich_help_panel=DATA,
    ),
]
