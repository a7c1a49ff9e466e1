"""Data sets, tokenisers, and batches that are pure functions of (seed, step).

May import config and all below.
"""

from ppdgrow.data.batches import NO_TARGET, Batch, Batches
from ppdgrow.data.dataset import Dataset, Split
from ppdgrow.data.named import DATASETS
from ppdgrow.data.registry import canonical_name, open_dataset, resolve_defaults

__all__ = [
    "DATASETS",
    "NO_TARGET",
    "Batch",
    "Batches",
    "Dataset",
    "Split",
    "canonical_name",
    "open_dataset",
    "resolve_defaults",
]
