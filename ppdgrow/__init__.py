"""ppdgrow: grow neural networks in depth with identity-cancelling pairs.

What the commands do is callable: `train`, `grow`, `probe` and `compare` take what the command takes and return its
JSON document as a dict; `load` gives the model of a run as a plain PyTorch module, `load_pretrained` that of a folder
of Transformers. They fail by a `PPDGrowError`.
torch is imported when one of them is first looked at, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdgrow.errors import (
    CheckFailedError,
    ConfigError,
    DivergedError,
    InterruptedRunError,
    InvalidInputError,
    PPDGrowError,
    StorageError,
)

if TYPE_CHECKING:
    from ppdgrow.api import compare, grow, load, load_pretrained, probe, train

__version__ = "0.1.0"

__all__ = [
    "CheckFailedError",
    "ConfigError",
    "DivergedError",
    "InterruptedRunError",
    "InvalidInputError",
    "PPDGrowError",
    "StorageError",
    "__version__",
    "compare",
    "grow",
    "load",
    "load_pretrained",
    "probe",
    "train",
]


def __getattr__(name: str) -> Any:
    """The functions of `ppdgrow.api`, on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ppdgrow import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
