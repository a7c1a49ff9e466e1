"""Every model that can be grown, and every growth of it: the cases of the parametrised suite, from the registries.

A case is a family with a kind of layer, a stream, a task and an input; a growth adds a kind of pair that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ppdgrow.config.architecture import Architecture, ImageInput, InputSpec, TokenInput, VectorInput, new_architecture
from ppdgrow.config.kinds import FAMILIES, PRETRAINED, Task
from ppdgrow.config.schema import ModelConfig, StreamName
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import Model, build_model
from ppdgrow.surgery import GrowthPlan, GrowthRequest, apply_plan, plan_growth

CPU = torch.device("cpu")
CLASSES = 7
TOKENS = TokenInput(vocabulary_size=11, sequence_length=9)
IMAGES = ImageInput(channels=3, height=8, width=8, patch_size=4, num_classes=CLASSES)
VECTORS = VectorInput(features=10, num_classes=CLASSES)
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One kind of model."""

    family: str
    layer: str
    stream: StreamName
    task: Task
    input: InputSpec

    def __str__(self) -> str:
        return f"{self.family}-{self.layer}-{self.stream}-{self.task}-{self.input.kind}"

    def architecture(self, layers: int = 2, **changes: object) -> Architecture:
        """A model of width 16."""
        mixer = {"recurrent": "recurrence", "convolution": "convolution"}.get(self.layer, "recurrence")
        config = {"family": self.family, "stream": self.stream, "mixer": mixer, "layers": layers, "width": 16}
        model = ModelConfig.model_validate(config | {"heads": 2, "kernel_size": 3} | changes)
        return new_architecture(model, self.task, self.input)


def _inputs_of(family: str, task: Task) -> tuple[InputSpec, ...]:
    if task != "classify":
        return (TOKENS,)
    return (IMAGES, VECTORS) if family == "mlp" else (IMAGES,)


CASES = [
    Case(family, layer, stream, task, spec)
    for family, rules in FAMILIES.items()
    if family != PRETRAINED  # whose models are Transformers' own
    for layer in rules.layers
    for stream in get_args(StreamName)
    for task in rules.tasks
    for spec in _inputs_of(family, task)
]
GROWTHS = [(case, kind) for case in CASES for kind in FAMILIES[case.family].pairs]
# Weights and stream in one type, or (the last) in fp32 under bf16 autocast, as training is.
MODES = {
    "fp64": (torch.float64, False),
    "fp32": (torch.float32, False),
    "bf16": (torch.bfloat16, False),
    "fp16": (torch.float16, False),
    "bf16_autocast": (torch.float32, True),
}

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_growth = pytest.mark.parametrize(("case", "kind"), GROWTHS, ids=str)
every_mode = pytest.mark.parametrize("mode", MODES)


def trained(tensors: Tensors, seed: int = 3) -> dict[str, Tensor]:
    """Weights of a model that has trained: nothing is zero, one or small."""
    torch.manual_seed(seed)
    return {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in tensors.items()}


def weights(architecture: Architecture) -> dict[str, Tensor]:
    """A trained model's weights for an architecture."""
    return trained(initial_tensors(architecture, 5))


def inputs(architecture: Architecture, batch: int = 3) -> Tensor:
    """A batch for an architecture, in fp32 or as ids."""
    torch.manual_seed(0)
    spec = architecture.input
    if isinstance(spec, TokenInput):
        return torch.randint(spec.vocabulary_size, (batch, spec.sequence_length))
    if isinstance(spec, ImageInput):
        return torch.randn(batch, spec.channels, spec.height, spec.width)
    return torch.randn(batch, spec.features)


def grow(
    architecture: Architecture, tensors: Tensors, request: GrowthRequest, step: int = 9
) -> tuple[GrowthPlan, dict[str, Tensor]]:
    """The plan and the grown weights."""
    plan = plan_growth(architecture, request, step=step)
    return plan, apply_plan(plan, tensors, {}, policy="fresh", seed=1)[0]


def model(architecture: Architecture, tensors: Tensors, mode: str = "fp32") -> Model:
    """The model in a mode's type, in evaluation mode."""
    return build_model(architecture, tensors, CPU).to(MODES[mode][0]).eval()


@cache
def _module(architecture: Architecture) -> Model:
    return build_model(architecture, weights(architecture), CPU).eval()


def borrowed(architecture: Architecture, tensors: Tensors, mode: str) -> Model:
    """As `model`, over one module per architecture, whose building is most of the cost; to run, not to change."""
    network = _module(architecture)
    network.load_state_dict({name: tensor.to(MODES[mode][0]) for name, tensor in tensors.items()}, assign=True)
    return network


def outputs(network: Model, mode: str = "fp32") -> Tensor:
    """Logits in a mode; skips where torch has no kernel for the type on a CPU, which autocast never excuses."""
    dtype, autocast = MODES[mode]
    batch = inputs(network.architecture)
    batch = batch.to(dtype) if batch.is_floating_point() else batch
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return network(batch)
    except RuntimeError as error:
        if autocast or "not implemented" not in str(error):
            raise
        pytest.skip(str(error))


def logits(architecture: Architecture, tensors: Tensors, mode: str = "fp32") -> Tensor:
    """Logits of a model over named tensors."""
    with torch.no_grad():
        found = outputs(borrowed(architecture, tensors, mode), mode)
    assert bool(found.isfinite().all())
    assert float(found.float().std()) > 1e-2, "a model that says the same of everything proves nothing"
    return found


def gradients(architecture: Architecture, tensors: Tensors, mode: str = "fp32") -> dict[str, Tensor]:
    """Gradients of a loss that asks something of every logit, by parameter name."""
    network = borrowed(architecture, tensors, mode)
    found = outputs(network, mode)
    torch.manual_seed(2)
    wanted = torch.randint(found.shape[-1], found.shape[:-1])
    F.cross_entropy(found.flatten(0, -2).float(), wanted.flatten()).backward()  # type: ignore[no-untyped-call]
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
