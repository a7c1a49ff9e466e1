"""Out of memory: recognised, with a number of microbatches that is known to fit because it was tried."""

from __future__ import annotations

from collections.abc import Callable

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python could not get memory, on any device."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "out of memory" in text)
    )


def microbatches_that_fit(attempt: Callable[[int], None], batch_size: int, failed: int) -> int | None:
    """The smallest number of microbatches, by doubling, in which a batch can be computed; None if not even one by one.

    Args:
        attempt: computes the largest of so many microbatches; what it keeps must be freed when it ends.
        batch_size: examples of a batch.
        failed: the number of microbatches that did not fit.
    """
    microbatches = failed
    while microbatches < batch_size:
        microbatches = min(2 * microbatches, batch_size)
        try:
            attempt(microbatches)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return microbatches
        finally:
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.empty_cache()
    return None
