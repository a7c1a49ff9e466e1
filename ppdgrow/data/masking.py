"""Masks of masked language modelling (BERT, Devlin et al. 2019, section 3.1).

Shapes: B batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MASK_SHARE = 0.8
RANDOM_SHARE = 0.1


@dataclass(frozen=True)
class Masks:
    """Which positions take a loss, `selected` `(B, T)`, and what stands there instead.

    `replacements` `(B, T)` holds an id, or -1 where the token stays as it is.
    """

    selected: Tensor
    replacements: Tensor


def draw_masks(
    shape: tuple[int, int], *, num_tokens: int, mask_id: int, fraction: float, draw: torch.Generator
) -> Masks:
    """Select positions with probability `fraction`, and at least one in each sequence.

    Of the selected, 80 % become `mask_id`, 10 % a random id below `num_tokens`, 10 % stay.
    """
    chance = torch.rand(shape, generator=draw)
    selected = (chance < fraction) | (chance == chance.min(dim=1, keepdim=True).values)
    fate = torch.rand(shape, generator=draw)
    random_ids = torch.randint(num_tokens, shape, generator=draw)
    replacements = torch.where(fate < MASK_SHARE, mask_id, random_ids)
    replaced = selected & (fate < MASK_SHARE + RANDOM_SHARE)
    return Masks(selected, torch.where(replaced, replacements, -1))
