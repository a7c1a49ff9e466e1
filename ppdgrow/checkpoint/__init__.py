"""Checkpoints, run folders and their logs: safetensors and JSON only, whole or not there, verified before use.

May import nn, config and all below.
"""

from ppdgrow.checkpoint.format import (
    Checkpoint,
    manifest_digest,
    read_checkpoint,
    read_config,
    read_state,
    write_checkpoint,
)
from ppdgrow.checkpoint.jsonl import append_jsonl, lines_up_to, read_jsonl, truncate_metrics, write_jsonl
from ppdgrow.checkpoint.runs import RunFolder, locate_checkpoint, read_located
from ppdgrow.checkpoint.shards import weight_files

__all__ = [
    "Checkpoint",
    "RunFolder",
    "append_jsonl",
    "lines_up_to",
    "locate_checkpoint",
    "manifest_digest",
    "read_checkpoint",
    "read_config",
    "read_jsonl",
    "read_located",
    "read_state",
    "truncate_metrics",
    "weight_files",
    "write_checkpoint",
    "write_jsonl",
]
