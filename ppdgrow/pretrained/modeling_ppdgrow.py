"""A model of Transformers with pairs of coupling blocks between its layers.

This file needs torch and transformers only. A folder that holds a grown model ships it, so that it can be loaded by
`trust_remote_code=True` where ppdgrow is not installed.

The model is of its parent's own class, and all of the parent's tensors keep their names. A pair belongs to the layer
that it follows (`layers.5.pairs.p1.f_plus...`) and is applied to what that layer returns. Of the hidden vector of
width D, f reads half b and writes half a, and g the converse (Dinh et al. 2014, NICE). A pair is the coupling with
branches f, g and then the inverse coupling; the inverse's branches carry the minus sign in their output projections,
so that all four are ordinary branches whose terms are added. Where both members are equal the pair is the identity to
the last bit.

Shapes: B batch, T tokens, D hidden width; a half is `(B, T, D/2)`.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel, conversion_mapping
from transformers.models.auto import modeling_auto

MODEL_TYPE = "ppdgrow"
# What no model's configuration takes at the top of config.json, so that none loads the parent in silence. The class
# without a model does take it, as `AutoTokenizer` needs.
REFUSED = "a model with pairs: load it with trust_remote_code=True or by ppdgrow.load_pretrained"
GUARD = dict.fromkeys(("hidden_size", "num_hidden_layers", "initializer_range"), REFUSED)
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")  # also at the top of config.json, where generation looks
KINDS = {"ffn": ("mlp", "mlp"), "attention": ("attention", "mlp"), "depthwise": ("depthwise", "depthwise")}


# The configuration: in memory the parent's own with one attribute more; in config.json the parent's, nested.


class GrownConfig:
    """Mixed into the parent's configuration class. `pairs` says where pairs are and what their branches consist of."""

    parent_class: ClassVar[type[PreTrainedConfig]]
    pairs: dict[str, Any] | None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if "base" in config_dict:
            config_dict = {**config_dict["base"], **{key: config_dict[key] for key in ("pairs", "auto_map")}}
            if "attn_implementation" in kwargs:  # the config's own key would outvote it
                config_dict.pop("_attn_implementation", None)
        return super().from_dict(config_dict, **kwargs)  # type: ignore[misc]

    def parent(self) -> PreTrainedConfig:
        """The configuration of the model without pairs."""
        config: PreTrainedConfig = copy.copy(self)
        config.__class__ = self.parent_class
        config.architectures = [name.removeprefix("PPDGrow") for name in config.architectures or []] or None
        for name in ("pairs", "auto_map"):
            config.__dict__.pop(name, None)
        return config

    def to_dict(self) -> dict[str, Any]:
        return self._nested(self.parent().to_dict())

    def to_diff_dict(self) -> dict[str, Any]:
        return self._nested(self.parent().to_diff_dict())

    def _nested(self, base: dict[str, Any]) -> dict[str, Any]:
        model_type = base.pop("model_type")
        return grown_dict(model_type, base, copy.deepcopy(self.pairs))

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Any:
        """As a decoder's it also counts the layers of the cache that the attention in pairs has for itself."""
        layers = [layer_of(block) for block in caching_blocks(getattr(self, "pairs", None)) for _ in range(2)]
        if not decoder or not layers:
            return super().get_text_config(decoder=decoder, encoder=encoder)  # type: ignore[misc]
        return with_layers(self, layers, pairs=None)


def grown_dict(model_type: str, base: dict[str, Any], pairs: dict[str, Any] | None) -> dict[str, Any]:
    """config.json of a grown model; `base` is the parent's config.json without its `model_type`.

    A nested dictionary with a `model_type` would be loaded in place of the whole by the class of that type.
    """
    names = [facade for facade in FACADES if set(base.get("architectures") or ()) & set(facade.parents(model_type))]
    known = [facade for facade in FACADES if facade.parents(model_type)]
    auto_map: dict[str, type[Any]] = {"AutoConfig": PPDGrowConfig, **{facade.auto_class: facade for facade in known}}
    module = __name__.rpartition(".")[2]
    at_top = {key: base[key] for key in (*TOKENS, "transformers_version") if base.get(key) is not None}
    return {
        **at_top,
        **GUARD,
        "model_type": MODEL_TYPE,
        "architectures": [facade.__name__ for facade in (names or known)[:1]],
        "auto_map": {auto: f"{module}.{named.__name__}" for auto, named in auto_map.items()},
        "base_model_type": model_type,
        "base": base,
        "pairs": pairs,
    }


def layer_of(block: Mapping[str, Any]) -> int:
    """The layer that a pair belongs to: the one before its place, at the start the first."""
    return max(int(block["after"]) - 1, 0)


def caching_blocks(pairs: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The pairs that keep keys and values, in the order of their layers in the cache."""
    yield from (block for block in (pairs or {}).get("blocks", ()) if "attention" in KINDS.get(block["kind"], ()))


def with_layers(config: Any, like: list[int], **values: Any) -> Any:
    """A copy of a configuration with a further layer for each of `like`, of the same type as that layer."""
    config = copy.copy(config)
    for name, value in values.items():
        setattr(config, name, value)
    config.num_hidden_layers = config.num_hidden_layers + len(like)
    if isinstance(types := getattr(config, "layer_types", None), list):
        config.layer_types = [*types, *(types[layer] for layer in like)]
    return config


@functools.cache
def config_class(model_type: str) -> type[Any]:
    """The parent's configuration class, with pairs."""
    parent = CONFIG_MAPPING[model_type]
    namespace = {"__module__": __name__, "parent_class": parent, "_auto_class": "AutoConfig"}
    return type(f"PPDGrow{parent.__name__}", (GrownConfig, parent), namespace)


class PPDGrowConfig(PreTrainedConfig):  # type: ignore[misc]
    """What `AutoConfig` finds in config.json; it makes a configuration of the parent's class, with pairs."""

    model_type = MODEL_TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if config_dict.get("model_type") != MODEL_TYPE:
            raise ValueError(f"expected a model of type {MODEL_TYPE}, found {config_dict.get('model_type')!r}")
        return config_class(config_dict["base_model_type"]).from_dict(config_dict, **kwargs)


# The pairs.


class Branch(nn.ModuleDict):
    """Parts of a layer, run one after the other: a norm, and what the layer does with what it has normalised."""

    def __init__(self, modules: Mapping[str, nn.Module], output: str) -> None:
        super().__init__(modules)
        self.end = output  # its path here
        self.accepted = {name: _accepted(module) for name, module in modules.items()}

    def forward(self, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """`(B, T, D/2)` to the same; `arguments` are those of the layer: masks, position embeddings, cache."""
        x = x.view_as(x)  # a norm may read it several times: its gradient is summed here before it meets others'
        for name, module in self.items():
            accepted = self.accepted[name]
            if accepted == ():
                x = module(x)
                continue
            given = {key: value for key, value in arguments.items() if accepted is None or key in accepted}
            # Not by __call__, whose hooks would record these attention maps among those of the parent's layers.
            result = module.forward(x, **given)
            x = result[0] if isinstance(result, tuple) else result
        return x

    def output_projection(self) -> nn.Module:
        """The linear map at its end: where its weight and bias are negated, so is the branch, exactly."""
        return self.get_submodule(self.end)


def _accepted(module: nn.Module) -> tuple[str, ...] | None:
    """Names of the arguments of a module's forward after the first; None if it takes any."""
    parameters = list(inspect.signature(module.forward).parameters.values())[1:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(parameter.name for parameter in parameters)


class DepthwiseLinear(nn.Module):
    """For each channel a linear map of K taps along the tokens, around each one: weight `(C, K)`, bias `(C,)`."""

    def __init__(self, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, kernel_size))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        taps = self.weight.shape[1]
        padded = F.pad(x.transpose(1, 2), (taps // 2, taps - 1 - taps // 2))
        return F.conv1d(padded, self.weight[:, None], self.bias, groups=x.shape[-1]).transpose(1, 2)

    def reset(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.bias)


class CouplingPair(nn.Module):
    """A coupling block and an inverse one, on the halves of the hidden vector."""

    def __init__(self, kind: str, make_branch: Any) -> None:
        super().__init__()
        f, g = KINDS[kind]
        self.f_plus, self.g_plus = make_branch(f), make_branch(g)
        self.f_minus, self.g_minus = make_branch(f), make_branch(g)

    def forward(self, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        # Tensors of their own: a view can take another kernel, and two members would differ in the last bit.
        a, b = (half.contiguous() for half in x.chunk(2, dim=-1))
        b_read = b.view_as(b)  # one node that every branch reads through: older gradients stay the same to the bit
        u = self.f_plus(b_read, arguments)
        middle = a + u
        d = self.g_plus(middle, arguments) + self.g_minus(middle, arguments)
        return torch.cat((a + (u + self.f_minus(b_read + d, arguments)), b + d), dim=-1)

    def inverse(self, y: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Undo `forward`, up to rounding; not with a cache, which the forward pass has filled."""
        a, b = (half.contiguous() for half in y.chunk(2, dim=-1))
        u = self.f_minus(b, arguments)
        middle = a - u
        b = b - (self.g_plus(middle, arguments) + self.g_minus(middle, arguments))
        return torch.cat((a - (self.f_plus(b, arguments) + u), b), dim=-1)

    @torch.no_grad()
    def reset(self) -> None:
        """Give the second member the values of the first, its output projections with the other sign."""
        for module in self.modules():
            if isinstance(module, DepthwiseLinear):
                module.reset()
        for plus, minus in ((self.f_plus, self.f_minus), (self.g_plus, self.g_minus)):
            minus.load_state_dict(plus.state_dict())
            for parameter in minus.output_projection().parameters():
                parameter.neg_()


class OrthogonalPair(nn.Module):
    """W with theta+ and then W^-1 with theta-, on the full vector: y = x + W-^T ((W+ - W-) x).

    W is the Cayley transform of a skew-symmetric matrix, of which the lower triangle is stored.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.plus, self.minus = (nn.Parameter(torch.empty(width, width)) for _ in range(2))

    def forward(self, x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        plus, minus = orthogonal(self.plus), orthogonal(self.minus)
        return x + F.linear(F.linear(x, plus - minus), minus.mT)

    def inverse(self, y: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """Undo `forward`, up to rounding."""
        plus, minus = orthogonal(self.plus), orthogonal(self.minus)
        return y + F.linear(F.linear(y, minus - plus), plus.mT)

    @torch.no_grad()
    def reset(self) -> None:
        nn.init.normal_(self.plus, std=self.plus.shape[0] ** -0.5)
        self.minus.copy_(self.plus)


def orthogonal(triangle: Tensor) -> Tensor:
    """The orthogonal matrix of a lower triangle `(D, D)`, formed outside autocast in fp32, that of fp64 in fp64."""
    with torch.autocast(triangle.device.type, enabled=False):
        lower = triangle.to(torch.promote_types(triangle.dtype, torch.float32)).tril(-1)
        half_skew = (lower - lower.mT) / 2
        identity = torch.eye(len(triangle), dtype=lower.dtype, device=triangle.device)
        return torch.linalg.solve(identity - half_skew, identity + half_skew).to(triangle.dtype)


# The layers and the model.


class LinkedConfig:
    """Mixed into the configuration of half a layer: the implementation of attention is the one set for the model."""

    whole: Any

    @property
    def _attn_implementation_internal(self) -> Any:
        return self.whole._attn_implementation_internal


def half_config(config: Any) -> Any:
    """The configuration of the layers that branches are taken from: half of the width and of the heads, no dropout."""
    half = copy.deepcopy(config.parent())
    for name, value in config.pairs["half"].items():
        setattr(half, name, value)
    half.__class__ = type(half.__class__.__name__, (LinkedConfig, half.__class__), {"__module__": __name__})
    half.whole = config
    return half


class PairBuilder:
    """Makes the pairs of a model from its own kind of layer."""

    def __init__(self, config: Any) -> None:
        self.pairs, self.width, self.half = config.pairs, config.hidden_size, half_config(config)
        self.cache_layer = config.num_hidden_layers  # the next one that is free

    def pair(self, block: Mapping[str, Any], layer: nn.Module) -> nn.Module:
        if block["kind"] == "orthogonal":
            return OrthogonalPair(self.width)
        pair = CouplingPair(block["kind"], lambda part: self.branch(part, type(layer), layer_of(block)))
        if block in caching_blocks(self.pairs):
            for branch in (pair.f_plus, pair.f_minus):
                for module in branch.modules():
                    if hasattr(module, "layer_idx"):
                        module.layer_idx = self.cache_layer
                self.cache_layer += 1
        return pair

    def branch(self, part: str, layer_class: type[nn.Module], index: int) -> Branch:
        if part == "depthwise":
            norm = self.parts("attention", layer_class, index)["norm"]
            taps = DepthwiseLinear(self.width // 2, self.pairs["kernel_size"])
            return Branch({"norm": norm, "taps": taps}, output="taps")
        return Branch(self.parts(part, layer_class, index), self.pairs["outputs"][part])

    def parts(self, part: str, layer_class: type[nn.Module], index: int) -> dict[str, nn.Module]:
        """The modules of a part of half a layer, by their names in a branch."""
        takes_index = "layer_idx" in inspect.signature(layer_class).parameters

        def taken(config: Any, index: int) -> dict[str, nn.Module]:
            layer = layer_class(config, layer_idx=index) if takes_index else layer_class(config)
            # Pairs of names, since the keys of config.json are saved in alphabetical order.
            return {name: layer.get_submodule(path) for name, path in self.pairs["parts"][part]}

        found = taken(self.half, index)
        if any(isinstance(module, nn.Identity) for module in found.values()):
            # A first layer without a norm of its own (ModernBERT): as a further layer it has one.
            found = taken(with_layers(self.half, [index]), self.half.num_hidden_layers)
        return found


class GrownLayer:
    """Mixed into the class of the parent's layers: what such a layer returns goes through its pairs."""

    argument_names: ClassVar[tuple[str, ...]]
    pairs: nn.ModuleDict
    before: tuple[str, ...]  # those that come before the layer, at the start of the model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(self.argument_names, args, strict=False)), **kwargs}
        x = arguments.pop(self.argument_names[0])
        given = {key: value for key, value in arguments.items() if not key.startswith("encoder_")}
        for name in self.before:
            x = self.pairs[name](x, given)
        output = super().forward(x, **arguments)  # type: ignore[misc]
        x = output[0] if isinstance(output, tuple) else output
        for name, pair in self.pairs.items():
            if name not in self.before:
                x = pair(x, given)
        return (x, *output[1:]) if isinstance(output, tuple) else x


@functools.cache
def layer_class(parent: type[nn.Module]) -> type[nn.Module]:
    """The parent's class of layers, with pairs; of the same name, since devices are assigned by it."""
    names = tuple(inspect.signature(parent.forward).parameters)[1:]
    return type(parent.__name__, (GrownLayer, parent), {"__module__": __name__, "argument_names": names})


class GrownModel:
    """Mixed into the parent's class of models."""

    def post_init(self) -> None:
        self._attach_pairs()
        super().post_init()  # type: ignore[misc]

    def _attach_pairs(self) -> None:
        config: Any = self.config  # type: ignore[attr-defined]
        layers = self.base_model.get_submodule(config.pairs["layers"])  # type: ignore[attr-defined]
        if isinstance(layers[0], GrownLayer):  # the base model is itself of such a class
            return
        builder = PairBuilder(config)
        made = [(block, builder.pair(block, layers[layer_of(block)])) for block in config.pairs["blocks"]]
        for layer in layers:
            layer.__class__ = layer_class(type(layer))  # type: ignore[arg-type]  # mypy takes no class for hashable
            layer.pairs, layer.before = nn.ModuleDict(), ()
        for block, pair in made:
            layer = layers[layer_of(block)]
            layer.pairs[block["id"]] = pair
            layer.before += (block["id"],) if block["after"] == 0 else ()

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """As the parent does; new pairs are the identity."""
        pairs = [module for module in self.modules() if isinstance(module, CouplingPair | OrthogonalPair)]  # type: ignore[attr-defined]
        new = [p for p in pairs if not any(getattr(t, "_is_hf_initialized", False) for t in p.parameters())]
        super().initialize_weights()  # type: ignore[misc]
        for pair in new:
            pair.reset()

    @classmethod
    def is_custom_code(cls) -> bool:
        """No: the checkpoint's names are those of the parent's class, and are converted as that class does."""
        return False

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        return cls.parent_class._can_set_attn_implementation()  # type: ignore[attr-defined]


@functools.cache
def model_class(parent: type[PreTrainedModel], config: type[Any], auto_class: str) -> type[Any]:
    """The parent's class of models, with pairs."""
    name = f"PPDGrow{parent.__name__}"
    conversions: Any = conversion_mapping  # of names of older checkpoints, by the name of the class
    if (found := conversions.get_checkpoint_conversion_mapping(parent.__name__)) is not None:
        conversions.register_checkpoint_conversion_mapping(name, found, overwrite=True)
    namespace = {"__module__": __name__, "config_class": config, "parent_class": parent, "_auto_class": auto_class}
    return type(name, (GrownModel, parent), namespace)


class Facade:
    """What an auto class finds in config.json. It makes a model of the parent's class of that auto class."""

    auto_class: ClassVar[str]
    mapping: ClassVar[Mapping[str, Any]]  # names of the classes by model_type

    @classmethod
    def parents(cls, model_type: str) -> tuple[str, ...]:
        """Names of the parent's classes."""
        names = cls.mapping.get(model_type, ())
        return (names,) if isinstance(names, str) else tuple(names)

    @classmethod
    def class_for(cls, config: Any) -> type[Any]:
        model_type = config.parent_class.model_type
        if not (names := cls.parents(model_type)):
            raise ValueError(f"there is no {cls.auto_class} of a model of type {model_type}")
        chosen = next((name for name in config.parent().architectures or () if name in names), names[0])
        made = model_class(getattr(transformers, chosen), type(config), cls.auto_class)  # type: ignore[arg-type]
        if cls.auto_class != "AutoModel":  # heads that all architectures share ask AutoModel for what is below them
            transformers.AutoModel.register(type(config), PPDGrowModel.class_for(config), exist_ok=True)
        return made

    @classmethod
    def from_pretrained(cls, path: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        if not isinstance(config, GrownConfig):
            config, kwargs = PPDGrowConfig.from_pretrained(path, return_unused_kwargs=True, **kwargs)
        return cls.class_for(config).from_pretrained(path, *args, config=config, **kwargs)

    @classmethod
    def _from_config(cls, config: Any, **kwargs: Any) -> Any:
        return cls.class_for(config)._from_config(config, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """The auto classes call this; `auto_map` is written with every configuration."""


class PPDGrowModel(Facade):
    auto_class = "AutoModel"
    mapping = modeling_auto.MODEL_MAPPING_NAMES


class PPDGrowForCausalLM(Facade):
    auto_class = "AutoModelForCausalLM"
    mapping = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


class PPDGrowForMaskedLM(Facade):
    auto_class = "AutoModelForMaskedLM"
    mapping = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


class PPDGrowForSequenceClassification(Facade):
    auto_class = "AutoModelForSequenceClassification"
    mapping = modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES


class PPDGrowForTokenClassification(Facade):
    auto_class = "AutoModelForTokenClassification"
    mapping = modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES


class PPDGrowForImageClassification(Facade):
    auto_class = "AutoModelForImageClassification"
    mapping = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES


class PPDGrowForQuestionAnswering(Facade):
    auto_class = "AutoModelForQuestionAnswering"
    mapping = modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES


class PPDGrowForMaskedImageModeling(Facade):
    auto_class = "AutoModelForMaskedImageModeling"
    mapping = modeling_auto.MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES


class PPDGrowForPreTraining(Facade):  # last, since for many models it is one of those above
    auto_class = "AutoModelForPreTraining"
    mapping = modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES


FACADES: tuple[type[Facade], ...] = tuple(Facade.__subclasses__())
