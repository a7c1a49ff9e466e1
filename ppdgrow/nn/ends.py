"""The two ends of a model: the embedding of its input, and the head that reads its stream.

Shapes: B batch, T tokens (or patches), D width, V vocabulary or classes. The stream of plain vectors has no T.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ppdgrow.accounting import image_features
from ppdgrow.config.architecture import Architecture, ImageInput, TokenInput
from ppdgrow.nn.branches import make_norm


class TokenEmbedding(nn.Module):
    """Token embedding, plus learned positions for a family that mixes tokens without an order of its own."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        spec = architecture.input
        assert isinstance(spec, TokenInput)
        self.tokens = nn.Embedding(spec.vocabulary_size, architecture.width)
        ordered = architecture.family == "sequence"
        self.positions = None if ordered else nn.Embedding(spec.sequence_length, architecture.width)

    def forward(self, ids: Tensor) -> Tensor:
        """`(B, T)` ids to `(B, T, D)`; `T` may be shorter than the longest sequence."""
        x = self.tokens(ids)
        return x if self.positions is None else x + self.positions.weight[: ids.shape[1]]


class PatchEmbedding(nn.Module):
    """Square patches, projected, plus learned positions."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        spec = architecture.input
        assert isinstance(spec, ImageInput)
        self.patch_size = spec.patch_size
        self.project = nn.Linear(image_features(architecture), architecture.width)
        self.positions = nn.Embedding(spec.num_patches, architecture.width)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` to `(B, T, D)`. The sum with the fp32 positions keeps the stream fp32 under autocast."""
        patches = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)
        return self.project(patches) + self.positions.weight


class VectorEmbedding(nn.Module):
    """A whole vector or image, projected."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.project = nn.Linear(image_features(architecture), architecture.width)

    def forward(self, vectors: Tensor) -> Tensor:
        """`(B, ...)` to `(B, D)`, in the type of the parameters also under autocast."""
        return self.project(vectors.flatten(1)).to(self.project.weight.dtype)


def make_embedding(architecture: Architecture) -> TokenEmbedding | PatchEmbedding | VectorEmbedding:
    """The embedding that fits family and input."""
    if isinstance(architecture.input, TokenInput):
        return TokenEmbedding(architecture)
    return VectorEmbedding(architecture) if architecture.family == "mlp" else PatchEmbedding(architecture)


class Head(nn.Module):
    """Norm and output projection; the patches of an image are averaged first."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.norm = make_norm(architecture.norm, architecture.width)
        spec = architecture.input
        self.pooled = isinstance(spec, ImageInput) and architecture.family != "mlp"
        outputs = spec.vocabulary_size if isinstance(spec, TokenInput) else spec.num_classes
        self.out = None if architecture.tie_embeddings else nn.Linear(architecture.width, outputs)

    def forward(self, x: Tensor, tied: Tensor) -> Tensor:
        """`(B, T, D)` to logits `(B, T, V)`, or to `(B, V)` for images and vectors; `tied` is the embedding."""
        x = self.norm(x)
        if self.pooled:
            x = x.mean(dim=1)
        return F.linear(x, tied) if self.out is None else self.out(x)
