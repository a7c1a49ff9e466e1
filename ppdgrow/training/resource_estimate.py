"""What a run takes, worked out before its first step on tensors that have a shape and no content: memory and disk.

Memory leaves out what comes and goes within an operation, what the allocator keeps in reserve, and evaluation.
On the disk the checkpoints of the run itself count. Logs are small, and those of a trial come and go beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ppdgrow.atomic import free_bytes, storage_errors
from ppdgrow.checkpoint import Checkpoint, RunFolder
from ppdgrow.checkpoint.format import checkpoint_bytes
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import Ledger, TrainerState, Validation
from ppdgrow.data import Batch
from ppdgrow.engine.device import Precision, autocast, describe_environment, rng_state
from ppdgrow.engine.evaluate import mean_loss
from ppdgrow.errors import ConfigError, first_line
from ppdgrow.optim.optimizer import new_moments
from ppdgrow.training.context import Setting
from ppdgrow.training.growth_schedule import PlannedGrowth
from ppdgrow.training.models import build_model, shape_model
from ppdgrow.training.resume import Start
from ppdgrow.training.trainer import make_optimizer, select_trained
from ppdgrow.units import format_bytes

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


def memory_estimate(
    start: Start, *, setting: Setting, batch: Batch, device: torch.device, data_bytes: int, fake: FakeTensorMode
) -> dict[str, int]:
    """Bytes by use, and in all, that training holds at the end of a forward pass, when they are the most.

    The tensors of `start` are of the mode `fake`, its pairs untied. Of a training batch, real or fake, the first and
    largest microbatch counts; the data takes `data_bytes`. Tensors beyond counting are refused.
    """
    train = setting.recipe.train
    try:
        with fake:
            model = build_model(start.architecture, start.tensors, device)
            optimizer = make_optimizer(model, start, train)
            # A microbatch is a view of its batch, which is what the embedding keeps.
            inputs, targets = (
                torch.empty(whole.shape, dtype=whole.dtype, device=device).tensor_split(train.accumulate)[0]
                for whole in (batch.inputs, batch.targets)
            )
            activations = saved_bytes(model, inputs, targets, device=device, precision=setting.precision)
            moments = new_moments(model, train)
    except (RuntimeError, OverflowError) as error:
        if not any(word in str(error).lower() for word in ("overflow", "too large", "too many elements")):
            raise
        raise ConfigError(
            f"the model cannot even be counted ({first_line(error)}): use a smaller train.batch_size, "
            "data.sequence_length, model.width or model.layers"
        ) from None
    memory = {
        "weights_bytes": storage_bytes(model.state_dict().values()),
        "gradients_bytes": sum(parameter.nbytes for parameter in optimizer.parameters.values()),
        "optimizer_bytes": sum(tensor.nbytes for state in moments.values() for tensor in state.values()),
        "activations_bytes": activations,
        "data_bytes": data_bytes,
    }
    return memory | {"total_bytes": sum(memory.values())}


def microbatch_size(recipe: Recipe) -> int:
    """Examples of the largest microbatch in which a batch is computed."""
    return -(-recipe.train.batch_size // recipe.train.accumulate)


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
    for part in tree_leaves(value):
        if isinstance(part, Tensor):
            yield part
        elif type(part).__module__.startswith("ppdgrow.") and id(part) not in seen:
            seen.add(id(part))
            yield from held_tensors(getattr(part, "__dict__", {}), seen)


@dataclass(frozen=True)
class Space:
    """What the run `run` takes on the disk, in bytes.

    `kept_at_once` checkpoints are there while one is written: the newest, the best and the new one. Their sizes are
    `checkpoints`, at the start and once all growths were kept; `present` is what the run's folder has already.
    """

    run: Path
    kept_at_once: int
    checkpoints: tuple[int, int]
    present: int
    free: int

    @property
    def counted(self) -> str:
        return f"{self.kept_at_once} checkpoint{'' if self.kept_at_once == 1 else 's'}"

    @property
    def total(self) -> int:
        return self.kept_at_once * max(self.checkpoints)

    @property
    def shortage(self) -> str | None:
        """What is needed, what is there and a way out, in one line; None if it fits."""
        # At least one checkpoint is written before an older one goes.
        needed = max(self.total - self.present, max(self.checkpoints))
        if needed <= self.free:
            return None
        beside = f" beside the {format_bytes(self.present)} in {str(self.run)!r}" if self.present else ""
        return (
            f"{self.counted} need{'s' if self.kept_at_once == 1 else ''} {format_bytes(needed)}{beside}, but only "
            f"{format_bytes(self.free)} are free: free some space, choose another --out, or lower train.keep"
        )


def disk_space(
    run: RunFolder, setting: Setting, start: Start, planned: Sequence[PlannedGrowth], device: torch.device
) -> Space:
    """The space of a run whose folder need not exist, from shapes alone."""
    train, state = setting.recipe.train, _longest_state(start.step, setting, device)

    def size(architecture: Architecture) -> int:
        model = shape_model(architecture)
        select_trained(model, train)
        moments = start.moments | new_moments(model, train)  # those of parameters not trained now are handed on
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        tensors = {
            name: tensor.to(start.tensors[name].dtype) if name in frozen else tensor
            for name, tensor in model.state_dict().items()
        }
        tokenizer = setting.dataset.tokenizer_json
        checkpoint = Checkpoint(architecture, tensors, moments, rng_state(device), state, tokenizer, files=start.files)
        return checkpoint_bytes(checkpoint)

    first = size(start.architecture)
    sizes = (first, size(planned[-1].kept) if planned else first)
    folder = run.path / "checkpoints"  # it may be a link to another disk
    with storage_errors(folder):
        own = [checkpoint for checkpoint in run.checkpoints() if not checkpoint.is_symlink()]
        present = sum(file.stat().st_size for checkpoint in own for file in checkpoint.rglob("*") if file.is_file())
        saves = train.steps // train.save_every + len(planned) + 1
        return Space(run.path, min(train.keep + 2, saves), sizes, present, free_bytes(folder))


def _longest_state(first: int, setting: Setting, device: torch.device) -> TrainerState:
    """A trainer state with figures that are as long as real ones."""
    third = 1 / 3
    figures: dict[str, Any] = dict.fromkeys(("loss", "accuracy", "perplexity", "bits_per_byte"), third)
    classes = dict.fromkeys(setting.dataset.class_names or (), third) or None
    return TrainerState(
        step=first + setting.recipe.train.steps,
        lr_factor=third,
        ledger=Ledger(tokens=10**9, flops=10**15, seconds=100 * third),
        validation=Validation(**figures, class_accuracy=classes),
        train_loss=third,
        data=setting.identity(),
        environment=describe_environment(device, "fp32", accumulate=1),
    )
