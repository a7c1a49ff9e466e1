"""What a user asks of each command: its options, their help, defaults and checks, for command line and Python alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ValidationInfo, field_validator, model_validator

from ppdgrow.config.growth import NAMED_POSITIONS, GrowthConfig, JudgingRule, Method, Moments, Source
from ppdgrow.config.kinds import PAIR_NAMES
from ppdgrow.config.load import Layer, flat_keys, parse_override, read_yaml, resolve
from ppdgrow.config.options import Request, option, plain, recipe_key
from ppdgrow.config.yaml12 import format_value
from ppdgrow.errors import ConfigError

# Those of `probing.cancellation`, which needs torch.
DTYPE_NAMES = ("fp64", "fp32", "bf16", "bf16_autocast", "fp16")

DeviceName = Literal["auto", "cpu", "cuda"]
PrecisionName = Literal["auto", "fp32", "bf16"]
_CHECKPOINT: dict[str, Any] = {"metavar": "CKPT", "argument": True}
_DATA_DIR = "Folder with local copies of the data sets; without it PPDGROW_DATA, else a download."
_PRECISION = "fp32, or bf16 autocast; without it, as the run was trained."

_CKPT = "Run folder or checkpoint, or a folder of Transformers; only read."
Checkpoint = Annotated[Path, option(help=_CKPT, default=..., **_CHECKPOINT)]
DataDir = Annotated[Path | None, option("Data", "FOLDER", help=_DATA_DIR)]
Device = Annotated[DeviceName, option("Hardware", "auto|cpu|cuda", help="Where to compute.")]
Precision = Annotated[PrecisionName | None, option("Hardware", "auto|fp32|bf16", help=_PRECISION)]
Out = Annotated[Path | None, option("Output", "FOLDER", help="Output run folder; without it one is named and printed.")]


class TrainRequest(Request):
    """A run from scratch, or on from a checkpoint."""

    checkpoint: Path | None = option(**_CHECKPOINT)
    """Go on from this run folder or checkpoint, or fine-tune this folder of Transformers; leave out for a new model."""
    recipe: Path | Mapping[Any, Any] | None = option(
        "Recipe",
        "FILE",
        doc="A YAML file, or the same as a mapping of sections: `{'train': {'lr': 3e-4}}`.",
        expected="the path of a YAML file, or a mapping such as {'train': {'lr': 3e-4}}",
    )
    """Recipe in YAML."""
    values: Mapping[Any, Any] | None = None
    """Recipe values by dotted key, such as `{'train.lr': 3e-4}`, over those of the recipe."""
    override: tuple[str, ...] = option("Recipe", "KEY=VALUE", flag="-o", default=(), in_python=False)
    """Set any recipe key; may be repeated, the last one of a key holds."""
    keys: bool = option("Recipe", default=False, in_python=False)
    """List all recipe keys with their defaults, and exit."""
    model: Any = recipe_key("model.family", "Model family: {}.", metavar="FAMILY")
    num_layers: Any = recipe_key("model.layers", "Layers of a new model; of CKPT, those that it has.", flag="--layers")
    width: Any = recipe_key("model.width")
    data: Any = recipe_key("data.name", "Data set: {}: text, tables, image folders, a saved set.")
    data_dir: Path | None = recipe_key("data.directory", _DATA_DIR, metavar="FOLDER")
    steps: Any = recipe_key("train.steps", "Further optimizer steps.")
    horizon: Any = recipe_key("train.horizon", "Step at which the schedule ends, if later than this run.")
    decay: Any = recipe_key(
        "train.decay", "{}, or leave that out in a run that will be continued.", flag="--decay/--no-decay"
    )
    seed: Any = recipe_key("train.seed", "Seed {}.")
    lr: Any = recipe_key("train.lr")
    batch_size: Any = recipe_key("train.batch_size")
    pair_lr: Any = recipe_key("train.pair_lr", metavar="FACTOR")
    only: Any = recipe_key("train.only", "Train all, the newest blocks only, or some by their ids, such as l5,l6.")
    grow_to: int | None = option("Growth", "LAYERS", least=1)
    """Grow to so many layers within this run; kept without a judgement."""
    grow_at: str | int | None = option(
        "Growth", "STEP|SHARE", expected="a step above 0, or a share of the run's steps such as '50%'"
    )
    """A step, or a share of this run's steps. With --grow-to. [default: 50%]"""
    pair: str | Sequence[str] | None = option(
        "Growth", "KIND[,KIND..]", words=PAIR_NAMES, expected=f"one of {', '.join(PAIR_NAMES)}, or a list of them"
    )
    """Kind of the pairs, the last of a list repeats. With --grow-to. [default: ffn]"""
    method: Method | None = option("Growth")
    """pair, or a rival that adds as many whole layers. With --grow-to. [default: pair]"""
    device: Device = "auto"
    precision: PrecisionName | None = recipe_key("train.precision", _PRECISION, "Hardware", words=())
    deterministic: bool = option("Hardware", default=False)
    """Deterministic kernels on CUDA."""
    resume: Literal["auto", "never"] = option("Output", default="auto")
    """Go on in an output folder that holds this run, or refuse."""
    out: Out = None
    dry_run: bool = option(
        "Output", default=False, doc="Return what the run would do, cost and hold; train and write nothing."
    )
    """Show what the run would do and what it would cost (memory: a lower bound); train nothing, write no run."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """Recipe values in rising precedence; raises what `read_yaml` and `parse_override` raise."""
        chosen = []
        if isinstance(self.recipe, Path):
            chosen.append(Layer(f"recipe {self.recipe}", read_yaml(self.recipe)))
        elif self.recipe is not None:
            chosen.append(Layer("recipe", flat_keys(self.recipe, "recipe")))
        if self.values is not None:
            chosen.append(Layer("values", self.values))
        if self.override:
            chosen.append(Layer("-o", dict(map(parse_override, self.override))))
        given = ((look, getattr(self, name)) for name, look in self.options() if look.key is not None)
        chosen += [Layer(str(look.flag), {str(look.key): plain(value)}) for look, value in given if value is not None]
        return tuple(chosen)

    @model_validator(mode="after")
    def _check_growth(self) -> Self:
        if self.grow_to is None:
            self._refuse_without("--grow-to LAYERS", "grow_at", "pair", "method")
        else:
            try:
                _growth_entry(self.grow_to_entry, "the command line")
            except ConfigError as error:
                raise ConfigError(re.sub("^at:", "--grow-at:", str(error))) from None
        return self

    @property
    def grow_to_entry(self) -> dict[str, Any]:
        """The growth of `grow_to` as an entry of a recipe's `growth:`, but for its `pairs`."""
        at = "50%" if self.grow_at is None else self.grow_at
        at = int(at) if isinstance(at, str) and at.isdecimal() else at
        given = {"pair": self.pair, "method": self.method}
        trial = {"steps": 1, "rule": "always"}
        chosen = {key: value for key, value in given.items() if value is not None}
        return {"at": at, **chosen, "trial": trial}

    @property
    def repeated(self) -> list[str]:
        """The overrides that hold of keys that were given more than once, and not by a flag too."""
        pairs = list(map(parse_override, self.override))
        keys = [key for key, _ in pairs]
        flags = {look.key for name, look in self.options() if getattr(self, name) is not None}
        repeated = {key: value for key, value in pairs if keys.count(key) > 1 and key not in flags}
        return [f"{key}={format_value(value)}" for key, value in repeated.items()]


class GrowRequest(Request):
    """A growth, or with `remove` a pair to take out."""

    checkpoint: Checkpoint
    pair: str | Sequence[str] | None = option("Growth", "KIND[,KIND..]", words=PAIR_NAMES)
    """Kind of the pairs: ffn (two MLPs), attention, recurrent or convolution (that mixer and an MLP), attention-first
    (attention if there is no such pair yet, else ffn), depthwise (each channel for itself), orthogonal or linear
    (linear maps, which add little: controls). The last of a list repeats. [default: ffn]"""
    pairs: int | None = option("Growth")
    """Number of pairs, each two layers. [default: as many as are listed, or 1]"""
    position: str | int | Sequence[int] = option("Growth", "WHERE", words=NAMED_POSITIONS, default="interleave")
    """end, start, middle, interleave (spread evenly; one pair: middle), or after which blocks, such as 2,4,6 (0: before
    the first)."""
    source: Source | None = option("Growth")
    """Where theta_0, the weights from which both members of a pair start, comes from: copy (the nearest preceding
    branch of the kind), slice (of a full-width one), random. [default: copy in a coupled stream, slice in a residual
    one]"""
    scale: float = option("Growth", default=1.0)
    """Factor on the output projections of theta_0."""
    method: Method = option("Growth", default="pair")
    """pair, or a rival that adds as many whole layers: zero (copies with zero output), copy (stacking at end,
    interleaving), fresh (random)."""
    moments: Moments = option("Growth", default="copy_v")
    """Optimizer state of new parameters: fresh (none), copy_v (second moment of the source), copy (first moment
    too)."""
    remove: str | None = option("Growth", "last|ID")
    """Take a pair out instead of growing."""
    evaluate: bool = option(
        "Growth",
        flag="--no-eval",
        default=True,
        doc="Measure the losses before and after; False compares outputs on a synthetic batch.",
    )
    """Skip the losses; outputs are compared on a synthetic batch (of a folder of Transformers: not at all)."""
    layer_path: str | None = option("Growth", "PATH")
    """Of a folder of Transformers of an unknown model_type: where its layers are, such as model.layers."""
    data_dir: DataDir = None
    device: Device = "auto"
    precision: Precision = None
    out: Out = None

    @model_validator(mode="before")
    @classmethod
    def _check_growth(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        given = {key: values[key] for key in _GROWTH_KEYS if values.get(key) is not None}
        defaults = GrowthConfig(at=1)
        adds = any(key == "pair" or value != getattr(defaults, key) for key, value in given.items())
        if values.get("remove") is not None and adds:
            raise ConfigError("--remove takes a pair out, the other options of growth add some: give one or the other")
        _growth_entry(given, str(info.context))
        return {key: value for key, value in values.items() if key not in _GROWTH_KEYS} | given

    @property
    def growth(self) -> GrowthConfig:
        """What to add, as an entry of a recipe's `growth:`."""
        return _growth_entry({key: getattr(self, key) for key in _GROWTH_KEYS}, "")


_GROWTH_KEYS = ("pair", "pairs", "position", "source", "scale", "method", "moments")


def _growth_entry(values: Mapping[str, Any], source: str) -> GrowthConfig:
    entry = {"at": 1, **{key: value for key, value in values.items() if value is not None}}
    try:
        return resolve([Layer(source, {"growth": [entry]})]).recipe.growth[0]
    except ConfigError as error:
        raise ConfigError(str(error).replace("growth[0].", "")) from None


class ProbeRequest(Request):
    """What is measured of a checkpoint."""

    checkpoint: Checkpoint
    dtypes: str | Sequence[str] = option(
        help=f"Types in which to measure the cancellation: {', '.join(DTYPE_NAMES)}. [default: all]",
        flag="--dtype",
        metavar="NAME[,NAME..]",
        words=DTYPE_NAMES,
        default=DTYPE_NAMES,
    )
    plot: Path | None = option("Output", "FILE")
    """Draw gradient norm and activity per block into FILE (.svg or .png; needs ppdgrow[plot])."""
    sample: str | None = option("Sample", "TEXT", doc="A text that a language model is to continue.")
    """Continue TEXT by a language model; the continuation comes last on stdout. A growth that keeps the function keeps
    it."""
    tokens: int | None = option("Sample", least=1)
    """Tokens of the continuation. [default: 200]"""
    seed: int | None = option("Sample", least=0)
    """Of the draws. [default: 0]"""
    data_dir: DataDir = None
    device: Device = "auto"
    precision: Precision = None

    @field_validator("dtypes", mode="before")
    @classmethod
    def _check_dtypes(cls, value: Any) -> Any:
        names = DTYPE_NAMES if value is None else value.split(",") if isinstance(value, str) else value
        names = names if isinstance(names, Iterable) else (names,)
        found = tuple(name.strip() if isinstance(name, str) else name for name in names)
        for name in found:
            if name not in DTYPE_NAMES:
                raise ConfigError(f"unknown dtype {name!r}: expected one of {', '.join(DTYPE_NAMES)}")
        return found

    @model_validator(mode="after")
    def _check_sample(self) -> Self:
        if self.sample is None and (self.tokens is not None or self.seed is not None):
            raise ConfigError("--tokens and --seed are those of a --sample: give one, or leave them out")
        return self


class CompareRequest(Request):
    """Runs to compare, or with `accept` PARENT and TRIAL between which to decide."""

    paths: tuple[Path, ...] = option(metavar="BASELINE OTHER..", argument=True, default=...)
    """Run folders, or folders of runs that are the seeds of one arm; the first is the baseline."""
    test: bool = option("Data", default=False)
    """Evaluate every run on the whole test split too. Once, at the end: it must not decide anything."""
    on: tuple[str, ...] = option(
        "Data", "DATA", default=(), expected="the name of a data set, or a path to text, tables or images"
    )
    """Evaluate every run on the validation split of DATA too, any data set or path that --data of train takes: what
    adapting to other data cost there. It decides nothing. Can be given several times."""
    plot: Path | None = option("Output", "FILE")
    """Draw the curves over steps, FLOPs and wall-clock into FILE (.svg or .png; needs ppdgrow[plot])."""
    report: tuple[Path, ...] = option("Output", "FILE", default=())
    """Write a page with every figure, run, lineage and command into FILE: .html holds the curves too (needs
    ppdgrow[plot]), .md shows those of --plot. Can be given twice."""
    accept: bool = option(
        "Decision",
        default=False,
        doc="Take the two runs as PARENT and TRIAL and decide; see `verdict` in the document.",
    )
    """Take the two runs as PARENT and TRIAL and decide. Without a twin by the parent rule: accept if the trial's
    validation loss is at most the parent's plus epsilon. Exits with 3 on rejection."""
    epsilon: float | None = option("Decision")
    """Nats that the trial may lose against PARENT; negative demands a gain. With --accept. [default: 0.0]"""
    twin: Path | None = option("Decision", "RUN")
    """The ungrown model, trained from PARENT on the same batches for the same budget. Decide by the twin rule: accept
    if the upper end of the 95 % interval of the paired difference, trial minus twin, is below the margin. With
    --accept."""
    margin: float | None = option("Decision")
    """Nats that the trial may lose against the twin; negative demands a gain. With --twin. [default: 0.01]"""
    rule: JudgingRule | None = option("Decision", "parent|twin")
    """The rule that decides; the other figure is printed beside it. With --accept. [default: twin with --twin, else
    parent]"""
    data_dir: DataDir = None
    device: DeviceName | None = option("Hardware", "auto|cpu|cuda")
    """Where to evaluate models. [default: auto]"""
    precision: Precision = None

    @model_validator(mode="after")
    def _check_flags(self) -> Self:
        if not self.accept:
            self._refuse_without("--accept", "epsilon", "twin", "margin", "rule")
            if not self.test and not self.on:
                self._refuse_without("--test or --on DATA", "device", "precision", "data_dir")
            return self
        drawn = " and ".join(f"--{name}" for name in ("plot", "report", "test", "on") if getattr(self, name))
        if drawn:
            raise ConfigError(
                f"found {drawn} with --accept, which decides between two runs and draws nothing: leave one of them out"
            )
        if len(self.paths) != 2:
            raise ConfigError(
                f"--accept decides between two runs, PARENT and TRIAL, found {len(self.paths)}: give these two"
            )
        if self.twin is None:
            if self.rule == "twin":
                raise ConfigError(
                    "--rule twin found no twin to compare the trial with: add --twin RUN, or use --rule parent"
                )
            self._refuse_without("--twin RUN", "margin", "device", "precision", "data_dir")
        return self


class LoadRequest(Request):
    """A model to load; from Python alone."""

    path: Path
    device: DeviceName
    untie: bool
