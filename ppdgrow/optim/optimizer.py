"""An optimizer over named parameters in groups: {old, new} x {decayed, not decayed}, for each way of updating.

`new` are the parameters that the latest growth inserted; who they are is told from outside. Optimizer state
goes in and out by parameter name, so growth never invalidates it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ppdgrow.config.schema import TrainConfig
from ppdgrow.errors import CheckFailedError, InvalidInputError
from ppdgrow.optim.update_rules import OPTIMIZERS, State, Update, update_that_keeps, updates_of

Moments = Mapping[str, State]


class NamedOptimizer:
    """The optimizer that `train.optimizer` names, with state by parameter name.

    Args:
        model: its trainable parameters are optimised; matrices decay, gains and biases do not.
        config: optimizer, learning rate, betas, decay and the new group's own factors.
        new_names: names of the newly grown parameters.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, new_names: frozenset[str]) -> None:
        self.config = config
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.old = {name: p for name, p in named.items() if name not in new_names}
        self.new = {name: p for name, p in named.items() if name in new_names}
        # The names of parameters whose state was another optimizer's and that therefore start afresh.
        self.restarted: list[str] = []
        self._frozen: dict[str, dict[str, Tensor]] = {}
        self._update_of = updates_of(model, config.optimizer)
        self._updates = [
            update(groups, config) for update in OPTIMIZERS[config.optimizer] if (groups := self._groups_for(update))
        ]
        optimizers = [optimizer for update in self._updates for optimizer in update.optimizers]
        self._groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._state = {
            name: optimizer.state
            for optimizer in optimizers
            for group in optimizer.param_groups
            for name in group["param_names"]
        }

    def _groups_for(self, update: type[Update]) -> list[dict[str, Any]]:
        config = self.config
        new_decay = config.weight_decay if config.pair_weight_decay is None else config.pair_weight_decay
        groups = []
        for scope, members, decay in (("old", self.old, config.weight_decay), ("new", self.new, new_decay)):
            for matrices in (True, False):
                own = [(name, p) for name, p in members.items() if self._update_of[name] is update]
                chosen = [(name, p) for name, p in own if (p.ndim >= 2) == matrices]
                if chosen:
                    groups.append({"params": chosen, "scope": scope, "weight_decay": decay if matrices else 0.0})
        return groups

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All optimised parameters by name, old ones first."""
        return self.old | self.new

    def set_rates(self, factor: float, new_factor: float) -> None:
        """Set the rates of a step: the peak rate times `factor`, and for the new group times `new_factor`."""
        for group in self._groups:
            group["lr"] = self.config.lr * factor * (new_factor if group["scope"] == "new" else 1.0)

    def rates(self) -> dict[str, float]:
        return {name: float(group["lr"]) for group in self._groups for name in group["param_names"]}

    def clip(self) -> dict[str, Tensor]:
        """Clip the gradients of old and new parameters apart; their norms before clipping, on the device."""
        norms = {}
        for scope, members in (("old", self.old), ("new", self.new)):
            gradients = [p.grad for p in members.values() if p.grad is not None]
            if not gradients:
                continue
            norm = torch.nn.utils.get_total_norm(gradients)
            torch.nn.utils.clip_grads_with_norm_(members.values(), self.config.clip_norm, norm)
            norms[scope] = norm
        return norms

    def step(self, suppressed: Tensor) -> None:
        """Update, unless the device flag `suppressed` (one float, 0 or 1) is set: then nothing changes."""
        for update in self._updates:
            update.step(suppressed)
        for parameter in self.parameters.values():
            parameter.grad = None

    def load_moments(self, moments: Moments) -> None:
        """Take over optimizer state by name; a parameter without any starts with new state, as in `restarted`.

        State of parameters that are not trained now is kept for `moments` to hand on.

        Raises:
            InvalidInputError: state that no optimizer keeps, or for a parameter whose shape is another.
        """
        trained = self.parameters
        self._frozen = {name: dict(state) for name, state in moments.items() if name not in trained}
        found = {name: moments[name] for name in trained if name in moments}
        check_moments(found, trained)
        for name, state in found.items():
            update, parameter = self._update_of[name], trained[name]
            if update_that_keeps(state) is not update:
                self.restarted.append(name)
                continue
            self._state[name][parameter] = {
                entry: state[entry].to(parameter.device, zero.dtype, copy=True)
                for entry, zero in update.new_state(parameter).items()
            }

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Copies of the optimizer state on the CPU, by parameter name."""
        return self._frozen | {
            name: {entry: state[entry].detach().to("cpu", copy=True) for entry in self._update_of[name].entries}
            for name, parameter in self.parameters.items()
            if (state := self._state[name].get(parameter))
        }

    def check_complete(self, model: nn.Module) -> None:
        """Refuse with a `CheckFailedError` a trainable parameter that is in no group or in several."""
        counts = Counter(id(parameter) for group in self._groups for parameter in group["params"])
        for name, parameter in model.named_parameters():
            expected, found = int(parameter.requires_grad), counts[id(parameter)]
            if found != expected:
                raise CheckFailedError(f"parameter {name!r} is in {found} optimizer groups, expected {expected}")


def new_moments(model: nn.Module, config: TrainConfig) -> dict[str, dict[str, Tensor]]:
    """The state of each trainable parameter before its first update, by name."""
    parameters = dict(model.named_parameters())
    return {name: update.new_state(parameters[name]) for name, update in updates_of(model, config.optimizer).items()}


def check_moments(moments: Moments, tensors: State) -> None:
    """Refuse with an `InvalidInputError` optimizer state that does not fit its parameter, the first by name."""
    for name, state in moments.items():
        for entry, expected in update_that_keeps(state, name).new_state(tensors[name].to("meta")).items():
            if state[entry].shape != expected.shape:
                raise InvalidInputError(
                    f"optimizer state {entry} of {name!r} is {tuple(state[entry].shape)}, expected "
                    f"{tuple(expected.shape)}; use an older checkpoint of the run"
                )
