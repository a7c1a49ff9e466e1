"""Random streams by name: every draw has a generator of its own, so no draw depends on what was drawn before it."""

from __future__ import annotations

import hashlib

import torch


def generator(*labels: int | str) -> torch.Generator:
    """A CPU generator seeded from its labels, such as `generator(seed, "batch", epoch)`.

    It lives on the CPU so that the bits do not depend on the device. Labels are hashed with their types and
    lengths: `("a", "b")`, `("ab",)` and `(1,)`, `("1",)` are different streams.
    """
    spelled = "".join(f"{type(label).__name__}:{len(str(label))}:{label};" for label in labels)
    digest = hashlib.sha256(spelled.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
