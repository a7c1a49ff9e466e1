"""What a training step of a model holds in memory and costs, worked out on tensors that have a shape and no memory.

Left out are what comes and goes within an operation, what the allocator keeps in reserve, and evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ppdgrow.config.architecture import Architecture
from ppdgrow.config.schema import Recipe
from ppdgrow.engine.device import Precision, autocast
from ppdgrow.engine.evaluate import BatchLike, mean_loss
from ppdgrow.errors import ConfigError, first_line
from ppdgrow.nn.cost import count_parameters, tokens_per_example, training_flops_per_token
from ppdgrow.training.preparation import build
from ppdgrow.training.start import Start

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass(frozen=True)
class Memory:
    """Bytes that a run holds at the end of a forward pass, the largest of these sums within a step."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    data_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(asdict(self).values())

    def document(self) -> dict[str, int]:
        """With the total."""
        return asdict(self) | {"total_bytes": self.total_bytes}


@dataclass(frozen=True)
class Footprint:
    """A model in training: what it costs and holds. `tensors` and `moments` are what its checkpoint would hold."""

    architecture: Architecture
    parameters: int
    tokens_per_step: int
    flops_per_step: int
    memory: Memory
    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]


def footprint(
    start: Start,
    recipe: Recipe,
    batch: BatchLike,
    *,
    device: torch.device,
    precision: Precision,
    data_bytes: int,
    fake: FakeTensorMode,
) -> Footprint:
    """What training from a start takes.

    Args:
        start: of fake tensors; its architecture has no tied pairs.
        recipe: of the run.
        batch: one training batch, real or fake; what counts is its first and largest microbatch.
        device: of the model.
        precision: the working precision.
        data_bytes: what the data takes.
        fake: the mode of the tensors.

    Raises:
        ConfigError: a tensor would be larger than can be counted.
    """
    architecture, train = start.architecture, recipe.train
    tokens = train.batch_size * tokens_per_example(architecture)
    try:
        model, optimizer = build(start, recipe, device, fake)
        with fake:
            # A microbatch is a view of its batch, which is what the embedding keeps.
            inputs, targets = (
                torch.empty(whole.shape, dtype=whole.dtype, device=device).tensor_split(train.accumulate)[0]
                for whole in (batch.inputs, batch.targets)
            )
            activations = saved_bytes(model, inputs, targets, device=device, precision=precision)
            moments = dict(start.moments)  # of parameters that are not trained now, they are handed on
            moments |= {name: _moments(parameter) for name, parameter in optimizer.parameters.items()}
    except (RuntimeError, OverflowError) as error:
        if not any(word in str(error).lower() for word in ("overflow", "too large", "too many elements")):
            raise
        raise ConfigError(
            f"the model cannot even be counted ({first_line(error)}): use a smaller train.batch_size, "
            "data.sequence_length, model.width or model.layers"
        ) from None
    trained = optimizer.parameters.values()
    memory = Memory(
        weights_bytes=storage_bytes(model.state_dict().values()),
        gradients_bytes=sum(parameter.nbytes for parameter in trained),
        optimizer_bytes=sum(tensor.nbytes for name in optimizer.parameters for tensor in moments[name].values()),
        activations_bytes=activations,
        data_bytes=data_bytes,
    )
    flops = tokens * training_flops_per_token(architecture)
    parameters = count_parameters(architecture)
    return Footprint(architecture, parameters, tokens, flops, memory, dict(model.state_dict()), moments)


def microbatch_size(recipe: Recipe) -> int:
    """Examples of the largest microbatch in which a batch is computed."""
    return -(-recipe.train.batch_size // recipe.train.accumulate)


def _moments(parameter: Tensor) -> dict[str, Tensor]:
    return {
        "exp_avg": torch.empty_like(parameter),
        "exp_avg_sq": torch.empty_like(parameter),
        "step": torch.empty((), dtype=torch.float32),
    }


def saved_bytes(
    model: nn.Module, inputs: Tensor, targets: Tensor, *, device: torch.device, precision: Precision
) -> int:
    """Bytes of the storages that a forward pass and its loss keep for the backward pass, the weights left out.

    A cast of a weight to bf16 is counted: it is kept beside the weight.
    """
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with autocast(device, precision):
            logits = model(inputs)
        loss = mean_loss(logits, targets)
    total = storage_bytes(saved, beside=model.state_dict().values())
    del loss  # until here it kept the storages apart: a freed one could give its address to the next
    return total


def storage_bytes(tensors: Iterable[Tensor], *, beside: Iterable[Tensor] = ()) -> int:
    """Bytes of all different storages of some tensors, without those of the tensors `beside`."""
    others = {tensor.untyped_storage()._cdata for tensor in beside}
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for storage, size in sizes.items() if storage not in others)


def held_tensors(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors that a data set or a batch holds, however deep."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, dict):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif is_dataclass(value) or type(value).__module__.startswith("ppdgrow."):
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    else:
        return
    for part in parts:
        yield from held_tensors(part, seen)
