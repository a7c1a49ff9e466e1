"""Modules without memory: on torch's meta device, and without drawing values that nobody sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ppdgrow.errors import InvalidInputError


class _SkipInitialisers(TorchFunctionMode):
    """What has no memory has no values; to draw them all the same would import torch._dynamo, for a second or more."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def without_memory(width: int) -> Iterator[None]:
    """Modules that are built here have shapes and neither memory nor values.

    Raises:
        InvalidInputError: a tensor is larger than can be counted.
    """
    try:
        with torch.device("meta"), _SkipInitialisers():
            yield
    except (RuntimeError, OverflowError):
        # torch counts bytes in 64 bits, on the meta device too.
        raise InvalidInputError(
            f"a model of width {width} is larger than any memory; use sizes that belong together"
        ) from None
