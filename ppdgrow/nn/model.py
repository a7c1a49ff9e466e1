"""The encoder-only Transformer over an explicit list of blocks, and how it is built from named tensors.

Shapes: B batch, T tokens (or patches), D width, V vocabulary or classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppdgrow.config.architecture import Architecture, BlockSpec, ImageInput, TokenInput
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.branches import make_norm
from ppdgrow.nn.coupling import Coupling, Pair
from ppdgrow.nn.residual import Residual
from ppdgrow.nn.stream import Halves, join, split

Block = Coupling | Pair | Residual
State = Tensor | Halves
BlockHook = Callable[[str, State], State | None]


class TokenEmbedding(nn.Module):
    """Token plus learned position embedding: `(B, T)` ids to `(B, T, D)`."""

    def __init__(self, spec: TokenInput, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(spec.vocabulary_size, width)
        self.positions = nn.Embedding(spec.sequence_length, width)

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ids; `T` may be shorter than the longest sequence."""
        return self.tokens(ids) + self.positions.weight[: ids.shape[1]]


class PatchEmbedding(nn.Module):
    """Square patches, projected, plus learned positions: `(B, C, H, W)` to `(B, T, D)`."""

    def __init__(self, spec: ImageInput, width: int) -> None:
        super().__init__()
        self.patch_size = spec.patch_size
        self.project = nn.Linear(spec.channels * spec.patch_size**2, width)
        self.positions = nn.Embedding(spec.num_patches, width)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images. The sum with the fp32 positions keeps the stream fp32 under autocast."""
        patches = F.unfold(images, self.patch_size, stride=self.patch_size).transpose(1, 2)
        return self.project(patches) + self.positions.weight


class Head(nn.Module):
    """Norm and output projection; images are averaged over their patches first."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.norm = make_norm(architecture.norm, architecture.width)
        spec = architecture.input
        self.pooled = isinstance(spec, ImageInput)
        outputs = spec.num_classes if isinstance(spec, ImageInput) else spec.vocabulary_size
        self.out = None if architecture.tie_embeddings else nn.Linear(architecture.width, outputs)

    def forward(self, x: Tensor, tied: Tensor) -> Tensor:
        """`(B, T, D)` to logits `(B, T, V)`, or `(B, V)` for images; `tied` is the embedding."""
        x = self.norm(x)
        if self.pooled:
            x = x.mean(dim=1)
        return F.linear(x, tied) if self.out is None else self.out(x)


class Transformer(nn.Module):
    """Embedding, blocks in order, head. `blocks` is keyed by block id: no name moves when depth changes."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        spec = architecture.input
        self.embed: TokenEmbedding | PatchEmbedding = (
            TokenEmbedding(spec, architecture.width)
            if isinstance(spec, TokenInput)
            else PatchEmbedding(spec, architecture.width)
        )
        self.blocks = nn.ModuleDict({block.id: make_block(architecture, block) for block in architecture.blocks})
        self.head = Head(architecture)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of a batch: ids `(B, T)` to `(B, T, V)`, or images `(B, C, H, W)` to `(B, V)`."""
        return self.run(inputs)

    def run(self, inputs: Tensor, before_block: BlockHook | None = None, skip: frozenset[str] = frozenset()) -> Tensor:
        """As `forward`, with a look at the stream before each block, and with the blocks in `skip` left out.

        `before_block(id, state)` may return a state to go on with in place of the one it was shown.
        """
        x = F.dropout(self.embed(inputs), self.architecture.dropout, self.training)
        state: State = split(x) if self.architecture.stream == "coupled" else x
        for block_id, block in self.named_blocks():
            if before_block is not None:
                state = _or(before_block(block_id, state), state)
            if block_id not in skip:
                state = apply_block(block, state)
        x = join(state) if isinstance(state, tuple) else state
        return self.head(x, self.embed.tokens.weight if isinstance(self.embed, TokenEmbedding) else x)

    def named_blocks(self) -> Iterator[tuple[str, Block]]:
        """Block ids and blocks in the order in which they are applied."""
        for block_id, block in self.blocks.items():
            assert isinstance(block, Coupling | Pair | Residual)
            yield block_id, block


def _or(shown: State | None, state: State) -> State:
    return state if shown is None else shown


def apply_block(block: Block, state: State) -> State:
    """One block on the stream; a pair in a residual stream works on its halves."""
    if isinstance(block, Residual):
        assert isinstance(state, Tensor)
        return block(state)
    if isinstance(state, tuple):
        return block(state)
    return join(block(split(state)))


def make_coupling(architecture: Architecture, kind: str, *, dropout: float) -> Coupling:
    """A coupling on the halves of the model's stream."""
    return Coupling(
        kind,
        architecture.width // 2,
        heads=architecture.heads,
        ffn_multiplier=architecture.ffn_multiplier,
        norm=architecture.norm,
        causal=architecture.task == "lm",
        dropout=dropout,
    )


def make_block(architecture: Architecture, block: BlockSpec) -> Block:
    """The module of one entry of the block list. Pairs never drop: their members would need one mask."""
    if block.type == "pair":
        plus = make_coupling(architecture, block.kind, dropout=0.0)
        if block.state == "tied":
            return Pair(plus, None, "inverse")
        return Pair(plus, make_coupling(architecture, block.kind, dropout=0.0), "folded")
    if architecture.stream == "coupled":
        return make_coupling(architecture, block.kind, dropout=architecture.dropout)
    return Residual(
        block.kind,
        architecture.width,
        heads=architecture.heads,
        ffn_multiplier=architecture.ffn_multiplier,
        norm=architecture.norm,
        causal=architecture.task == "lm",
        dropout=architecture.dropout,
    )


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a model, without allocating them."""
    with torch.device("meta"):
        model = Transformer(architecture)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def build_model(architecture: Architecture, tensors: Mapping[str, Tensor], device: torch.device) -> Transformer:
    """A model over copies of named tensors, on `device`, in training mode.

    Raises:
        InvalidInputError: a tensor is missing, unexpected, of the wrong shape or not floating point.
    """
    with torch.device("meta"):
        model = Transformer(architecture)
    expected = model.state_dict()
    check_tensors({name: tuple(tensor.shape) for name, tensor in expected.items()}, tensors)
    model.load_state_dict({name: tensors[name].to(device, copy=True) for name in expected}, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def check_tensors(expected: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor]) -> None:
    """Hold named tensors against the names and shapes that an architecture asks for.

    Raises:
        InvalidInputError: the first tensor that does not fit, by name.
    """
    way_out = "the weights do not belong to this config.json; use the checkpoint as it was written"
    for name, shape in expected.items():
        if name not in tensors:
            raise InvalidInputError(f"tensor {name!r} is missing; {way_out}")
        tensor = tensors[name]
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise InvalidInputError(
                f"tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, expected floating point {shape}; {way_out}"
            )
    for name in tensors:
        if name not in expected:
            raise InvalidInputError(f"unexpected tensor {name!r}; {way_out}")
