"""What the commands do, as functions.

Each takes what the command takes, by the names of its options, and returns its JSON document (DESIGN section 4).
Narration goes to stderr; nothing is printed on stdout. Paths are those of run folders, or of checkpoints in them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from ppdgrow.arguments import (
    AnyPath,
    AskedPrecision,
    Device,
    mapping,
    one_of,
    optional_number,
    optional_one_of,
    optional_path,
    optional_whole,
    path_of,
    plain,
    switch,
)
from ppdgrow.comparison.compare import compare as run_compare
from ppdgrow.comparison.report import write_files
from ppdgrow.comparison.request import CompareRequest
from ppdgrow.config.growth import Method, Moments, Rule, Source
from ppdgrow.config.load import Layer, flat_keys, read_yaml
from ppdgrow.console import Narrator
from ppdgrow.engine.device import resolve_device
from ppdgrow.growth.grow import GrowRequest, growth_asked
from ppdgrow.growth.grow import grow as run_grow
from ppdgrow.growth.train import train as run_train
from ppdgrow.nn.model import Model, build_model
from ppdgrow.probing.cancellation import DTYPES
from ppdgrow.probing.probe import ProbeRequest
from ppdgrow.probing.probe import probe as run_probe
from ppdgrow.surgery import untie as untie_pairs
from ppdgrow.training.context import load_parent
from ppdgrow.training.dry_run import make_preview, preview_document
from ppdgrow.training.preparation import TrainRequest

Resume = Literal["auto", "never"]


def train(
    checkpoint: AnyPath | None = None,
    *,
    recipe: AnyPath | Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    out: AnyPath | None = None,
    device: Device = "auto",
    resume: Resume = "auto",
    deterministic: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train a model from scratch, or on from a checkpoint, as `ppdgrow train`.

    A run that is there already goes on where it stopped; a finished one is not run again. torch's random state and
    its switch for deterministic kernels are afterwards what they were before.

    In the main thread Ctrl-C and SIGTERM end the training at the next step by an `InterruptedRunError`, with the state
    saved: the same call goes on from there (before the first step, Ctrl-C is the usual `KeyboardInterrupt`). A second
    signal ends the whole process at once. In any other thread no signal reaches the training.

    Args:
        checkpoint: to go on from; a tied pair is untied by the first step. None: a new model.
        recipe: a YAML file, or the same as a mapping of sections: `{"train": {"lr": 3e-4}}`.
        values: recipe values by dotted key, such as `{"train.lr": 3e-4}`, over those of the recipe.
        out: the run folder; without it one is named, see `run` in the document.
        device: `auto` is CUDA where there is a GPU, else the CPU.
        resume: `never` refuses a folder that holds this run already.
        deterministic: deterministic kernels on CUDA.
        dry_run: return what the run would do, cost and hold; train and write nothing.
        quiet: no narration; warnings stay.

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
    layers = []
    if isinstance(recipe, Mapping):
        layers.append(Layer("recipe", flat_keys(mapping("recipe", recipe), "recipe")))
    elif recipe is not None:
        path = path_of("recipe", recipe)
        layers.append(Layer(f"recipe {path}", read_yaml(path)))
    if values is not None:
        layers.append(Layer("values", mapping("values", values)))
    request = TrainRequest(
        layers=layers,
        checkpoint=optional_path("checkpoint", checkpoint),
        out=optional_path("out", out),
        device=one_of("device", device, Device),
        resume=one_of("resume", resume, Resume),
        deterministic=switch("deterministic", deterministic),
    )
    with _torch_as_it_was():
        if switch("dry_run", dry_run):
            return preview_document(make_preview(request, Narrator(quiet=quiet)))
        return run_train(request, Narrator(quiet=quiet))


def grow(
    checkpoint: AnyPath,
    *,
    pair: str | Sequence[str] | None = None,
    pairs: int | None = None,
    position: str | int | Sequence[int] = "interleave",
    source: Source | None = None,
    scale: float = 1.0,
    method: Method = "pair",
    moments: Moments = "copy_v",
    remove: str | None = None,
    evaluate: bool = True,
    out: AnyPath | None = None,
    device: Device = "auto",
    precision: AskedPrecision | None = None,
    data_dir: AnyPath | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Add identity-cancelling pairs to a checkpoint, or take one out, as `ppdgrow grow`. The input is only read.

    Args:
        checkpoint: to grow.
        pair: a kind, or one for each pair, whose last repeats. None: `ffn`.
        pairs: how many, each two layers. None: as many as kinds or places are named, at least one.
        position: `end`, `start`, `middle`, `interleave`, or after how many blocks, such as `[2, 4, 6]`.
        source: where theta_0 comes from. None: `copy` in a coupled stream, `slice` in a residual one.
        scale: factor on the output projections of theta_0.
        method: `pair`, or a rival that adds as many whole layers.
        moments: optimizer state of the new parameters.
        remove: `last` or the id of a pair to take out, in place of growing.
        evaluate: measure the validation loss before and after; False compares outputs on one synthetic batch.
        out: the new run folder; without it one is named, see `run` in the document.
        device: where to evaluate.
        precision: None: that in which the checkpoint was trained.
        data_dir: local copies of the data sets; None: as in training.
        quiet: no narration; warnings stay.

    Returns:
        The document of `ppdgrow grow --json`: `run`, `checkpoint`, `pairs` (their ids), `bit_exact`, ...

    Raises:
        CheckFailedError: a pair changes the function; nothing is written.
        ConfigError, InvalidInputError, StorageError: as for `train`.
    """
    asked: dict[str, Any] = {"pair": pair, "pairs": pairs, "position": position, "source": source}
    asked |= {"scale": scale, "method": method, "moments": moments}
    request = GrowRequest(
        checkpoint=path_of("checkpoint", checkpoint),
        growth=growth_asked(plain(asked), remove=remove, source="the arguments"),
        remove=remove,
        evaluate=switch("evaluate", evaluate),
        out=optional_path("out", out),
        device=one_of("device", device, Device),
        precision=optional_one_of("precision", precision, AskedPrecision),
        data_dir=optional_path("data_dir", data_dir),
    )
    return run_grow(request, Narrator(quiet=quiet)).document()


def probe(
    checkpoint: AnyPath,
    *,
    dtypes: Sequence[str] | None = None,
    plot: AnyPath | None = None,
    sample: str | None = None,
    tokens: int | None = None,
    seed: int | None = None,
    device: Device = "auto",
    precision: AskedPrecision | None = None,
    data_dir: AnyPath | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Check the mathematics of a checkpoint, as `ppdgrow probe`. It is only read.

    Args:
        checkpoint: to probe.
        dtypes: types in which to measure the cancellation: fp64, fp32, bf16, bf16_autocast, fp16. None: all.
        plot: a file (.svg or .png) for gradient norm and activity per block; needs `ppdgrow[plot]`.
        sample: a text that a language model is to continue.
        tokens: of the continuation. None: 200.
        seed: of its draws. None: 0.
        device: where to compute.
        precision: None: that in which the checkpoint was trained.
        data_dir: local copies of the data sets; None: as in training.
        quiet: no narration; warnings stay.

    Returns:
        The document of `ppdgrow probe --json`. A promise that does not hold raises nothing: `passed` is then False,
        and `failures` says what failed.

    Raises:
        ConfigError, InvalidInputError, StorageError: as for `train`.
    """
    request = ProbeRequest(
        checkpoint=path_of("checkpoint", checkpoint),
        dtypes=tuple(DTYPES) if dtypes is None else (dtypes,) if isinstance(dtypes, str) else tuple(dtypes),
        device=one_of("device", device, Device),
        precision=optional_one_of("precision", precision, AskedPrecision),
        data_dir=optional_path("data_dir", data_dir),
        plot=optional_path("plot", plot),
        sample=None if sample is None else str(sample),
        tokens=optional_whole("tokens", tokens),
        seed=optional_whole("seed", seed),
    )
    return run_probe(request, Narrator(quiet=quiet)).document()


def compare(
    baseline: AnyPath,
    *others: AnyPath,
    accept: bool = False,
    epsilon: float | None = None,
    twin: AnyPath | None = None,
    margin: float | None = None,
    rule: Rule | None = None,
    test: bool = False,
    plot: AnyPath | None = None,
    report: AnyPath | Sequence[AnyPath] = (),
    device: Device | None = None,
    precision: AskedPrecision | None = None,
    data_dir: AnyPath | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Compare runs with a baseline, or decide whether a growth is kept, as `ppdgrow compare`.

    Args:
        baseline: a run folder, or a folder of runs that are the seeds of one arm; with `accept` the parent.
        *others: more of them; with `accept` the trial alone.
        accept: decide between parent and trial.
        epsilon: nats that the trial may lose against its parent. None: 0.
        twin: the ungrown model, trained on from the parent on the same batches for the same budget.
        margin: nats that the trial may lose against the twin. None: 0.01.
        rule: the one that decides. None: `twin` where there is a twin, else `parent`.
        test: evaluate every run on the whole test split too; it must not decide anything.
        plot: a file (.svg or .png) for the curves; needs `ppdgrow[plot]`.
        report: one or more files (.html or .md) for a page with every figure.
        device: where models are evaluated, with `twin` and `test`. None: `auto`.
        precision: in which they are. None: as they were trained.
        data_dir: local copies of the data sets; None: as in training.
        quiet: no narration; warnings stay.

    Returns:
        The document of `ppdgrow compare --json`. A rejection raises nothing: `verdict` is then `reject`.

    Raises:
        ConfigError: runs that are not comparable, or arguments that would do nothing.
        InvalidInputError, DivergedError, StorageError: as for `train`.
    """
    pages = [report] if isinstance(report, str | os.PathLike) else report
    request = CompareRequest(
        paths=[path_of("baseline", baseline), *(path_of("others", other) for other in others)],
        accept=switch("accept", accept),
        epsilon=optional_number("epsilon", epsilon),
        twin=optional_path("twin", twin),
        margin=optional_number("margin", margin),
        rule=optional_one_of("rule", rule, Rule),
        test=switch("test", test),
        plot=optional_path("plot", plot),
        report=tuple(path_of("report", page) for page in pages),
        device=optional_one_of("device", device, Device),
        precision=optional_one_of("precision", precision, AskedPrecision),
        data_dir=optional_path("data_dir", data_dir),
    )
    narrator = Narrator(quiet=quiet)
    comparison = run_compare(request, narrator)
    for warning in comparison.warnings:
        narrator.warn(warning)
    for file in write_files(comparison, request):
        narrator.say(f"written: {file}")
    return comparison.document()


def load(path: AnyPath, *, device: Device = "cpu", untie: bool = True) -> Model:
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
        ConfigError: the device is not there.
        InvalidInputError: the checkpoint is missing, cut off or altered.
    """
    untie = switch("untie", untie)
    where = resolve_device(one_of("device", device, Device))
    checkpoint = load_parent(path_of("path", path), optimizer=False).checkpoint
    architecture, tensors = checkpoint.architecture, checkpoint.tensors
    if untie:
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
