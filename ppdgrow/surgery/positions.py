"""Where new blocks go, and which pair is meant.

A place p means: after the p-th block of the list (0: before the first).
"""

from __future__ import annotations

from collections.abc import Sequence

from ppdgrow.config.architecture import Architecture
from ppdgrow.config.growth import NAMED_POSITIONS
from ppdgrow.errors import ConfigError


def resolve_positions(position: str, num_blocks: int, num_insertions: int) -> tuple[int, ...]:
    """The place of each insertion, in ascending order.

    `interleave` puts insertion k of N after block ceil(k L / N) of L, so that N may exceed L; a single one goes to the
    middle, as `middle` does with all.

    Raises:
        ConfigError: an unknown position, a place that does not exist, or a list of the wrong length.
    """
    if position == "end":
        return (num_blocks,) * num_insertions
    if position == "start":
        return (0,) * num_insertions
    if position == "middle" or (position == "interleave" and num_insertions == 1):
        return (-(-num_blocks // 2),) * num_insertions
    if position == "interleave":
        return tuple(-(-k * num_blocks // num_insertions) for k in range(1, num_insertions + 1))
    try:
        places = tuple(int(part) for part in position.split(","))
    except ValueError:
        raise ConfigError(
            f"unknown position {position!r}: expected one of {', '.join(NAMED_POSITIONS)}, "
            "or block numbers such as 2,4,6"
        ) from None
    for place in places:
        if not 0 <= place <= num_blocks:
            raise ConfigError(
                f"position {place} does not exist: the model has {num_blocks} blocks, "
                f"so a place is a number from 0 (before the first) to {num_blocks} (after the last)"
            )
    if len(places) != num_insertions:
        raise ConfigError(
            f"position {position!r} names {len(places)} places for {num_insertions} pairs: "
            f"name one place per pair, or set --pairs {len(places)}"
        )
    return tuple(sorted(places))


def describe_positions(positions: Sequence[int], num_blocks: int) -> str:
    """Places in words: `after blocks 2, 4, 6 of 6`, `before block 1 of 6`; each is named once."""
    after = [str(place) for place in dict.fromkeys(positions) if place]
    where = ["before block 1"] if 0 in positions else []
    if after:
        where.append(f"after block{'' if len(after) == 1 else 's'} {', '.join(after)}")
    return f"{' and '.join(where)} of {num_blocks}"


def select_pair(architecture: Architecture, which: str) -> str:
    """The id of the pair meant by `last` (newest, then highest id) or by an id; a `ConfigError` if there is none."""
    pairs = sorted(architecture.pairs, key=lambda block: (block.born, int(block.id[1:])))
    if not pairs:
        raise ConfigError("the model has no pair to remove: grow it first with ppdgrow grow")
    if which == "last":
        return pairs[-1].id
    known = [block.id for block in architecture.pairs]
    if which not in known:
        raise ConfigError(f"no pair {which!r} in this model: expected last or one of {', '.join(known)}")
    return which
