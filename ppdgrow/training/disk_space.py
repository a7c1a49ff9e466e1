"""The disk that a run takes, worked out before its first step: the run refuses and its dry run warns by one figure.

What is counted are the checkpoints of the run itself. Logs are small, and those of a trial come and go beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ppdgrow.atomic import free_bytes, storage_errors
from ppdgrow.checkpoint import Checkpoint, RunFolder
from ppdgrow.checkpoint.format import checkpoint_bytes
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.schema import Recipe
from ppdgrow.config.state import Ledger, TrainerState, Validation
from ppdgrow.data import Dataset
from ppdgrow.engine.device import Precision, describe_environment, rng_state
from ppdgrow.errors import StorageError
from ppdgrow.nn.model import tensor_shapes
from ppdgrow.nn.parts import NAMES
from ppdgrow.training.growth_schedule import GrowthSchedule
from ppdgrow.training.outlook import stages
from ppdgrow.training.start import Start
from ppdgrow.units import format_bytes


@dataclass(frozen=True)
class Space:
    """What a run takes on the disk, in bytes.

    `saves` is how often the run saves at the most, `checkpoints` are sizes at the start and once all growths were
    kept, `held` what the run's folder has already.
    """

    run: Path
    keep: int
    saves: int
    checkpoints: tuple[int, int]
    held: int
    free: int

    @property
    def kept_at_once(self) -> int:
        """Checkpoints on the disk while one is written: the newest, the best and the new one."""
        return min(self.keep + 2, self.saves)

    @property
    def counted(self) -> str:
        """Those in words."""
        return f"{self.kept_at_once} checkpoint{'' if self.kept_at_once == 1 else 's'}"

    @property
    def total(self) -> int:
        """What they take, at their largest."""
        return self.kept_at_once * max(self.checkpoints)

    @property
    def needed(self) -> int:
        """What is still to be written of that: at least one checkpoint, before an older one goes."""
        return max(self.total - self.held, max(self.checkpoints))

    @property
    def shortage(self) -> str | None:
        """What is needed, what is there and a way out, in one line; None if it fits."""
        if self.needed <= self.free:
            return None
        beside = f" beside the {format_bytes(self.held)} in {str(self.run)!r}" if self.held else ""
        return (
            f"{self.counted} need{'s' if self.kept_at_once == 1 else ''} {format_bytes(self.needed)}{beside}, but only "
            f"{format_bytes(self.free)} are free: free some space, choose another --out, or lower train.keep"
        )

    def check(self) -> None:
        """Refuse a run whose checkpoints do not fit.

        Raises:
            StorageError: they do not.
        """
        if self.shortage is not None:
            raise StorageError(f"the run {str(self.run)!r} does not fit: {self.shortage}")


def space_of(
    run: RunFolder,
    recipe: Recipe,
    start: Start,
    growth_schedule: GrowthSchedule,
    dataset: Dataset,
    examples: int,
    device: torch.device,
) -> Space:
    """The space of a run, from shapes alone.

    Args:
        run: its folder, which need not exist.
        recipe: of the run.
        start: its first; only shapes of its tensors are looked at.
        growth_schedule: checked against the start.
        dataset: of the run.
        examples: in the fixed validation batches.
        device: of the model.

    Raises:
        StorageError: the file system cannot be asked.
    """
    planned = stages(growth_schedule, start.architecture)
    state = _longest_state(growth_schedule.last, dataset, examples, device)

    def size(architecture: Architecture) -> int:
        with torch.device("meta"):
            tensors = {name: torch.empty(shape) for name, shape in tensor_shapes(architecture).items()}
            newest = architecture.newest_ids
            trained = [name for name in tensors if recipe.train.only == "all" or NAMES.block_of(name) in newest]
            moments = dict(start.moments)  # of parameters that are not trained now, they are handed on
            for name in trained:
                step = torch.empty(())
                moments[name] = {"exp_avg": tensors[name], "exp_avg_sq": tensors[name], "step": step}
        rng = rng_state(device)
        return checkpoint_bytes(Checkpoint(architecture, tensors, moments, rng, state, dataset.tokenizer_json))

    first = size(start.architecture)
    last = size(planned[-1].kept) if planned else first
    folder = run.path / "checkpoints"  # it may be a link to another disk
    with storage_errors(folder):
        own = [checkpoint for checkpoint in run.checkpoints() if not checkpoint.is_symlink()]
        held = sum(file.stat().st_size for checkpoint in own for file in checkpoint.rglob("*") if file.is_file())
        saves = (
            (growth_schedule.last - growth_schedule.first) // recipe.train.save_every + len(growth_schedule.entries) + 1
        )
        return Space(run.path, recipe.train.keep, saves, (first, last), held, free_bytes(folder))


def _longest_state(step: int, dataset: Dataset, examples: int, device: torch.device) -> TrainerState:
    """A trainer state with figures that are as long as real ones."""
    third = 1 / 3
    precision: Precision = "fp32"
    return TrainerState(
        step=step,
        lr_factor=third,
        ledger=Ledger(tokens=10**9, flops=10**15, seconds=100 * third),
        validation=Validation(
            loss=third,
            accuracy=third,
            perplexity=third,
            bits_per_byte=third,
            class_accuracy=dict.fromkeys(dataset.class_names or (), third) or None,
        ),
        train_loss=third,
        data=dataset.identity(examples),
        environment=describe_environment(device, precision, deterministic=False, accumulate=1),
    )
