"""What holds on a GPU: identity to the bit, opposite gradients, and no synchronisation within a step."""

from __future__ import annotations

import copy

import pytest
import torch

from ppdgrow.config.kinds import branches_of
from ppdgrow.nn.branches import BranchConfig
from ppdgrow.nn.coupling import Coupling, Pair

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("kind", ["ffn", "attention"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_tied_pair_is_the_identity_and_its_gradients_are_opposites(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    config = BranchConfig(64, heads=4, ffn_multiplier=4, kernel_size=4, norm="layer")
    f, g = branches_of("transformer", kind)
    plus = Coupling((f, g), config, causal=True).to("cuda", dtype)
    pair = Pair(plus, copy.deepcopy(plus), "inverse")
    x = tuple(torch.randn(4, 32, 64, device="cuda", dtype=dtype) for _ in range(2))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        y = pair((x[0], x[1]))
        sum(half.float().square().mean() for half in y).backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(before, after) for before, after in zip(x, y, strict=True))
    assert pair.minus is not None
    for p, q in zip(pair.plus.parameters(), pair.minus.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert torch.equal(p.grad, -q.grad)


def test_a_training_step_never_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    import test_engine as toy

    monkeypatch.setattr(toy, "CPU", torch.device("cuda"))
    device = torch.device("cuda")

    class OnDevice(toy.Counting):
        def at(self, step: int) -> toy.ToyBatch:
            batch = super().at(step)
            return toy.ToyBatch(*(t.to(device, non_blocking=True) for t in (batch.inputs, batch.targets)))

    engine, log = toy.engine_of(toy.new_model(), steps=40)
    engine.batches, engine.evaluation = OnDevice(), [OnDevice().at(-1)]
    engine.run(12, log)
    movement = toy.MovementCheck(engine.model, engine.optimizer)
    movement._seen = toy.FLUSH_EVERY  # watched already
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(13, 18):
            engine._train_step(step, movement)
    finally:
        torch.cuda.set_sync_debug_mode("default")
