"""The parallel scan behind the gated linear recurrence.

Shapes: B batch, T tokens, C channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def gated_scan(value: Tensor, gate: Tensor) -> Tensor:
    """h_t = a_t h_(t-1) + (1 - a_t) v_t with a = sigmoid(gate) and h_0 = 0: `(B, T, C)`, in at least fp32.

    1 - a is formed as sigmoid(-gate), which stays exact where a is near 1, and the decays as logarithms, so that a
    long product of gates near 1 is rounded once and not at each factor. Within chunks of 64 tokens the scan doubles
    its reach (Hillis & Steele 1986): only sums of logarithms, no division. Chunks follow each other.
    """
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    with torch.autocast(value.device.type, enabled=False):
        value, gate = value.to(dtype), gate.to(dtype)
        return linear_scan(F.logsigmoid(gate), torch.sigmoid(-gate) * value)


def linear_scan(log_decay: Tensor, inputs: Tensor) -> Tensor:
    """h_t = exp(log_decay_t) h_(t-1) + inputs_t along dimension 1 of `(B, T, C)`."""
    tokens = inputs.shape[1]
    padding = -tokens % min(CHUNK, tokens)
    batch, _, channels = inputs.shape
    padded = [F.pad(x, (0, 0, 0, padding)) for x in (log_decay, inputs)]
    reach, sums = _scan_within(*(x.view(batch, -1, min(CHUNK, tokens), channels) for x in padded))
    carried = torch.zeros_like(sums[:, 0, 0])
    rows = []
    for chunk in range(sums.shape[1]):
        row = sums[:, chunk] + reach[:, chunk] * carried[:, None]
        carried = row[:, -1]
        rows.append(row)
    return torch.cat(rows, dim=1)[:, :tokens]


def _scan_within(log_decay: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Along dimension 2 of `(B, N, L, C)`: the product of all decays so far, and the states from an empty start."""
    span = 1
    while span < log_decay.shape[2]:
        before_decay = F.pad(log_decay[:, :, :-span], (0, 0, span, 0))
        before_inputs = F.pad(inputs[:, :, :-span], (0, 0, span, 0))
        log_decay, inputs = log_decay + before_decay, inputs + log_decay.exp() * before_inputs
        span *= 2
    return log_decay.exp(), inputs
