"""Growth as surgery on named tensors. Pure functions: plan, apply, untie, remove.

A plan says, for each new tensor, from which old one it is made and how. Applying it maps config, weights and
optimizer state alike, without building a model.

May import optim, nn, config and all below.
"""

from ppdgrow.surgery.apply import apply_plan, remove_blocks, theta_digest, untie
from ppdgrow.surgery.plan import METHODS, GrowthPlan, GrowthRequest, plan_growth
from ppdgrow.surgery.positions import describe_positions, select_pair

__all__ = [
    "METHODS",
    "GrowthPlan",
    "GrowthRequest",
    "apply_plan",
    "describe_positions",
    "plan_growth",
    "remove_blocks",
    "select_pair",
    "theta_digest",
    "untie",
]
