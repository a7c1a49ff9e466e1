"""Where the layers of a model of Transformers are, and what a layer is made of, by `model_type`.

Paths are those of modules: of the layer list below the base model, of parts within a layer. A family that is written
like another is one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# How a linear map's axes are cut in half, by the last part of its name: output axis, then input axis, each of the
# stream (`x`), the channels of query heads (`q`), of key and value heads (`k`), or the hidden units of an MLP (`m`);
# several stand for maps that are stored as one, side by side.
AXES: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("q_proj", "query", "q_lin", "query_proj"), ("q", "x")),
    **dict.fromkeys(("k_proj", "v_proj", "key", "value", "k_lin", "v_lin", "key_proj", "value_proj"), ("k", "x")),
    **dict.fromkeys(("qkv_proj", "Wqkv"), ("qkk", "x")),
    **dict.fromkeys(("o_proj", "out_proj", "out_lin"), ("x", "q")),
    **dict.fromkeys(("gate_proj", "up_proj", "fc1", "c_fc", "lin1"), ("m", "x")),
    **dict.fromkeys(("gate_up_proj",), ("mm", "x")),
    **dict.fromkeys(("down_proj", "fc2", "lin2"), ("x", "m")),
}


@dataclass(frozen=True)
class Family:
    """The parts of a layer.

    Args:
        layers: the list of layers, below the base model.
        attention: the parts of the attention branch, by the name that they get in a pair, in the order in which they
            run: a norm, then what mixes tokens, at the end a linear map into the stream.
        mlp: the same of the MLP branch.
        outputs: the linear maps whose result is added to the stream, as weight names in a layer, those of older
            checkpoints too: where they are zero, a layer is the identity.
        post_norm: a norm stands after the sum, on the stream itself, so that no plain layer can be the identity.
        axes: `AXES` of maps that are named otherwise here, by the end of their path in a layer.
    """

    layers: str
    attention: Mapping[str, str]
    mlp: Mapping[str, str]
    outputs: tuple[str, ...]
    post_norm: bool = False
    axes: Mapping[str, tuple[str, str]] = field(default_factory=dict)


LLAMA = Family(
    layers="layers",
    attention={"norm": "input_layernorm", "attention": "self_attn"},
    mlp={"norm": "post_attention_layernorm", "mlp": "mlp"},
    outputs=("self_attn.o_proj", "mlp.down_proj"),
)
GEMMA2 = replace(LLAMA, mlp={"norm": "pre_feedforward_layernorm", "mlp": "mlp"})
GPT2 = Family(
    layers="h",
    attention={"norm": "ln_1", "attention": "attn"},
    mlp={"norm": "ln_2", "mlp": "mlp"},
    outputs=("attn.c_proj", "mlp.c_proj"),
    axes={"attn.c_attn": ("qkk", "x"), "attn.c_proj": ("x", "q"), "mlp.c_proj": ("x", "m")},
)
BERT = Family(
    layers="encoder.layer",
    attention={"norm": "attention.output.LayerNorm", "attention": "attention.self", "output": "attention.output.dense"},
    mlp={"norm": "output.LayerNorm", "mlp": "intermediate", "output": "output.dense"},
    outputs=("attention.output.dense", "output.dense"),
    post_norm=True,
    axes={"attention.output.dense": ("x", "q"), "intermediate.dense": ("m", "x"), "output.dense": ("x", "m")},
)
DISTILBERT = Family(
    layers="transformer.layer",
    attention={"norm": "sa_layer_norm", "attention": "attention"},
    mlp={"norm": "output_layer_norm", "mlp": "ffn"},
    outputs=("attention.out_lin", "ffn.lin2"),
    post_norm=True,
)
MODERNBERT = Family(
    layers="layers",
    attention={"norm": "attn_norm", "attention": "attn"},
    mlp={"norm": "mlp_norm", "mlp": "mlp"},
    outputs=("attn.Wo", "mlp.Wo"),
    axes={"attn.Wo": ("x", "q"), "mlp.Wo": ("x", "m"), "mlp.Wi": ("mm", "x")},
)
VIT = Family(
    layers="layers",
    attention={"norm": "layernorm_before", "attention": "attention"},
    mlp={"norm": "layernorm_after", "mlp": "mlp"},
    outputs=("attention.o_proj", "mlp.fc2", "attention.output.dense", "output.dense"),
)

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "smollm3", "granite"), LLAMA),
    **dict.fromkeys(("gemma2", "gemma3_text"), GEMMA2),
    "gpt2": GPT2,
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), BERT),
    "distilbert": DISTILBERT,
    "modernbert": MODERNBERT,
    **dict.fromkeys(("vit", "deit"), VIT),
}
