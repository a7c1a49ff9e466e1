"""Tests that run on a GPU where there is one, and with the same body on the CPU, so that they cannot rot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

CUDA = pytest.param(
    torch.device("cuda"),
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    id="cuda",
)
on_each_device = pytest.mark.parametrize("device", [pytest.param(torch.device("cpu"), id="cpu"), CUDA])


@contextmanager
def waiting_is_an_error(device: torch.device) -> Iterator[None]:
    """On a GPU, a read of a value that is still being computed raises; a CPU computes at once."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
