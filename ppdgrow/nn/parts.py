"""What each block of an architecture is made of, and how its tensors are called: known without building it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ppdgrow.config.architecture import Architecture, BlockSpec
from ppdgrow.config.kinds import parts_of
from ppdgrow.nn.branches import BRANCHES, BranchConfig, Part, Shapes
from ppdgrow.nn.linear import LINEAR_MAPS

_IN_BLOCK = r"\.([^.]*)\.(?:(plus|minus)\.)?(?:([fg])\.)?(.*)"  # block, member, role, tensor


@dataclass(frozen=True)
class TensorName:
    """Which tensor of a block is meant. A layer has no members, the map of a linear pair no role."""

    block: str  # its id
    member: str  # plus, minus or nothing
    role: str  # f, g or nothing
    tensor: str  # within the branch or map: `out.weight`

    @property
    def within_member(self) -> str:
        """As a member (or a layer) calls it: `f.out.weight`."""
        return ".".join(filter(None, (self.role, self.tensor)))


class BlockNames:
    """The names in a model of `nn.model`; checkpoints of other makers have names of their own, in a subclass."""

    prefix = "blocks"

    def join(self, name: TensorName) -> str:
        """The full name, `blocks.p1.plus.f.out.weight`; without a tensor, what all of the part's begin with."""
        return ".".join(filter(None, (self.prefix, name.block, name.member, name.within_member)))

    def parse(self, name: str) -> TensorName | None:
        """The inverse of `join`; None for a tensor that is in no block."""
        found = re.fullmatch(self.prefix + _IN_BLOCK, name, re.DOTALL)
        return None if found is None else TensorName(*found.groups(""))

    def block_of(self, name: str) -> str | None:
        """The id of the block to which a tensor belongs, if to any."""
        found = self.parse(name)
        return None if found is None else found.block

    def second_member(self, name: TensorName) -> str:
        """What the second member of a pair calls the same tensor."""
        return self.join(replace(name, member="minus"))


NAMES = BlockNames()


@dataclass(frozen=True)
class BlockPart:
    """A branch of a block, or the map of a linear pair, and where it stands: of a pair, in the first member."""

    block: str
    member: str
    role: str
    name: str  # in the registry of branches or of linear maps
    module: type[Part]
    config: BranchConfig

    @property
    def shapes(self) -> Shapes:
        return self.module.shapes(self.config)

    def deviation(self, tensor: str, num_layers: int) -> float:
        """Standard deviation with which a tensor is drawn, if it is a matrix."""
        return self.module.deviation(tensor, self.shapes[tensor], num_layers)

    def called(self, tensor: str, names: BlockNames = NAMES) -> str:
        """The name of one of its tensors in the model; of none: what they all begin with."""
        return names.join(TensorName(self.block, self.member, self.role, tensor))


def block_parts(architecture: Architecture, block: BlockSpec) -> tuple[BlockPart, ...]:
    """The branches f and g of a block, or the one map of a linear pair."""
    config = BranchConfig(
        channels=architecture.channels_of(block),
        heads=architecture.heads,
        ffn_multiplier=architecture.ffn_multiplier,
        kernel_size=architecture.kernel_size,
        norm=architecture.norm,
    )
    member = "plus" if block.type == "pair" else ""
    parts = parts_of(architecture.family, block.kind)
    if len(parts) == 1:
        return (BlockPart(block.id, member, "", parts[0], LINEAR_MAPS[parts[0]], config),)
    return tuple(
        BlockPart(block.id, member, role, name, BRANCHES[name], config) for role, name in zip("fg", parts, strict=True)
    )
