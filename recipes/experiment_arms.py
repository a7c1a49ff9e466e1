"""The arms of the experiments: how the model of each comes about, and which of them answer a question together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Budget = Literal["small", "medium", "large"]
GROWN = -1  # the key of the rate of grown models in `Size.rates`


@dataclass(frozen=True)
class Size:
    """A recipe `recipes/SIZE.yaml` with what its arms need to know.

    `at` is the step of the growth; a model of 12 layers costs as much in `equal_steps` steps as one that is grown
    by attention pairs in all `steps`; `wider` makes a model of twice the width. `budgets` are TFLOP of training, and
    `rates` the learning rates by depth that the set `front-rates` chose (of others the recipe's).
    """

    steps: int
    at: int
    equal_steps: int
    wider: str
    budgets: Mapping[Budget, float] = field(default_factory=dict)
    rates: Mapping[int, float] = field(default_factory=dict)


SIZES = {
    "wikitext2-cpu": Size(steps=1500, at=400, equal_steps=1308, wider="--width 256 -o model.heads=8"),
    "wikitext2-gpu": Size(steps=10_000, at=2700, equal_steps=8866, wider="--width 1024 -o model.heads=16"),
    "wikitext2-front": Size(
        steps=4000,
        at=2000,
        equal_steps=3062,
        wider="--width 128 -o model.heads=4",
        budgets={"small": 3.42, "medium": 6.85, "large": 12.9},
        rates={1: 24e-3, 2: 16e-3, 3: 8e-3, 4: 12e-3, 6: 12e-3, 8: 12e-3, 12: 8e-3, GROWN: 12e-3},
    ),
    "cifar10-cpu": Size(steps=1500, at=400, equal_steps=1308, wider="--width 256 -o model.heads=8"),
    "cifar10-gpu": Size(steps=30_000, at=8100, equal_steps=25_963, wider="--width 768 -o model.heads=12"),
    "cifar10-front": Size(
        steps=4000,
        at=2000,
        equal_steps=3015,
        wider="--width 128 -o model.heads=4",
        budgets={"small": 3.42, "medium": 6.85, "large": 12.9},
        rates={2: 8e-3, 4: 4e-3, GROWN: 12e-3},
    ),
}


@dataclass(frozen=True)
class Arm:
    """How the model of one arm comes about.

    Args:
        train: options of the `ppdgrow train` that ends with the last step.
        shallow: layers of the model that it starts from; None: from scratch.
        grow: options of `ppdgrow grow` between the two; None: not grown.
        at: share of the steps at which the shallow phase ends; None: `Size.at`.
        equal_steps: train for `Size.equal_steps`.
        budget: train for as many steps as this one of `Size.budgets` pays, growths included.
        layers: with a budget, the depth whose learning rate of `Size.rates` is taken; None: that of the recipe.
    """

    train: str = ""
    shallow: int | None = None
    grow: str | None = None
    at: float | None = None
    equal_steps: bool = False
    budget: Budget | None = None
    layers: int | None = None


def _grown(grow: str, *, at: float | None = None, train: str = "") -> Arm:
    return Arm(train, shallow=6, grow=f"--pairs 3 {grow}", at=at)


EQUAL = "scratch-12-equal-flops"
ARMS = {
    "scratch-12": Arm("--layers 12"),
    "scratch-12-residual": Arm("--layers 12 -o model.stream=residual"),
    "scratch-12-wide": Arm("--layers 12 {wider}"),
    EQUAL: Arm("--layers 12", equal_steps=True),
    "scratch-6": Arm(shallow=6),
    "reset-6": Arm("-o train.reset_optimizer=true", shallow=6),
    "attention": _grown("--pair attention"),
    "attention-first": _grown("--pair attention-first"),
    "ffn": _grown("--pair ffn"),
    "zero": _grown("--method zero"),
    "copy": _grown("--method copy --position end"),
    "fresh": _grown("--method fresh"),
    # One factor of the growth at a time, against `attention`.
    "at-10": _grown("--pair attention", at=0.1),
    "at-50": _grown("--pair attention", at=0.5),
    "at-80": _grown("--pair attention", at=0.8),
    "moments-fresh": _grown("--pair attention --moments fresh"),
    "moments-copy": _grown("--pair attention --moments copy"),
    "rate-0.5": _grown("--pair attention", train="--pair-lr 0.5"),
    "rate-2": _grown("--pair attention", train="--pair-lr 2"),
    "scale-0.3": _grown("--pair attention --scale 0.3"),
    "scale-0.1": _grown("--pair attention --scale 0.1"),
    "source-random": _grown("--pair attention --source random"),
    "many-late": Arm(shallow=2, grow="--pair attention --pairs 5", at=0.8),
    # The learning rate of the baseline.
    "lr-1e-3": Arm("--layers 12 -o train.lr=1e-3"),
    "lr-2e-3": Arm("--layers 12 -o train.lr=2e-3"),
    "lr-4e-3": Arm("--layers 12 -o train.lr=4e-3"),
    "lr-8e-3": Arm("--layers 12 -o train.lr=8e-3"),
}

# The second experiment: at equal FLOPs, models of all depths, and shallow ones that grow within their run.
DEPTHS = (2, 3, 4, 6, 8, 12)
OPERATORS = {
    "attention": "pair: attention",
    "attention-first": "pair: attention-first",
    "scale-0.3": "pair: attention, scale: 0.3",
    "scale-0.1": "pair: attention, scale: 0.1",
    "moments-fresh": "pair: attention, moments: fresh",
    "moments-copy": "pair: attention, moments: copy",
    "zero": "method: zero",
    "copy": "method: copy",
    "fresh": "method: fresh",
    "random": "pair: attention, source: random",
}


def _enter(name: str, arm: Arm) -> str:
    ARMS[name] = arm
    return name


def _scratch(layers: int, budget: Budget, lr: float | None = None) -> str:
    """Enter an arm that has all its layers from the start; returns its name."""
    if lr is None:
        return _enter(f"{layers}-layers-{budget}", Arm(f"--layers {layers}", budget=budget, layers=layers))
    return _enter(f"{layers}-layers-{budget}-lr-{lr:g}", Arm(f"--layers {layers} --lr {lr:g}", budget=budget))


def _in_run(
    start: int,
    stages: Sequence[tuple[int, int]],
    budget: Budget,
    operator: str = "attention",
    lr: float | None = None,
) -> str:
    """Enter an arm that grows within its run, by stages of per cent of the steps and a depth; returns its name."""
    depths = [start, *(depth for _, depth in stages)]
    entries = ", ".join(
        f"{{at: {share}%, {OPERATORS[operator]}, pairs: {(after - before) // 2}, trial: {{steps: 1, rule: always}}}}"
        for (share, after), before in zip(stages, depths, strict=False)
    )
    shares = "-".join(str(share) for share, _ in stages)
    name = f"{'-'.join(map(str, depths))}-at-{shares}-{operator}-{budget}"
    train = f"--layers {start} -o 'growth=[{entries}]'"
    if lr is None:
        return _enter(name, Arm(train, budget=budget, layers=GROWN))
    return _enter(f"{name}-lr-{lr:g}", Arm(f"{train} --lr {lr:g}", budget=budget))


BUDGETS: tuple[Budget, ...] = ("small", "medium", "large")
RATES: Mapping[int, tuple[float, ...]] = {
    1: (12e-3, 16e-3, 24e-3),
    2: (4e-3, 6e-3, 8e-3, 12e-3, 16e-3, 24e-3),
    3: (4e-3, 6e-3, 8e-3, 12e-3),
    4: (4e-3, 6e-3, 8e-3, 12e-3, 16e-3),
    **dict.fromkeys((6, 8, 12), (3e-3, 4e-3, 6e-3, 8e-3, 12e-3)),
}
SCHEDULES: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = (
    *((2, ((50, depth),)) for depth in (6, 8, 4, 12)),
    *((2, ((share, depth),)) for depth in (6, 8) for share in (70, 30)),
    *((1, ((share, depth),)) for share, depth in ((50, 5), (30, 5), (50, 3), (50, 7))),
    *((3, ((50, depth),)) for depth in (5, 7)),
    (2, ((30, 4), (60, 6))),
    (2, ((40, 4), (70, 8))),
    (1, ((20, 3), (50, 5))),
    (2, ((25, 4), (50, 6), (75, 8))),
)
# What the schedules came to; see recipes/RESULTS.md.
BEST = (2, ((50, 6),))


@dataclass(frozen=True)
class ArmSet:
    """Arms that answer one question, the first of them the baseline, and their seeds.

    Only a set that is reported, and chooses nothing, is evaluated on the test split. `beside` is a set whose runs are
    in the report too.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    test: bool = False
    beside: str | None = None


# What is tuned is tuned on another seed than the headline's.
SETS = {
    "headline": ArmSet(
        (
            *("scratch-12", "attention", "scratch-6", "zero", "attention-first", "ffn", "copy", "scratch-12-residual"),
            *("fresh", EQUAL, "reset-6", "scratch-12-wide"),
        ),
        seeds=(0, 1, 2),
        test=True,
    ),
    "defaults": ArmSet(
        (
            *("attention", "at-10", "at-50", "at-80", "moments-fresh", "moments-copy", "rate-0.5", "rate-2"),
            *("scale-0.3", "scale-0.1", "source-random", "many-late"),
        ),
        seeds=(100,),
    ),
    "rates": ArmSet(("lr-2e-3", "lr-1e-3", "lr-4e-3", "lr-8e-3"), seeds=(100,)),
    "front-rates": ArmSet(
        tuple(_scratch(depth, "small", lr) for depth in RATES for lr in RATES[depth]),
        seeds=(100,),
    ),
    "grown-rates": ArmSet(
        (
            _scratch(2, "small"),
            *(_in_run(*BEST, "small", lr=lr) for lr in (4e-3, 6e-3, 8e-3, 12e-3, 16e-3)),
            *(_in_run(*BEST, "small", "zero", lr=lr) for lr in (8e-3, 12e-3, 16e-3)),
        ),
        seeds=(100,),
        beside="front-rates",
    ),
    "front": ArmSet(tuple(_scratch(depth, budget) for budget in BUDGETS for depth in DEPTHS), seeds=(100,)),
    "schedules": ArmSet(
        (_scratch(3, "small"), *(_in_run(start, stages, "small") for start, stages in SCHEDULES)),
        seeds=(100,),
        beside="front-rates",
    ),
    "operators": ArmSet(
        (_scratch(3, "small"), *(_in_run(*BEST, "small", operator) for operator in OPERATORS)),
        seeds=(100,),
        beside="front-rates",
    ),
    "payoff": ArmSet(
        (
            _scratch(2, "small"),
            *(_in_run(*BEST, "small", operator) for operator in ("attention", "zero")),
            _scratch(4, "medium", 6e-3),
            _scratch(6, "medium"),
        ),
        seeds=(10, 11, 12, 13, 14),
        test=True,
    ),
    "payoff-large": ArmSet(
        (
            _scratch(2, "large"),
            *(_in_run(*BEST, "large", operator) for operator in ("attention", "zero", "copy")),
            *(_scratch(depth, "large") for depth in (3, 4, 6)),
        ),
        seeds=(10, 11, 12),
        test=True,
    ),
}
