"""The Transformer: causality, accounting as measured, initialisation, and tensors that do not fit."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ppdgrow.config.architecture import Architecture, BlockSpec, ImageInput, TokenInput, new_architecture
from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import ModelConfig
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import build_model

CPU = torch.device("cpu")
TOKENS = TokenInput(vocabulary_size=13, sequence_length=8)
IMAGES = ImageInput(channels=3, height=8, width=8, patch_size=4, num_classes=10)


def architecture(stream: str = "coupled", task: Task = "lm", **changes: object) -> Architecture:
    config = ModelConfig.model_validate({"stream": stream, "layers": 2, "width": 16, "heads": 2, **changes})
    return new_architecture(config, task, IMAGES if task == "classify" else TOKENS)


def inputs(arch: Architecture) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 3, 8, 8) if arch.task == "classify" else torch.randint(13, (3, 8))


def with_pairs(arch: Architecture) -> Architecture:
    pair = [
        BlockSpec(id="p1", type="pair", kind="ffn", state="untied", born=1),
        BlockSpec(id="p2", type="pair", kind="attention", state="tied", born=1),
    ]
    return arch.with_blocks((arch.blocks[0], *pair, arch.blocks[1]))


@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_only_lm_is_causal(stream: str, task: Task) -> None:
    arch = with_pairs(architecture(stream, task))
    model = build_model(arch, initial_tensors(arch, 0), CPU).eval()
    ids = inputs(arch)
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 13
    with torch.no_grad():
        same_before = torch.equal(model(ids)[:, :5], model(changed)[:, :5])
    assert same_before == (task == "lm")


@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize("task", ["lm", "mlm", "classify"])
@pytest.mark.parametrize("changes", [{}, {"norm": "rms"}, {"tie_embeddings": True}], ids=str)
def test_accounting_predicts_what_is_measured(stream: str, task: Task, changes: dict[str, object]) -> None:
    if task == "classify":
        changes = {key: value for key, value in changes.items() if key != "tie_embeddings"}
    arch = with_pairs(architecture(stream, task, **changes))
    model = build_model(arch, initial_tensors(arch, 0), CPU)
    assert count_parameters(arch) == sum(p.numel() for p in model.parameters())
    # Plain matrix products, which the counter knows on every device.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(inputs(arch))
    tokens = 3 * (4 if task == "classify" else 8)
    assert counter.get_total_flops() == pytest.approx(tokens * flops_per_token(arch), rel=1e-9)


def test_half_steps_are_two_n_plus_one_for_adjacent_pairs() -> None:
    arch = architecture()
    assert half_steps(arch) == 4
    assert half_steps(with_pairs(arch)) == 4 + 5
    pair = BlockSpec(id="p1", type="pair", kind="ffn", state="tied", born=1)
    assert half_steps(arch.with_blocks((*arch.blocks, pair))) == 4 + 3


def test_initialisation_depends_on_depth_and_on_nothing_but_the_name() -> None:
    shallow, deep = architecture(layers=2), architecture(layers=8)
    few, many = initial_tensors(shallow, 1), initial_tensors(deep, 1)
    assert torch.equal(few["blocks.l1.f.qkv.weight"], many["blocks.l1.f.qkv.weight"])
    assert torch.allclose(few["blocks.l1.f.out.weight"], many["blocks.l1.f.out.weight"] * 2)
    assert not torch.equal(few["blocks.l1.f.qkv.weight"], initial_tensors(shallow, 2)["blocks.l1.f.qkv.weight"])


def test_the_stream_stays_fp32_under_autocast() -> None:
    for stream, task in (("coupled", "lm"), ("residual", "lm"), ("coupled", "classify")):
        arch = with_pairs(architecture(stream, task))  # type: ignore[arg-type]
        model = build_model(arch, initial_tensors(arch, 0), CPU)
        seen: list[torch.dtype] = []

        def look(_: str, state: object, seen: list[torch.dtype] = seen) -> None:
            halves = state if isinstance(state, tuple) else (state,)
            seen.extend(half.dtype for half in halves)

        with torch.autocast("cpu", dtype=torch.bfloat16):
            model.run(inputs(arch), before_block=look)
        assert set(seen) == {torch.float32}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t.pop("head.norm.weight"), "'head.norm.weight' is missing"),
        (lambda t: t.update({"extra": torch.zeros(1)}), "unexpected tensor 'extra'"),
        (lambda t: t.update({"head.norm.weight": torch.zeros(3)}), r"expected floating point \(16,\)"),
        (lambda t: t.update({"head.norm.weight": torch.zeros(16, dtype=torch.int64)}), "torch.int64"),
    ],
)
def test_tensors_that_do_not_fit_are_named(damage, says: str) -> None:  # type: ignore[no-untyped-def]
    arch = architecture()
    tensors = dict(initial_tensors(arch, 0))
    damage(tensors)
    with pytest.raises(InvalidInputError, match=says):
        build_model(arch, tensors, CPU)


BUILD = """
import sys, torch
from ppdgrow.config.architecture import TokenInput, new_architecture
from ppdgrow.config.schema import ModelConfig
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import build_model
from ppdgrow.surgery import GrowthRequest, apply_plan, plan_growth
model = ModelConfig(layers=1, width=8, heads=2)
architecture = new_architecture(model, "lm", TokenInput(vocabulary_size=5, sequence_length=4))
plan = plan_growth(architecture, GrowthRequest(("orthogonal", "depthwise"), pairs=2), step=1)
tensors, _ = apply_plan(plan, initial_tensors(architecture, 0), {}, policy="fresh", seed=0)
build_model(plan.architecture, tensors, torch.device("cpu"))
"""
CONTROL = """
import sys, torch
with torch.device("meta"):
    torch.nn.Embedding(5, 8)
"""


@pytest.mark.parametrize(("code", "imported"), [(BUILD, False), (CONTROL, True)], ids=["build", "control"])
def test_a_model_without_memory_runs_no_initialiser(code: str, imported: bool) -> None:
    """On the meta device those of torch import torch._dynamo and some 890 modules."""
    code += "print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(imported)]
