"""A model over an explicit list of blocks, of any family, and how it is built from named tensors.

Shapes: B batch, T tokens (or patches), D width, V vocabulary or classes. The stream of plain vectors has no T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppdgrow.config.architecture import Architecture, BlockSpec
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.coupling import Coupling, Halves, Pair, Residual, join, split
from ppdgrow.nn.embedding_and_head import Head, TokenEmbedding, make_embedding
from ppdgrow.nn.linear import LINEAR_MAPS, LinearPair
from ppdgrow.nn.meta import without_memory
from ppdgrow.nn.parts import NAMES, block_parts

AnyPair = Pair | LinearPair
Block = Coupling | AnyPair | Residual
State = Tensor | Halves
BlockHook = Callable[[str, State], State | None]
_WAY_OUT = "the weights do not belong to this config.json; use the checkpoint as it was written"


class Model(nn.Module):
    """Embedding, blocks in order, head. `blocks` is keyed by block id: no name moves when depth changes."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.embed = make_embedding(architecture)
        self.blocks = nn.ModuleDict({block.id: make_block(architecture, block) for block in architecture.blocks})
        self.head = Head(architecture)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of a batch: ids `(B, T)` to `(B, T, V)`; images `(B, C, H, W)` or vectors `(B, N)` to `(B, V)`."""
        return self.run(inputs)

    def run(self, inputs: Tensor, before_block: BlockHook | None = None, skip: frozenset[str] = frozenset()) -> Tensor:
        """As `forward`, with a look at the stream before each block, and with the blocks in `skip` left out.

        `before_block(id, state)` may return a state to go on with in place of the one it was shown.
        """
        x = F.dropout(self.embed(inputs), self.architecture.dropout, self.training)
        state: State = split(x) if self.architecture.stream == "coupled" else x
        for block_id, block in self.named_blocks():
            if before_block is not None:
                changed = before_block(block_id, state)
                state = state if changed is None else changed
            if block_id not in skip:
                state = apply_block(block, state)
        x = join(state) if isinstance(state, tuple) else state
        return self.head(x, self.embed.tokens.weight if isinstance(self.embed, TokenEmbedding) else x)

    def named_blocks(self) -> Iterator[tuple[str, Block]]:
        """Block ids and blocks in the order in which they are applied."""
        for block_id, block in self.blocks.items():
            assert isinstance(block, Coupling | Pair | LinearPair | Residual)
            yield block_id, block


def apply_block(block: Block, state: State) -> State:
    """One block on the stream; a pair in a residual stream works on its halves."""
    if isinstance(block, Residual):
        assert isinstance(state, Tensor)
        return block(state)
    if isinstance(state, tuple):
        return block(state)
    return join(block(split(state)))


def make_block(architecture: Architecture, block: BlockSpec) -> Block:
    """The module of one entry of the block list. Pairs never drop: their members would need one mask."""
    parts = block_parts(architecture, block)
    members = 2 if block.state == "untied" else 1
    if len(parts) == 1:
        linear = [LINEAR_MAPS[parts[0].name](parts[0].config) for _ in range(members)]
        return LinearPair(linear[0], linear[1] if members == 2 else None)
    branches, causal = (parts[0].name, parts[1].name), architecture.task == "lm"
    if block.type == "layer":
        layer = Coupling if architecture.stream == "coupled" else Residual
        return layer(branches, parts[0].config, causal=causal, dropout=architecture.dropout)
    couplings = [Coupling(branches, parts[0].config, causal=causal) for _ in range(members)]
    return Pair(couplings[0], None, "inverse") if members == 1 else Pair(couplings[0], couplings[1], "folded")


def tensor_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a model, without allocating them."""
    return _shapes(_without_memory(architecture).state_dict())


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _without_memory(architecture: Architecture) -> Model:
    with without_memory(architecture.width):
        return Model(architecture)


def build_model(architecture: Architecture, tensors: Mapping[str, Tensor], device: torch.device) -> Model:
    """A model over copies of named tensors, on `device`, in training mode.

    Raises:
        InvalidInputError: a tensor is missing, unexpected, of the wrong shape or not floating point.
    """
    _check_blocks(architecture, tensors)
    model = _without_memory(architecture)
    expected = model.state_dict()
    for name, tensor in tensors.items():
        if name in expected and not tensor.is_floating_point():
            raise InvalidInputError(
                f"tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, expected floating point "
                f"{tuple(expected[name].shape)}; {_WAY_OUT}"
            )
    _check_names_and_shapes(_shapes(expected), _shapes(tensors))
    model.load_state_dict({name: tensors[name].to(device, copy=True) for name in expected}, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def check_shapes(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse with an `InvalidInputError` names and shapes of weights that are not those of an architecture.

    Neither may be believed, and nothing is allocated.
    """
    _check_blocks(architecture, shapes)
    _check_names_and_shapes(tensor_shapes(architecture), shapes)


def _check_blocks(architecture: Architecture, names: Iterable[str]) -> None:
    """Every block has some tensor: known before the time is spent to build as many blocks as a config claims."""
    present = {NAMES.block_of(name) for name in names}
    for block in architecture.blocks:
        if block.id not in present:
            raise InvalidInputError(f"tensor '{NAMES.prefix}.{block.id}...' is missing; {_WAY_OUT}")


def _check_names_and_shapes(expected: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        if name not in shapes:
            raise InvalidInputError(f"tensor {name!r} is missing; {_WAY_OUT}")
        if shapes[name] != shape:
            raise InvalidInputError(f"tensor {name!r} is {shapes[name]}, expected floating point {shape}; {_WAY_OUT}")
    for name in shapes:
        if name not in expected:
            raise InvalidInputError(f"unexpected tensor {name!r}; {_WAY_OUT}")
