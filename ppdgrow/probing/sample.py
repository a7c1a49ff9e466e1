"""A continuation of a text by a language model, drawn token by token.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ppdgrow.data.text import TextDataset
from ppdgrow.engine.device import autocast
from ppdgrow.errors import ConfigError, DivergedError
from ppdgrow.nn.model import Model
from ppdgrow.seeding import generator
from ppdgrow.training.context import Setting

DEFAULT_TOKENS = 200


@dataclass(frozen=True)
class Sample:
    """A prompt, the number of tokens that were drawn after it, the seed of the draws, and the tokens as text."""

    prompt: str
    tokens: int
    seed: int
    text: str


@torch.no_grad()
def continue_text(model: Model, setting: Setting, prompt: str, *, tokens: int, seed: int) -> Sample:
    """Draw `tokens` tokens after a prompt, each from the model's own distribution (temperature 1).

    The model reads at most its sequence length. Draws are a function of the seed and the logits alone, so a growth that
    keeps the function keeps the text.

    Raises:
        ConfigError: no language model, no prompt, or nothing to draw.
        DivergedError: the logits are not finite.
    """
    dataset = setting.dataset
    if not isinstance(dataset, TextDataset) or dataset.task != "lm":
        raise ConfigError(
            f"--sample continues a text, which takes a language model (task lm), and this one has task "
            f"{model.architecture.task}: leave it out"
        )
    ids = torch.from_numpy(dataset.tokenizer.encode(prompt.encode("utf-8", "surrogateescape"), "--sample")).long()
    if not len(ids):
        raise ConfigError(f"--sample {prompt!r} has no token to start from: give some text")
    start, draw = len(ids), generator(seed, "sample")
    for _ in range(tokens):
        window = ids[-dataset.config.sequence_length :].to(setting.device)
        with autocast(setting.device, setting.precision):
            logits = model(window[None])[0, -1].float().cpu()
        if not logits.isfinite().all():
            raise DivergedError("the logits are not finite, so nothing can be drawn: use an earlier checkpoint")
        ids = torch.cat([ids, torch.multinomial(logits.softmax(0), 1, generator=draw)])
    return Sample(prompt, tokens, seed, dataset.tokenizer.decode(ids[start:].tolist()))
