"""Where and in which precision a model runs, decided once and recorded with the run."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import Tensor, nn

from ppdgrow.config.state import Environment
from ppdgrow.errors import ConfigError, InvalidInputError

Precision = Literal["fp32", "bf16"]
AUTO_MIN_WIDTH = 256
AUTO_MIN_SPEEDUP = 1.5


def resolve_device(requested: str) -> torch.device:
    """`auto` is CUDA where there is a GPU, else the CPU; `cuda` where there is none is a `ConfigError`."""
    if requested == "auto":
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    if requested.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("--device cuda: no CUDA device is available here; use --device cpu or auto")
    return torch.device(requested)


def set_deterministic(deterministic: bool) -> None:
    """Ask torch for deterministic kernels (CUDA gradients are not bit-stable without)."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    if deterministic != torch.are_deterministic_algorithms_enabled():  # the switch imports much of torch: seconds
        torch.use_deterministic_algorithms(deterministic)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """The autocast context of one forward pass.

    It must be entered anew for each forward: held over an in-place update it would use stale weight casts.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def choose_precision(model: nn.Module, inputs: Tensor, width: int, device: torch.device) -> tuple[Precision, str]:
    """Resolve `train.precision: auto`, with the reason in words.

    CUDA takes bf16 where the device has it. A CPU takes fp32 below width 256 without measuring, and from 256
    up bf16 only if a forward and backward pass is measured at least 1.5 times faster.
    """
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "auto: cuda"
        return "fp32", "auto: no bf16 on this GPU"
    if width < AUTO_MIN_WIDTH:
        return "fp32", f"auto: cpu, width below {AUTO_MIN_WIDTH}"
    speedup = _measure_speedup(model, inputs[:2], device)
    chosen: Precision = "bf16" if speedup >= AUTO_MIN_SPEEDUP else "fp32"
    return chosen, f"measured: bf16 runs {speedup:.1f}x as fast as fp32"


def _measure_speedup(model: nn.Module, inputs: Tensor, device: torch.device) -> float:
    """Median fp32 time over median bf16 time of a forward and backward pass, measured in turn."""
    seconds: dict[Precision, list[float]] = {"fp32": [], "bf16": []}
    order: tuple[Precision, ...] = ("fp32", "bf16")
    for repeat in range(6):
        for precision in order:
            start = time.perf_counter()
            with autocast(device, precision):
                outputs = model(inputs)
            outputs.float().square().mean().backward()
            if repeat:
                seconds[precision].append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
        slow = repeat and seconds["bf16"][0] > 20 * seconds["fp32"][0]
        if slow:  # emulated bf16 can be hundreds of times slower: no need to see it five times
            break
    return statistics.median(seconds["fp32"]) / statistics.median(seconds["bf16"])


def describe_environment(device: torch.device, precision: Precision, *, accumulate: int) -> Environment:
    """What decides the last bits of a run beside its recipe, and `accumulate`, which may change in a run."""
    return Environment(
        torch=str(torch.__version__),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        precision=precision,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        accumulate=accumulate,
    )


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """The random streams that a training step draws from, by name."""
    streams = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        streams["cuda"] = torch.cuda.get_rng_state(device)
    return streams


def set_rng_state(streams: dict[str, Tensor], device: torch.device, seed: int) -> None:
    """Restore the random streams; those that a checkpoint does not have are seeded."""
    torch.manual_seed(seed)
    try:
        if "cpu" in streams:
            torch.set_rng_state(streams["cpu"])
        if device.type == "cuda" and "cuda" in streams:
            torch.cuda.set_rng_state(streams["cuda"], device)
    except (RuntimeError, TypeError) as error:
        raise InvalidInputError(f"the checkpoint's random state does not fit this torch: {error}") from None
