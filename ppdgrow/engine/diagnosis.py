"""Why a step failed, found by repeating it: where something non-finite first appeared, and how it fits the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ppdgrow.data import Batch
from ppdgrow.engine.device import Precision, autocast
from ppdgrow.engine.evaluate import mean_loss


def first_non_finite(
    model: nn.Module, batch: Batch, *, device: torch.device, precision: Precision, backward: bool
) -> str | None:
    """Repeat an evaluation, or with `backward` a training step, and name the first place of a NaN or infinity.

    In words, such as `in block l3, in the output of blocks.l3.g.up`; None if all is finite. Of several gradients it is
    the one computed first, that of the last parameter. Gradients of the model are lost, and dropout draws anew.
    """
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return _place(name, "the weights")
    seen: list[str] = []
    training = model.training
    model.train(backward)
    with _watched(model, seen), autocast(device, precision), torch.set_grad_enabled(backward):
        logits = model(batch.inputs)
    model.train(training)
    if seen:
        return seen[0]
    loss = mean_loss(logits, batch.targets)
    if not _finite(loss):
        return "in the loss of finite outputs"
    if not backward:
        return None
    model.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    model.zero_grad(set_to_none=True)
    return _place(bad[-1], "the gradient") if bad else None


@contextmanager
def _watched(model: nn.Module, seen: list[str]) -> Iterator[None]:
    """Collect the inputs and outputs of modules that are not finite, in the order of computation."""

    def look(name: str, what: str, module: nn.Module, *values: Any) -> None:
        if not seen and not all(_finite(leaf) for leaf in tree_leaves(values[-1]) if isinstance(leaf, Tensor)):
            seen.append(_place(name, what))

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(partial(look, name, "the input")))
        handles.append(module.register_forward_hook(partial(look, name, "the output")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _place(name: str, what: str) -> str:
    parts = name.split(".")
    block = f"in block {parts[1]}, " if parts[0] == "blocks" and len(parts) > 1 else ""
    return f"{block}in {what} of {name or 'the model'}"


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


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
