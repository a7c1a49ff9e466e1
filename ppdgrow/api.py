"""What the commands do, as functions.

Each takes what the command takes, by the names of its options, and returns its JSON document (DESIGN section 4).
Narration goes to stderr; nothing is printed on stdout. Paths are those of run folders, or of checkpoints in them, as
text or `pathlib.Path`.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, cleandoc
from pathlib import Path
from typing import Any, TypeVar, get_origin

import torch

from ppdgrow.comparison.compare import compare as run_compare
from ppdgrow.comparison.report import write_files
from ppdgrow.config.options import Option, Request, kinds
from ppdgrow.config.requests import CompareRequest, DeviceName, GrowRequest, LoadRequest, ProbeRequest, TrainRequest
from ppdgrow.console import Narrator
from ppdgrow.engine.device import resolve_device
from ppdgrow.errors import ConfigError
from ppdgrow.growth.grow import grow as run_grow
from ppdgrow.growth.train import train as run_train
from ppdgrow.nn.model import Model, build_model
from ppdgrow.pretrained.load import load_pretrained as load_pretrained
from ppdgrow.pretrained.recognition import pretrained_folder
from ppdgrow.probing.probe import probe as run_probe
from ppdgrow.surgery import untie as untie_pairs
from ppdgrow.training.context import load_parent
from ppdgrow.training.dry_run import make_preview

AnyPath = str | os.PathLike[str]
Document = dict[str, Any]
R = TypeVar("R", bound=Request)


def _takes(request: type[R]) -> Callable[[Callable[[R, Narrator], Document]], Callable[..., Document]]:
    """Give a function the arguments of a request, and `quiet`; its docstring says what they mean."""

    def build(run: Callable[[R, Narrator], Document]) -> Callable[..., Document]:
        parameters, descriptions = zip(*_parameters(request), strict=True)
        signature = Signature(parameters, return_annotation=Document)

        def function(*args: Any, **keywords: Any) -> Document:
            given = signature.bind(*args, **keywords).arguments
            narrator = Narrator(quiet=given.pop("quiet", False))
            if "baseline" in given:
                given["paths"] = [given.pop("baseline"), *given.pop("others", ())]
            return run(request.parse(given), narrator)

        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__name__ = function.__qualname__ = run.__name__
        arguments = "\n".join(["Args:", *descriptions])
        function.__doc__ = cleandoc(run.__doc__ or "").replace("\n\nReturns:", f"\n\n{arguments}\n\nReturns:")
        return function

    return build


def _parameters(request: type[Request]) -> Iterator[tuple[Parameter, str]]:
    """Those that Python callers have, each with its description."""

    def described(name: str, kind: Any, annotation: Any, default: Any, text: str) -> tuple[Parameter, str]:
        text = re.sub(r"--([a-z-]+)", lambda flag: f"`{flag[1].replace('-', '_')}`", text)
        text = textwrap.fill(f"{name}: {text}", 100, initial_indent=" " * 4, subsequent_indent=" " * 8)
        return Parameter(name, kind, annotation=annotation, default=default), text

    options = dict(request.options())
    for name, field in request.model_fields.items():
        option = options.get(name, Option())
        if option.key is not None or not option.in_python:
            continue
        text = option.doc or str(field.description)
        default = Parameter.empty if field.is_required() else field.default
        annotation: Any = field.annotation
        if get_origin(annotation) is tuple:
            annotation = AnyPath | Sequence[AnyPath]
        elif Path in kinds(annotation):
            annotation = AnyPath | annotation
        if name == "paths":
            yield described("baseline", Parameter.POSITIONAL_OR_KEYWORD, AnyPath, default, text)
            more = "More of them; with `accept` the trial alone."
            yield described("others", Parameter.VAR_POSITIONAL, AnyPath, default, more)
            continue
        place = Parameter.POSITIONAL_OR_KEYWORD if option.argument else Parameter.KEYWORD_ONLY
        yield described(name, place, annotation, default, text)
    yield described("quiet", Parameter.KEYWORD_ONLY, bool, False, "No narration; warnings stay.")


@_takes(TrainRequest)
def train(request: TrainRequest, narrator: Narrator) -> Document:
    """Train a model from scratch, or on from a checkpoint, as `ppdgrow train`.

    A run that is there already goes on where it stopped; a finished one is not run again. torch's random state and
    its switch for deterministic kernels are afterwards what they were before.

    In the main thread Ctrl-C and SIGTERM end the training at the next step by an `InterruptedRunError`, with the state
    saved: the same call goes on from there (before the first step, Ctrl-C is the usual `KeyboardInterrupt`). A second
    signal ends the whole process at once. In any other thread no signal reaches the training.

    Returns:
        The document of `ppdgrow train --json`: `run`, `checkpoint`, `step`, `validation`, `growth`, ... Of a dry run it
        is another one, that of `--dry-run --json`.

    Raises:
        ConfigError: a recipe key or value that the schema refuses, or a folder that holds something else.
        InvalidInputError: the checkpoint or the data is missing or broken.
        DivergedError: the loss or a gradient is not finite; that update was not applied.
        InterruptedRunError: a signal came; the state is saved.
        StorageError: the file system refused.
    """
    with _torch_as_it_was():
        if request.dry_run:
            return make_preview(request, narrator).document
        return run_train(request, narrator)


@_takes(GrowRequest)
def grow(request: GrowRequest, narrator: Narrator) -> Document:
    """Add identity-cancelling pairs to a checkpoint, or take one out, as `ppdgrow grow`. The input is only read.

    Returns:
        The document of `ppdgrow grow --json`: `run`, `checkpoint`, `pairs` (their ids), `bit_exact`, ...

    Raises:
        CheckFailedError: a pair changes the function; nothing is written.
        ConfigError, InvalidInputError, StorageError: as for `train`.
    """
    return run_grow(request, narrator).document()


@_takes(ProbeRequest)
def probe(request: ProbeRequest, narrator: Narrator) -> Document:
    """Check the mathematics of a checkpoint, as `ppdgrow probe`. It is only read.

    Returns:
        The document of `ppdgrow probe --json`. A promise that does not hold raises nothing: `passed` is then False,
        and `failures` says what failed.

    Raises:
        ConfigError, InvalidInputError, StorageError: as for `train`.
    """
    return run_probe(request, narrator).document()


@_takes(CompareRequest)
def compare(request: CompareRequest, narrator: Narrator) -> Document:
    """Compare runs with a baseline, or decide whether a growth is kept, as `ppdgrow compare`.

    Returns:
        The document of `ppdgrow compare --json`. A rejection raises nothing: `verdict` is then `reject`.

    Raises:
        ConfigError: runs that are not comparable, or arguments that would do nothing.
        InvalidInputError, DivergedError, StorageError: as for `train`.
    """
    comparison = run_compare(request, narrator)
    for warning in comparison.warnings:
        narrator.warn(warning)
    for file in write_files(comparison, request):
        narrator.say(f"written: {file}")
    return comparison.document()


def load(path: AnyPath, *, device: DeviceName = "cpu", untie: bool = True) -> Model:
    """The model of a run folder or checkpoint as a plain `torch.nn.Module`, in evaluation mode.

    `model(inputs)` gives logits: token ids `(B, T)` to `(B, T, V)`, images `(B, C, H, W)` or vectors `(B, N)` to
    `(B, V)`. `model.architecture` lists its blocks; `model.architecture.newest_ids` are those of the latest growth,
    whose parameters are named `blocks.ID. ..`.

    Args:
        path: a run folder (its newest valid checkpoint) or a checkpoint in one; every file is held against its
            manifest. Optimizer state is not read.
        device: where the model is put.
        untie: give each tied pair its second member, as the first step of `train` does. The function is the same to
            the bit. With False a pair is as stored: its one parameter set cancels whatever it holds, so that its
            gradient is zero up to rounding and the pair never learns anything.

    Raises:
        ConfigError: the device is not there, or it is a model of Transformers, which `load_pretrained` gives.
        InvalidInputError: the checkpoint is missing, cut off or altered.
    """
    request = LoadRequest.parse({"path": path, "device": device, "untie": untie})
    where = resolve_device(request.device)
    if pretrained_folder(request.path) is not None:
        raise ConfigError(f"{str(request.path)!r} is a model of Transformers: load it by ppdgrow.load_pretrained")
    checkpoint = load_parent(request.path, optimizer=False).checkpoint
    architecture, tensors = checkpoint.architecture, checkpoint.tensors
    if request.untie:
        architecture, tensors, _ = untie_pairs(architecture, tensors, {})
    return build_model(architecture, tensors, where).eval()


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Give torch's random state and its switch for deterministic kernels back to the caller."""
    before = _deterministic()
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if started else ()):
        try:
            yield
        finally:
            if _deterministic() != before:  # setting it imports much of torch, which an interrupt may have cut short
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
