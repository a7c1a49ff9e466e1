"""A model of Transformers as training takes it: ids in, logits out, its parameters under their own names.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ppdgrow.config.architecture import PretrainedArchitecture
from ppdgrow.config.kinds import Task
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.library import AUTO_CLASSES, load_config, quiet, refused_by_transformers, without_kernels
from ppdgrow.pretrained.refusals import CONFIG

NAMES_BY_TYPE: Mapping[Task, str] = {
    "lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "mlm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
}
WAY_OUT = "the weights do not belong to this config.json; use the checkpoint as it was written"
UNPADDED = "warn_if_padding_and_no_attention_mask"  # a method of some models, which waits for the device


def _is_unpadded(*_: Any) -> None:
    """No input is padded here, also where the padding's token occurs."""


class LanguageModel(nn.Module):
    """The model of `inner`, of which it shares all parts, so that their names are those of its files."""

    def __init__(self, architecture: PretrainedArchitecture, inner: Any) -> None:
        super().__init__()
        self.architecture = architecture
        self._inner = (inner,)  # in a tuple: as a submodule it would give all names a prefix
        self._parameters, self._buffers, self._modules = inner._parameters, inner._buffers, inner._modules
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("pooler" not in name.split("."))  # on which no logits depend
        for module in inner.modules():
            if hasattr(module, UNPADDED):
                setattr(module, UNPADDED, _is_unpadded)

    @property
    def blocks_prefix(self) -> str:
        """What the names of the parameters within layers begin with."""
        return self.architecture.layers_prefix

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `(B, T, V)` of ids `(B, T)`."""
        with quiet():
            logits: Tensor = self._inner[0](input_ids=inputs, use_cache=False).logits
        return logits

    def train(self, mode: bool = True) -> LanguageModel:
        self._inner[0].train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """As it is saved: tied parameters once, under the first of their names."""
        known = {id(parameter): name for name, parameter in self.named_parameters()}
        state = super().state_dict(*args, **kwargs, keep_vars=True)
        return {name: tensor.detach() for name, tensor in state.items() if known.get(id(tensor), name) == name}


def model_class(config: Mapping[str, Any], task: Task) -> tuple[Any, Any]:
    """The class of a config for a task, and the config as it takes it.

    Raises:
        InvalidInputError: Transformers has no such class, or refuses the config.
    """
    if "base_model_type" in config:
        modeling: Any = import_module("ppdgrow.pretrained.modeling_ppdgrow")
        facade = next(each for each in modeling.FACADES if each.auto_class == AUTO_CLASSES[task])
        with refused_by_transformers(Path(CONFIG)), quiet():
            grown = modeling.PPDGrowConfig.from_dict({**config, "base": without_kernels(config["base"])})
            return facade.class_for(grown), grown
    names = class_names(str(config["model_type"]), task)
    own = [name for name in config.get("architectures") or () if name in names]
    if not names:
        raise InvalidInputError(
            f"{CONFIG}: Transformers has no {AUTO_CLASSES[task]} of model_type {config['model_type']!r}: "
            "pip install -U transformers, or take a model that it knows"
        )
    return getattr(import_module("transformers"), (own or names)[0]), load_config(Path(), config)


def class_names(model_type: str, task: Task) -> tuple[str, ...]:
    """The classes of Transformers that models of a type have for a task; none where there is none."""
    auto: Any = import_module("transformers.models.auto.modeling_auto")
    names = getattr(auto, NAMES_BY_TYPE[task]).get(model_type, ())
    return (names,) if isinstance(names, str) else tuple(names)


def build_language_model(
    architecture: PretrainedArchitecture, tensors: Mapping[str, Tensor], device: torch.device, seed: int | None = None
) -> LanguageModel:
    """A model over fp32 copies of named tensors, on `device`, in training mode.

    With a `seed`, the parameters that the architecture says are to be drawn are drawn.

    Raises:
        InvalidInputError: a tensor is missing, unexpected or of the wrong shape.
    """
    made, config = model_class(architecture.config, architecture.task)
    if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
        with device:
            return LanguageModel(architecture, _shapes_alone(made, config)).train()
    copies = {name: tensor.to(device, torch.float32, copy=True) for name, tensor in tensors.items()}
    with refused_by_transformers(Path(CONFIG)), quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        options = {"dtype": torch.float32, "output_loading_info": True, "ignore_mismatched_sizes": True}
        inner, found = made.from_pretrained(None, config=config, state_dict=copies, **options)
    model = LanguageModel(architecture, inner)
    missing = found["missing_keys"] & model.state_dict().keys()  # not the second names of tied ones
    missing -= set(architecture.drawn) if seed is not None else set()
    for what, names in (("is missing", missing), ("is not expected", set(found["unexpected_keys"]))):
        if names:
            raise InvalidInputError(f"tensor {min(names)!r} {what}; {WAY_OUT}")
    for name, shape, expected in sorted(found["mismatched_keys"]):
        raise InvalidInputError(f"tensor {name!r} is {tuple(shape)}, expected {tuple(expected)}; {WAY_OUT}")
    return model.to(device).train()


def _shapes_alone(made: Any, config: Any, **options: Any) -> Any:
    """A model whose weights are not drawn, for which tensors without content have no use."""
    initialization: Any = import_module("transformers.initialization")
    with quiet(), initialization.no_init_weights():
        model = made._from_config(config, dtype=torch.float32, **options)
        model.tie_weights()
    return model


def language_model_without_memory(architecture: PretrainedArchitecture) -> LanguageModel:
    """A model on the meta device, or where a mode of fake tensors is on, in that: shapes alone."""
    made, config = model_class(architecture.config, architecture.task)
    with torch.device("meta"):
        return LanguageModel(architecture, _shapes_alone(made, config))


def forward_flops(config: Mapping[str, Any], task: Task, length: int) -> int:
    """FLOPs per token of a forward pass over `length` tokens, counted by PyTorch on tensors without content.

    The attention is the plain one, of which all products are counted, also where a mask hides half of them.

    Raises:
        InvalidInputError: the model cannot run as its config makes it.
        ConfigError: it computes by the values of its inputs.
    """
    return _counted_flops(json.dumps(config), task, length)


@lru_cache(maxsize=16)
def _counted_flops(config: str, task: Task, length: int) -> int:
    made, loaded = model_class(json.loads(config), task)
    with refused_by_transformers(Path(CONFIG)), quiet(), FakeTensorMode(), FlopCounterMode(display=False) as counter:
        model = _shapes_alone(made, loaded, attn_implementation="eager").eval()
        try:
            model(input_ids=torch.zeros(1, length, dtype=torch.long), use_cache=False)
        except DataDependentOutputException:
            counter = None
    if counter is None:
        raise ConfigError(
            f"{CONFIG}: a {made.__name__} computes by the values of its inputs, so that what it costs is not known "
            "beforehand: ppdgrow does not train it"
        )
    return int(counter.get_total_flops()) // length
