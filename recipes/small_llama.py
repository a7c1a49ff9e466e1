"""Write a Llama of 2.3 million parameters, not yet trained, with a tokenizer of the standard library's sources.

Run: python recipes/small_llama.py hf/llama   (needs ppdgrow[hf]; see recipes/adapt.sh for what is done with it)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import open_dataset

VOCABULARY = 4096


def write(out: Path) -> None:
    out.mkdir(parents=True)
    text = open_dataset(DataConfig(name="stdlib", tokenizer=f"bpe:{VOCABULARY}"), "lm").tokenizer_json
    (out / "tokenizer.json").write_text(str(text), encoding="utf-8")
    PreTrainedTokenizerFast(tokenizer_file=str(out / "tokenizer.json")).save_pretrained(out)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=6,
        num_attention_heads=5,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(out)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
