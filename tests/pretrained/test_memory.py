"""A large folder is deepened without being held in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

LIMIT = 300 * 10**6
LARGE = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 3, "vocab_size": 32000}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size": 99}

CHILD = """
import gc, json, re, sys
from pathlib import Path
import torch, transformers
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.plain import grow_plain
from transformers import LlamaForCausalLM  # what transformers imports late is the interpreter's

def memory(key):
    return 1024 * int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

held = b"x" * int(sys.argv[3])
gc.collect()
before = memory("VmRSS") - len(held)
Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is held now
grown = grow_plain(read_folder(Path(sys.argv[1])), method="zero", positions=[3], out=Path(sys.argv[2]))
print(json.dumps({"peak": memory("VmHWM") - before, "parameters": grown.parameters_after}))
"""


def sparse_llama(folder: Path, sizes: Mapping[str, int]) -> int:
    """A Llama in bf16 of which only the header is on the disk; returns its size."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    maps = {f"self_attn.{each}_proj": [hidden, hidden] for each in "qkvo"}
    maps |= {"mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
    maps |= {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    shapes = {"model.embed_tokens.weight": [sizes["vocab_size"], hidden], "model.norm.weight": [hidden]}
    shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for number in range(sizes["num_hidden_layers"]):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in maps.items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 16, **sizes}
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return at


def peak_of_growing(parent: Path, out: Path, *, held: int = 0) -> int:
    """The highest memory above the interpreter's, in bytes, in a process of its own that holds some bytes besides."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(parent), str(out), str(held)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    written = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    assert 2 * found["parameters"] < written < 2 * found["parameters"] + 100_000
    return int(found["peak"])


def test_memory_stays_below_300_mb(tmp_path: Path) -> None:
    size = sparse_llama(tmp_path / "parent", LARGE)
    assert size > 2 * LIMIT
    assert peak_of_growing(tmp_path / "parent", tmp_path / "grown") < LIMIT


@pytest.mark.slow
def test_control_what_is_held_is_seen(tmp_path: Path) -> None:
    sparse_llama(tmp_path / "parent", SMALL)
    assert LIMIT < peak_of_growing(tmp_path / "parent", tmp_path / "grown", held=LIMIT) < 2 * LIMIT
