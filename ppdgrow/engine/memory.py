"""Out of memory: told apart from other failures, with a number of pieces that is known to fit because it was tried."""

from __future__ import annotations

from collections.abc import Callable

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python could not get memory, on any device."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    )


def pieces_that_fit(attempt: Callable[[int], None], batch_size: int, failed: int) -> int | None:
    """The smallest number of pieces, by doubling, in which a batch can be computed; None if not even one by one.

    Args:
        attempt: computes the largest of so many pieces; what it keeps must be freed when it ends.
        batch_size: examples of a batch.
        failed: the number of pieces that did not fit.
    """
    pieces = failed
    while pieces < batch_size:
        pieces = min(2 * pieces, batch_size)
        try:
            attempt(pieces)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return pieces
        finally:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
    return None
