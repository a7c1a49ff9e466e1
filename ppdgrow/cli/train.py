"""`ppdgrow train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ppdgrow.cli import completion, options
from ppdgrow.config.explain import key_table
from ppdgrow.config.load import Layer, parse_override, read_yaml
from ppdgrow.config.yaml12 import format_value
from ppdgrow.console import Narrator

if TYPE_CHECKING:
    from ppdgrow.training.dry_run import Preview

NAME = "train"
EXAMPLE = """
  ppdgrow train --layers 6 --data wikitext2 --steps 1000 --no-decay --out runs/shallow
  ppdgrow train runs/grown --steps 1000 --out runs/grown-trained
"""

RECIPE, MODEL, TRAINING = "Recipe", "Model", "Training"


def run(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="CKPT",
            autocompletion=completion.complete_run,
            help="Go on from this run folder or checkpoint; leave out for a new model.",
        ),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="Recipe in YAML.", rich_help_panel=RECIPE)
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            metavar="KEY=VALUE",
            autocompletion=completion.complete_setting,
            help="Set any recipe key; may be repeated, the last one of a key holds.",
            rich_help_panel=RECIPE,
        ),
    ] = None,
    keys: Annotated[
        bool,
        typer.Option("--keys", help="List all recipe keys with their defaults, and exit.", rich_help_panel=RECIPE),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="FAMILY",
            autocompletion=completion.complete_model,
            help="Model family: transformer, mlp (whole images) or sequence (a causal mixer that is not attention).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<int>",
            help="Layers of a new model; of CKPT, those that it has.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number, metavar="<int>", help="Channels of the stream.", rich_help_panel=MODEL
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=completion.complete_data,
            help="Data set: stdlib, wikitext2, cifar10, digits, or a path: text, tables, image folders, a saved set.",
            rich_help_panel=options.DATA,
        ),
    ] = None,
    data_dir: options.DataDirOption = None,
    steps: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number, metavar="<int>", help="Further optimizer steps.", rich_help_panel=TRAINING
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<int>",
            help="Step at which the schedule ends, if later than this run.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    decay: Annotated[
        bool | None,
        typer.Option(
            "--decay/--no-decay",
            help="Decay the learning rate at the end, or leave that out in a run that will be continued.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<int>",
            help="Seed of weights and batches.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            parser=options.parse_number, metavar="<float>", help="Peak learning rate.", rich_help_panel=TRAINING
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_number,
            metavar="<int>",
            help="Sequences or images per step.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    pair_lr: Annotated[
        float | None,
        typer.Option(
            parser=options.parse_number,
            metavar="FACTOR",
            help="Factor on the rate of the newest blocks.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="all|pairs",
            autocompletion=completion.complete_only,
            help="Train all, or the newest blocks only.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Deterministic kernels on CUDA.", rich_help_panel=options.HARDWARE)
    ] = False,
    resume: Annotated[
        Literal["auto", "never"],
        typer.Option(help="Go on in an output folder that holds this run, or refuse.", rich_help_panel=options.OUTPUT),
    ] = "auto",
    out: options.OutOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what the run would do and what it would cost (memory: a lower bound); train nothing, write no "
            "run.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Train a model from scratch, or on from a checkpoint.

    The last line of the output is the run folder. The same command again goes on where it stopped, and a
    finished run is not run again. A tied pair is untied by the first step. A recipe with growth: entries grows
    on the way, and keeps each growth only if its trial earns it, held against the loss before or against its twin, the
    ungrown model trained on the same batches.
    """
    narrator = Narrator(quiet=quiet, json=json)
    if keys:
        _list_keys(narrator)
        return
    with narrator.status("importing torch"):
        from ppdgrow.checkpoint import RunFolder
        from ppdgrow.cli.next_command import after
        from ppdgrow.growth.train import TrainRequest, train

    flags: dict[str, tuple[str, Any]] = {
        "--model": ("model.family", model),
        "--layers": ("model.layers", layers),
        "--width": ("model.width", width),
        "--data": ("data.name", data),
        "--data-dir": ("data.directory", None if data_dir is None else str(data_dir)),
        "--steps": ("train.steps", steps),
        "--horizon": ("train.horizon", horizon),
        "--decay/--no-decay": ("train.decay", decay),
        "--seed": ("train.seed", seed),
        "--lr": ("train.lr", lr),
        "--batch-size": ("train.batch_size", batch_size),
        "--pair-lr": ("train.pair_lr", pair_lr),
        "--only": ("train.only", only),
        "--precision": ("train.precision", precision),
    }
    chosen = [] if recipe is None else [Layer(f"recipe {recipe}", read_yaml(recipe))]
    overrides = [parse_override(text) for text in override or []]
    chosen += [Layer("-o", dict(overrides))] if overrides else []
    chosen += [Layer(flag, {key: value}) for flag, (key, value) in flags.items() if value is not None]
    given = [key for key, _ in overrides]
    repeated = [f"{key}={format_value(value)}" for key, value in dict(overrides).items() if given.count(key) > 1]
    if repeated:
        narrator.say(f"-o was given more than once for a key, the last one holds: {', '.join(repeated)}")
    request = TrainRequest(
        layers=chosen,
        checkpoint=checkpoint,
        out=out,
        device=device,
        resume=resume,
        deterministic=deterministic,
    )
    if dry_run:
        from ppdgrow.training.dry_run import make_preview, preview_document

        preview = make_preview(request, narrator)
        document = preview_document(preview)
        _print_result(preview, narrator)
    else:
        document = train(request, narrator)
        run_folder, final = RunFolder(Path(document["run"])), Path(document["checkpoint"])
        after(run_folder, final, options.same_place(device)).show(narrator)
    narrator.document(document)
    narrator.data(document["run"])


def _list_keys(narrator: Narrator) -> None:
    """Each key on a line of its own, so that grep finds it."""
    header = ["key", "default", "expected", "meaning"]
    rows = list(key_table())
    narrator.document({"schema": 1, "keys": [dict(zip(header, row, strict=True)) for row in rows]})
    narrator.table(rows, header=header, align="llll")


def _print_result(preview: Preview, narrator: Narrator) -> None:
    """What a dry run found: facts, then figures before and after growth."""
    from ppdgrow.training.dry_run import facts, figures

    narrator.table(list(facts(preview)), align="ll")
    narrator.data("")
    header = ["", "at the start", *(["after growth"] if preview.planned else [])]
    narrator.table(list(figures(preview)), header=header)
