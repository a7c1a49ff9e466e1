"""AdamW over named parameters in four groups: {old, new} x {decayed, not decayed}.

`new` are the parameters that the latest growth inserted; who they are is told from outside. Optimizer state
goes in and out by parameter name, so growth never invalidates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ppdgrow.config.schema import TrainConfig
from ppdgrow.errors import CheckFailedError, InvalidInputError

STATE_KEYS = ("exp_avg", "exp_avg_sq", "step")


class NamedAdamW:
    """Fused AdamW (Loshchilov & Hutter 2019) with state by parameter name.

    Args:
        model: its trainable parameters are optimised; matrices decay, gains and biases do not.
        config: learning rate, betas, decay and the new group's own factors.
        new_names: names of the newly grown parameters.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, new_names: frozenset[str]) -> None:
        self.config = config
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.old = {name: p for name, p in named.items() if name not in new_names}
        self.new = {name: p for name, p in named.items() if name in new_names}
        new_decay = config.weight_decay if config.pair_weight_decay is None else config.pair_weight_decay
        groups: list[dict[str, Any]] = []
        for members, scope, decay in (
            (self.old, "old", config.weight_decay),
            (self.new, "new", new_decay),
        ):
            for matrices in (True, False):
                chosen = [(name, p) for name, p in members.items() if (p.ndim >= 2) == matrices]
                if chosen:
                    groups.append({"params": chosen, "scope": scope, "weight_decay": decay if matrices else 0.0})
        self._frozen: dict[str, dict[str, Tensor]] = {}
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """All optimised parameters by name, old ones first."""
        return self.old | self.new

    def set_rates(self, factor: float, new_factor: float) -> None:
        """Set the rates of a step: the peak rate times `factor`, and for the new group times `new_factor`."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * factor * (new_factor if group["scope"] == "new" else 1.0)

    def rates(self) -> dict[str, float]:
        """The learning rate of each parameter now."""
        return {name: float(group["lr"]) for group in self.optimizer.param_groups for name in group["param_names"]}

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
        # The fused kernel reads this flag as gradient scalers use it: no synchronisation with the host.
        self.optimizer.found_inf = suppressed  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def load_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over optimizer state by name; a parameter without any starts with zero moments and step 0.

        State of parameters that are not trained now is kept for `moments` to hand on.

        Raises:
            InvalidInputError: state for a parameter whose shape is another.
        """
        trained = self.parameters
        self._frozen = {name: dict(state) for name, state in moments.items() if name not in trained}
        for name, parameter in trained.items():
            state = moments.get(name)
            if state is None:
                continue
            for key in ("exp_avg", "exp_avg_sq"):
                if not set(STATE_KEYS) <= state.keys() or state[key].shape != parameter.shape or state["step"].ndim:
                    raise InvalidInputError(
                        f"optimizer state of {name!r} does not fit the parameter: expected {key} of shape "
                        f"{tuple(parameter.shape)} and a step; use -o train.reset_optimizer=true"
                    )
            self.optimizer.state[parameter] = {
                "step": state["step"].to(parameter.device, torch.float32, copy=True),
                "exp_avg": state["exp_avg"].to(parameter.device, parameter.dtype, copy=True),
                "exp_avg_sq": state["exp_avg_sq"].to(parameter.device, parameter.dtype, copy=True),
            }

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """Copies of the optimizer state on the CPU, by parameter name."""
        return self._frozen | {
            name: {key: state[key].detach().to("cpu", copy=True) for key in STATE_KEYS}
            for name, parameter in self.parameters.items()
            if (state := self.optimizer.state.get(parameter))
        }

    def check_complete(self, model: nn.Module) -> None:
        """Every trainable parameter is in exactly one group.

        Raises:
            CheckFailedError: names the first that is in none or in several.
        """
        counts: dict[int, int] = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                counts[id(parameter)] = counts.get(id(parameter), 0) + 1
        for name, parameter in model.named_parameters():
            expected, found = int(parameter.requires_grad), counts.get(id(parameter), 0)
            if found != expected:
                raise CheckFailedError(f"parameter {name!r} is in {found} optimizer groups, expected {expected}")
