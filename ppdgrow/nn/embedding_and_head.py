"""The two ends of a model: the embedding of its input, and the head that reads its stream.

Shapes: B batch, T tokens (or patches), D width, V vocabulary or classes. The stream of plain vectors has no T.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ppdgrow.config.architecture import Architecture, ImageInput, TokenInput
from ppdgrow.config.kinds import FAMILIES
from ppdgrow.nn.branches import make_norm


class Embedding(nn.Module):
    """Base of the embeddings, each of one kind of input."""

    pooled: ClassVar[bool] = False  # the head averages the tokens first

    def __init__(self, spec: Any, architecture: Architecture) -> None:
        super().__init__()

    @classmethod
    def num_tokens(cls, spec: Any) -> int:
        """Tokens per sequence, or patches per image; a plain vector is one."""
        return 1


class TokenEmbedding(Embedding):
    """Token embedding, plus learned positions for a family that mixes tokens without an order of its own."""

    def __init__(self, spec: TokenInput, architecture: Architecture) -> None:
        super().__init__(spec, architecture)
        self.tokens = nn.Embedding(spec.vocabulary_size, architecture.width)
        learned = FAMILIES[architecture.family].positions
        self.positions = nn.Embedding(spec.sequence_length, architecture.width) if learned else None

    def forward(self, ids: Tensor) -> Tensor:
        """`(B, T)` ids to `(B, T, D)`; `T` may be shorter than the longest sequence."""
        x = self.tokens(ids)
        return x if self.positions is None else x + self.positions.weight[: ids.shape[1]]

    @classmethod
    def num_tokens(cls, spec: TokenInput) -> int:
        return spec.sequence_length


class PatchEmbedding(Embedding):
    """Square patches, projected, plus learned positions."""

    pooled = True

    def __init__(self, spec: ImageInput, architecture: Architecture) -> None:
        super().__init__(spec, architecture)
        self.patch_size = spec.patch_size
        self.project = nn.Linear(spec.channels * spec.patch_size**2, architecture.width)
        self.positions = nn.Embedding(spec.num_patches, architecture.width)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` to `(B, T, D)`. The sum with the fp32 positions keeps the stream fp32 under autocast."""
        patches = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)
        return self.project(patches) + self.positions.weight

    @classmethod
    def num_tokens(cls, spec: ImageInput) -> int:
        return spec.num_patches


class VectorEmbedding(Embedding):
    """A whole vector or image, projected."""

    def __init__(self, spec: Any, architecture: Architecture) -> None:
        super().__init__(spec, architecture)
        image = isinstance(spec, ImageInput)
        features = spec.channels * spec.height * spec.width if image else spec.features
        self.project = nn.Linear(features, architecture.width)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(B, ...)` to `(B, D)`, in the type of the parameters also under autocast."""
        return self.project(vectors.flatten(1)).to(self.project.weight.dtype)


# The closed registry of embeddings, as the rules of a family name them.
EMBEDDINGS: dict[str, type[Embedding]] = {
    "tokens": TokenEmbedding,
    "patches": PatchEmbedding,
    "vector": VectorEmbedding,
}


def embedding_of(architecture: Architecture) -> type[Embedding]:
    """The embedding that fits family and input."""
    return EMBEDDINGS[FAMILIES[architecture.family].embeddings[architecture.input.kind]]


def make_embedding(architecture: Architecture) -> Embedding:
    return embedding_of(architecture)(architecture.input, architecture)


def num_outputs(architecture: Architecture) -> int:
    """Logits per prediction."""
    spec = architecture.input
    return spec.vocabulary_size if isinstance(spec, TokenInput) else spec.num_classes


class Head(nn.Module):
    """Norm and output projection; the patches of an image are averaged first."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.norm = make_norm(architecture.norm, architecture.width)
        self.pooled = embedding_of(architecture).pooled
        tied = architecture.tie_embeddings
        self.out = None if tied else nn.Linear(architecture.width, num_outputs(architecture))

    def forward(self, x: Tensor, tied: Tensor) -> Tensor:
        """`(B, T, D)` to logits `(B, T, V)`, or to `(B, V)` for images and vectors; `tied` is the embedding."""
        x = self.norm(x)
        if self.pooled:
            x = x.mean(dim=1)
        return F.linear(x, tied) if self.out is None else self.out(x)
