"""What holds on a GPU: identity to the bit, opposite gradients, and no synchronisation within a step."""

from __future__ import annotations

import copy

import pytest
import torch
from devices import on_each_device, waiting_is_an_error
from test_engine import Counting, engine_of, new_model

from ppdgrow.config.kinds import parts_of
from ppdgrow.data import Batch
from ppdgrow.engine.loop import FLUSH_EVERY
from ppdgrow.engine.movement_check import WATCHED_STEPS, MovementCheck
from ppdgrow.nn.branches import BranchConfig
from ppdgrow.nn.coupling import Coupling, Pair
from ppdgrow.optim.update_rules import OPTIMIZERS


@on_each_device
@pytest.mark.parametrize("kind", ["ffn", "attention"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tied_pair_is_the_identity_and_its_gradients_are_opposites(
    kind: str, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    config = BranchConfig(64, heads=4, ffn_multiplier=4, kernel_size=4, norm="layer")
    f, g = parts_of("transformer", kind)
    plus = Coupling((f, g), config, causal=True).to(device, dtype)
    pair = Pair(plus, copy.deepcopy(plus), "inverse")
    x = tuple(torch.randn(4, 32, 64, device=device, dtype=dtype) for _ in range(2))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        y = pair((x[0], x[1]))
        torch.stack([half.float().square().mean() for half in y]).sum().backward()  # type: ignore[no-untyped-call]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(before, after) for before, after in zip(x, y, strict=True))
    assert pair.minus is not None
    for p, q in zip(pair.plus.parameters(), pair.minus.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, -q.grad)


class OnDevice(Counting):
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def at(self, step: int) -> Batch:
        batch = super().at(step)
        return Batch(*(t.to(self.device, non_blocking=True) for t in (batch.inputs, batch.targets)))


@on_each_device
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_step_never_waits_for_the_device(device: torch.device, optimizer: str) -> None:
    engine, _ = engine_of(new_model(device=device), steps=40, device=device, optimizer=optimizer)
    engine.batches, engine.evaluation = OnDevice(device), [OnDevice(device).at(-1)]
    engine.run(12)
    movement = MovementCheck(engine.model, engine.optimizer)
    movement._seen = WATCHED_STEPS  # it has judged, which reads from the device
    steps = range(13, 13 + FLUSH_EVERY - 1)
    with waiting_is_an_error(device):
        for step in steps:
            engine._train_step(step, movement)
    assert engine.step == steps[-1]
    assert len(engine._pending) == len(steps), "nothing was read meanwhile"


@on_each_device
def test_control_a_read_within_a_step_is_seen(device: torch.device) -> None:
    loss = torch.ones((), device=device)
    if device.type != "cuda":
        with waiting_is_an_error(device):
            assert loss.item() == 1.0
        return
    with waiting_is_an_error(device), pytest.raises(RuntimeError, match="synchronizing"):
        loss.item()
