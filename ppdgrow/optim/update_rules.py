"""How parameters are updated: torch's optimizers, the state that each keeps, and how that state follows its parameter.

A new update is one class here, an optimizer that uses it one line in `OPTIMIZERS`, and its name in the recipe's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ppdgrow.config.schema import TrainConfig
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.parts import NAMES

State = Mapping[str, Tensor]
# momentum: as the weight, and of its sign; scale: as the weight, without a sign; counter: one number.
Role = Literal["momentum", "scale", "counter"]


class Update:
    """An optimizer of torch over some groups of parameters.

    Attributes:
        entries: the state that it keeps for each parameter, by torch's names.
        optimizers: torch's; together they have each parameter once.
    """

    entries: ClassVar[Mapping[str, Role]]
    optimizers: list[torch.optim.Optimizer]

    def __init__(self, groups: list[dict[str, Any]], config: TrainConfig) -> None:
        raise NotImplementedError

    @staticmethod
    def takes(parameter: Tensor, owner: nn.Module, *, in_block: bool) -> bool:
        """Whether it is made for a parameter that belongs to the module `owner`, within a block of the model or not."""
        return True

    def step(self, suppressed: Tensor) -> None:
        """Update, unless the device flag `suppressed` is set: then parameters and state stay as they are, to the bit.

        It must not wait for the device.
        """
        raise NotImplementedError

    @classmethod
    def new_state(cls, parameter: Tensor) -> dict[str, Tensor]:
        """The state before the first update."""
        zero = torch.zeros((), dtype=torch.float32, device=parameter.device)
        return {
            entry: zero.clone() if role == "counter" else torch.zeros_like(parameter)
            for entry, role in cls.entries.items()
        }

    @classmethod
    def copied(cls, state: State, cut: Callable[[Tensor], Tensor], *, momentum: bool) -> dict[str, Tensor]:
        """The state of a new parameter that was cut from another one; without `momentum`, that part of it is zero."""
        copied = {
            entry: state[entry].clone() if role == "counter" else cut(state[entry])
            for entry, role in cls.entries.items()
        }
        stale = [entry for entry, role in cls.entries.items() if role == "momentum" and not momentum]
        return copied | {entry: torch.zeros_like(copied[entry]) for entry in stale}

    @classmethod
    def negated(cls, state: State) -> dict[str, Tensor]:
        """The state of a new parameter that is the negative of another one."""
        return {
            entry: -state[entry] if role == "momentum" else state[entry].clone() for entry, role in cls.entries.items()
        }


class AdamW(Update):
    """Fused AdamW (Loshchilov & Hutter 2019)."""

    entries: ClassVar[Mapping[str, Role]] = {"exp_avg": "momentum", "exp_avg_sq": "scale", "step": "counter"}

    def __init__(self, groups: list[dict[str, Any]], config: TrainConfig) -> None:
        self.optimizers = [torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)]

    def step(self, suppressed: Tensor) -> None:
        for optimizer in self.optimizers:
            # The fused kernel reads this flag as gradient scalers use it.
            optimizer.found_inf = suppressed  # type: ignore[attr-defined]
            optimizer.step()


class Muon(Update):
    """Momentum, orthogonalised by five Newton-Schulz iterations in bf16 (Jordan et al. 2024), for hidden matrices.

    Those are the weights of linear layers within blocks. As its authors advise, AdamW keeps embeddings, head, gains and
    biases; also the taps of depthwise maps, whose C x K table is no linear map, and the parameters of orthogonal maps,
    which are coordinates of a rotation and not the map itself. The three parts of an attention's `qkv` count as one
    matrix. Update sizes are matched to those of AdamW (Liu et al. 2025), so that both take one learning rate.
    The iterations, some 30 min(m, n) FLOPs per weight and step, are not in the ledger.
    """

    entries: ClassVar[Mapping[str, Role]] = {"momentum_buffer": "momentum"}

    def __init__(self, groups: list[dict[str, Any]], config: TrainConfig) -> None:
        # One for each matrix: torch steps an optimizer as a whole, and `step` holds a copy of what it may restore.
        self.optimizers = [
            torch.optim.Muon([group | {"params": [member]}], lr=config.lr, adjust_lr_fn="match_rms_adamw")
            for group in groups
            for member in group["params"]
        ]

    @staticmethod
    def takes(parameter: Tensor, owner: nn.Module, *, in_block: bool) -> bool:
        # Transformers' Conv1D is a linear map, its matrix transposed, which is all the same here.
        linear = isinstance(owner, nn.Linear) or type(owner).__name__ == "Conv1D"
        return in_block and linear and parameter.ndim == 2

    @torch.no_grad()
    def step(self, suppressed: Tensor) -> None:
        restore = suppressed.bool()
        for optimizer in self.optimizers:
            (parameter,) = optimizer.param_groups[0]["params"]
            state = optimizer.state[parameter]
            if not state:
                state |= self.new_state(parameter)
            held = [parameter, *state.values()]
            before = [tensor.clone() for tensor in held]
            optimizer.step()
            for tensor, old in zip(held, before, strict=True):
                torch.where(restore, old, tensor, out=tensor)


# The closed registry of optimizers: each parameter is updated by the first that takes it.
OPTIMIZERS: dict[str, tuple[type[Update], ...]] = {"adamw": (AdamW,), "muon": (Muon, AdamW)}


def updates_of(model: nn.Module, optimizer: str) -> dict[str, type[Update]]:
    """How each trainable parameter is updated, by its name."""
    found = {}
    blocks = getattr(model, "blocks_prefix", f"{NAMES.prefix}.")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner, inside = model.get_submodule(name.rpartition(".")[0]), name.startswith(blocks)
            found[name] = next(u for u in OPTIMIZERS[optimizer] if u.takes(parameter, owner, in_block=inside))
    return found


def update_that_keeps(state: State, name: str = "a parameter") -> type[Update]:
    """The update whose state this is.

    Raises:
        InvalidInputError: it is no update's, or half of one's.
    """
    for update in (update for updates in OPTIMIZERS.values() for update in updates):
        if update.entries.keys() == state.keys():
            return update
    raise InvalidInputError(
        f"the optimizer state of {name!r} is just {', '.join(sorted(state))}, which no optimizer keeps; use an older "
        "checkpoint of the run"
    )
