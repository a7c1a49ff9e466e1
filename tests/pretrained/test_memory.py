"""A large folder is deepened without being held in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT = 300 * 10**6
# Above the bytes that it may take; the files are sparse, so that only the grown folder needs the space.
SIZES = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 6, "vocab_size": 32000}

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
grown = grow_plain(read_folder(Path(sys.argv[1])), method=sys.argv[4], positions=[3], out=Path(sys.argv[2]))
print(json.dumps({"peak": memory("VmHWM") - before, "parameters": grown.parameters_after}))
"""


def sparse_llama(folder: Path) -> int:
    """A Llama in bf16 of which only the header is on the disk; returns its size."""
    hidden, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    maps = {f"self_attn.{each}_proj": [hidden, hidden] for each in "qkvo"}
    maps |= {"mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
    maps |= {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    shapes = {"model.embed_tokens.weight": [SIZES["vocab_size"], hidden], "model.norm.weight": [hidden]}
    shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for number in range(SIZES["num_hidden_layers"]):
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
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_attention_heads": 16, **SIZES}
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return at


def measure(parent: Path, out: Path, *, held: int, method: str) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(parent), str(out), str(held), method],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("method", ["zero", "copy"])
def test_memory_stays_below_300_mb(method: str, tmp_path: Path) -> None:
    size = sparse_llama(tmp_path / "parent")
    assert size > 3 * LIMIT
    found = measure(tmp_path / "parent", tmp_path / "grown", held=0, method=method)
    written = sum(file.stat().st_size for file in (tmp_path / "grown").glob("*.safetensors"))
    assert 2 * found["parameters"] < written < 2 * found["parameters"] + 100_000
    assert found["peak"] < LIMIT, f"{found['peak'] / 1e6:.0f} MB"


def test_control_what_is_held_is_seen(tmp_path: Path) -> None:
    sparse_llama(tmp_path / "parent")
    assert measure(tmp_path / "parent", tmp_path / "grown", held=LIMIT, method="zero")["peak"] > LIMIT
