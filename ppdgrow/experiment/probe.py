"""`probe`: what the pairs and blocks of a checkpoint do, measured on real hidden states.

Cancellation and opposite gradients are judged for pairs that are recorded as tied, where they are promises;
the inverse is judged for every coupling.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ppdgrow.config.architecture import BlockSpec
from ppdgrow.console import Narrator
from ppdgrow.engine.device import autocast
from ppdgrow.engine.evaluate import BatchLike, mean_loss
from ppdgrow.errors import ConfigError
from ppdgrow.experiment.cancellation import (
    DTYPES,
    ROUND_TRIP_BOUND_FP64,
    Deviation,
    activity,
    cancellation,
    gradient_antisymmetry,
    round_trip,
    separate_members,
    separation,
)
from ppdgrow.experiment.setting import Setting, checkpoint_setting, load_parent, warn_of_changes
from ppdgrow.nn.coupling import Coupling, Pair
from ppdgrow.nn.linear import LinearPair
from ppdgrow.nn.model import Model, State, build_model


@dataclass(frozen=True)
class ProbeRequest:
    """What a user asks of `probe`."""

    checkpoint: Path
    dtypes: tuple[str, ...] = tuple(DTYPES)
    device: str = "auto"
    precision: str | None = None
    data_dir: Path | None = None


@dataclass(frozen=True)
class PairReport:
    """The figures of one pair. `gradient_antisymmetry` is None where the gradient is zero."""

    id: str
    kind: str
    tied: bool
    cancellation: dict[str, Deviation]
    round_trip: Deviation
    gradient_antisymmetry: float | None
    separation: float
    activity: float
    ablation_loss: float
    gradient_norm: float


@dataclass(frozen=True)
class BlockReport:
    """The figures of one block. `round_trip` is None for a residual layer, which has no inverse."""

    id: str
    kind: str
    round_trip: Deviation | None
    round_trip_fp64: Deviation | None
    gradient_norm: float


@dataclass(frozen=True)
class ProbeReport:
    """All figures, and the judgement: `failures` is empty when every promise holds."""

    loss: float
    pairs: tuple[PairReport, ...]
    blocks: tuple[BlockReport, ...]
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every judged promise holds."""
        return not self.failures

    def document(self) -> dict[str, Any]:
        """The JSON of `probe`; a figure that is not finite is null."""
        return _finite(
            {
                "schema": 1,
                "passed": self.passed,
                "failures": list(self.failures),
                "loss": self.loss,
                "pairs": [asdict(pair) | {"round_trip": pair.round_trip.relative} for pair in self.pairs],
                "blocks": [
                    asdict(block)
                    | {
                        "round_trip": None if block.round_trip is None else block.round_trip.relative,
                        "round_trip_fp64": (None if block.round_trip_fp64 is None else block.round_trip_fp64.relative),
                    }
                    for block in self.blocks
                ],
            }
        )


def _finite(value: Any) -> Any:
    """The same document with None for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def probe(request: ProbeRequest, narrator: Narrator) -> ProbeReport:
    """Probe a checkpoint.

    Raises:
        ConfigError: an unknown dtype or device.
        InvalidInputError: the checkpoint or its data is not there or not whole.
    """
    for name in request.dtypes:
        if name not in DTYPES:
            raise ConfigError(f"unknown dtype {name!r}: expected one of {', '.join(DTYPES)}")
    parent = load_parent(request.checkpoint, optimizer=False)
    setting = checkpoint_setting(parent, device=request.device, precision=request.precision, data_dir=request.data_dir)
    checkpoint = parent.checkpoint
    model = build_model(checkpoint.architecture, checkpoint.tensors, setting.device)
    batches = setting.evaluation()
    warn_of_changes(setting.dataset, parent, narrator)
    return probe_model(model, setting, batches, request.dtypes)


def probe_model(
    model: Model, setting: Setting, batches: Sequence[BatchLike], dtypes: Sequence[str] = tuple(DTYPES)
) -> ProbeReport:
    """Probe a model as it stands in memory; which pairs are tied is what its architecture records.

    Args:
        model: on the setting's device; it is not changed.
        setting: device, precision and data.
        batches: fixed batches; hidden states and gradients are those of the first.
        dtypes: names in `DTYPES` in which to measure the cancellation.
    """
    model = copy.deepcopy(model).eval()
    states = _states(model, batches[0], setting)
    modules = dict(model.named_blocks())
    norms, antisymmetry = _gradients(model, batches[0], setting)
    loss = setting.evaluate(model, batches).loss
    pairs, blocks = [], []
    for spec in model.architecture.blocks:
        module = modules[spec.id]
        single = double = None
        if isinstance(module, Coupling | Pair | LinearPair):
            single = round_trip(module, states[spec.id], torch.float32)
            double = round_trip(module, states[spec.id], torch.float64)
        blocks.append(BlockReport(spec.id, _kind(spec), single, double, norms[spec.id]))
        if isinstance(module, Pair | LinearPair) and single is not None:
            measured = {name: cancellation(module, states[spec.id], name) for name in dtypes}
            pairs.append(
                PairReport(
                    id=spec.id,
                    kind=spec.kind,
                    tied=spec.state == "tied",
                    cancellation={name: value for name, value in measured.items() if value is not None},
                    round_trip=single,
                    gradient_antisymmetry=antisymmetry[spec.id],
                    separation=separation(module),
                    activity=activity(module, states[spec.id]),
                    ablation_loss=_ablation_loss(model, spec.id, batches, setting),
                    gradient_norm=norms[spec.id],
                )
            )
    return ProbeReport(loss, tuple(pairs), tuple(blocks), tuple(_failures(pairs, blocks)))


def _kind(spec: BlockSpec) -> str:
    return f"{spec.kind} pair" if spec.type == "pair" else "layer"


@torch.no_grad()
def _states(model: Model, batch: BatchLike, setting: Setting) -> dict[str, State]:
    """The stream before each block, by block id, detached."""
    states: dict[str, State] = {}

    def keep(block_id: str, state: State) -> None:
        states[block_id] = tuple(half.clone() for half in state) if isinstance(state, tuple) else state.clone()  # type: ignore[assignment]

    with autocast(setting.device, setting.precision):
        model.run(batch.inputs, before_block=keep)
    return states


def _gradients(model: Model, batch: BatchLike, setting: Setting) -> tuple[dict[str, float], dict[str, float | None]]:
    """Gradient norm per block, and per pair how far its members' gradients are from opposites."""
    separated = copy.deepcopy(model)
    pairs = {block_id: block for block_id, block in separated.named_blocks() if isinstance(block, Pair | LinearPair)}
    for pair in pairs.values():
        separate_members(pair)
    with autocast(setting.device, setting.precision):
        logits = separated(batch.inputs)
    mean_loss(logits, batch.targets).backward()  # type: ignore[no-untyped-call]
    norms = {
        block_id: float(torch.nn.utils.get_total_norm([p.grad for p in block.parameters() if p.grad is not None]))
        for block_id, block in separated.named_blocks()
    }
    return norms, {block_id: gradient_antisymmetry(pair) for block_id, pair in pairs.items()}


def _ablation_loss(model: Model, block_id: str, batches: Sequence[BatchLike], setting: Setting) -> float:
    """Validation loss with one block left out."""
    return setting.evaluate(_Ablated(model, frozenset([block_id])), batches).loss


class _Ablated(torch.nn.Module):
    def __init__(self, model: Model, skip: frozenset[str]) -> None:
        super().__init__()
        self.model, self.skip = model, skip

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model.run(inputs, skip=self.skip)


def _failures(pairs: Sequence[PairReport], blocks: Sequence[BlockReport]) -> list[str]:
    failures = []
    for pair in pairs:
        if not pair.tied:
            continue
        broken = {name: found.max_abs for name, found in pair.cancellation.items() if found.max_abs != 0}
        if broken:
            failures.append(
                f"pair {pair.id} is recorded as tied but does not cancel in {', '.join(broken)}: largest deviation "
                f"{max(broken.values()):.3g}"
            )
        if pair.gradient_antisymmetry is not None and pair.gradient_antisymmetry != 0:
            failures.append(
                f"pair {pair.id} is recorded as tied but the gradients of its members are not opposites: "
                f"relative deviation {pair.gradient_antisymmetry:.3g}"
            )
    missed = {
        block.id: block.round_trip_fp64.relative
        for block in blocks
        if block.round_trip_fp64 is not None and not block.round_trip_fp64.relative <= ROUND_TRIP_BOUND_FP64
    }
    if missed:
        failures.append(
            f"the inverse of {', '.join(missed)} misses its input by up to {max(missed.values()):.3g} in fp64, "
            f"more than {ROUND_TRIP_BOUND_FP64:.0e}"
        )
    return failures
