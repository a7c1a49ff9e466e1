"""A tiny stand-in for the folder of WikiText-2, so that what names the data set runs without it."""

from __future__ import annotations

import random
from pathlib import Path

TEXT = "the pair is a block and its inverse so that nothing changes at first then two members part and learn"


def write_wikitext(folder: Path) -> Path:
    """`wikitext-2/{train,valid,test}.txt` below `folder`, some kilobytes of seeded words; returns `folder`."""
    place = folder / "wikitext-2"
    place.mkdir(parents=True)
    for seed, (name, num_lines) in enumerate({"train": 300, "valid": 60, "test": 60}.items()):
        draw = random.Random(seed)
        lines = [" ".join(draw.choices(TEXT.split(), k=20)) for _ in range(num_lines)]
        (place / f"{name}.txt").write_text("".join(f" {line} . \n" for line in lines))
    return folder
