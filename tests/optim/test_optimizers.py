"""What an optimizer offers: which parameters it takes, and their state; and `train.optimizer` from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from command_line import TINY, Command

from ppdgrow.checkpoint import RunFolder, read_checkpoint
from ppdgrow.config.architecture import BlockSpec, TokenInput, new_architecture
from ppdgrow.config.kinds import KINDS
from ppdgrow.config.schema import ModelConfig, TrainConfig
from ppdgrow.errors import InvalidInputError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import Model, build_model
from ppdgrow.optim.optimizer import NamedOptimizer, check_moments, new_moments
from ppdgrow.optim.update_rules import OPTIMIZERS, AdamW, Muon, Update, updates_of

UPDATES = dict.fromkeys(update for updates in OPTIMIZERS.values() for update in updates)
HIDDEN = ("up.weight", "qkv.weight", "gates.weight", "out.weight")


def model_of_all_kinds() -> Model:
    arch = new_architecture(
        ModelConfig(layers=1, width=16, heads=2), "lm", TokenInput(vocabulary_size=7, sequence_length=5)
    )
    pairs = (
        BlockSpec(id=f"p{number}", type="pair", kind=kind, state="untied", born=1)
        for number, kind in enumerate(KINDS, start=1)
    )
    arch = arch.with_blocks((*arch.blocks, *pairs))
    return build_model(arch, initial_tensors(arch, 0), torch.device("cpu"))


def test_the_recipe_and_the_registry_name_the_same_optimizers() -> None:
    assert tuple(OPTIMIZERS) == get_args(TrainConfig.model_fields["optimizer"].annotation)


def test_no_two_updates_keep_the_same_state() -> None:
    assert len({frozenset(update.entries) for update in UPDATES}) == len(UPDATES)


def test_muon_takes_the_matrices_within_blocks_and_nothing_else() -> None:
    model = model_of_all_kinds()
    taken = {name for name, update in updates_of(model, "muon").items() if update is Muon}
    depthwise = next(block.id for block in model.architecture.pairs if block.kind == "depthwise")
    expected = {
        name
        for name, _ in model.named_parameters()
        if name.startswith("blocks.") and name.endswith(HIDDEN) and f".{depthwise}." not in name
    }
    assert taken == expected
    assert not any(name.endswith((".original", "mix.weight", "bias")) for name in taken)
    assert set(updates_of(model, "adamw").values()) == {AdamW}


def test_every_parameter_is_in_one_group_and_decays_if_it_is_a_matrix() -> None:
    model = model_of_all_kinds()
    new = frozenset(name for name, _ in model.named_parameters() if name.startswith("blocks.p1."))
    for name in OPTIMIZERS:
        config = TrainConfig.model_validate({"optimizer": name, "lr": 1.0, "pair_weight_decay": 0.5})
        optimizer = NamedOptimizer(model, config, new)
        optimizer.check_complete(model)
        optimizer.set_rates(0.5, 3.0)
        assert optimizer.rates() == {name: 1.5 if name in new else 0.5 for name, _ in model.named_parameters()}
        for group in optimizer._groups:
            for member, parameter in zip(group["param_names"], group["params"], strict=True):
                decay = 0.5 if member in new else 0.1
                assert group["weight_decay"] == (decay if parameter.ndim >= 2 else 0.0)


@pytest.mark.parametrize("update", UPDATES)
def test_state_follows_its_parameter(update: type[Update]) -> None:
    state = {entry: zero + 2.0 for entry, zero in update.new_state(torch.zeros(4, 6)).items()}
    for entry, role in update.entries.items():
        shape, sign = ((), 1.0) if role == "counter" else ((2, 6), -1.0 if role == "momentum" else 1.0)
        for momentum in (False, True):
            copied = update.copied(state, lambda tensor: tensor[:2].clone(), momentum=momentum)
            assert copied[entry].shape == shape
            assert bool((copied[entry] == (0.0 if role == "momentum" and not momentum else 2.0)).all())
        assert bool((update.negated(state)[entry] == 2.0 * sign).all())
        assert update.negated(state)[entry] is not state[entry]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_first_update_may_be_suppressed(optimizer: str) -> None:
    """There is no state yet; the gradients are NaN, and so is what would become of the weights."""
    model = model_of_all_kinds()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = TrainConfig.model_validate({"optimizer": optimizer})
    stepper = NamedOptimizer(model, config, frozenset())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    stepper.step(torch.ones(()))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    fresh = new_moments(model, config)
    assert stepper.moments().keys() == fresh.keys()
    assert all(torch.equal(t, fresh[name][entry]) for name, s in stepper.moments().items() for entry, t in s.items())


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"exp_avg": torch.zeros(3), "step": torch.zeros(())}, "is just exp_avg, step, which no optimizer keeps"),
        ({"velocity": torch.zeros(3)}, "is just velocity, which no optimizer keeps"),
        ({"momentum_buffer": torch.zeros(4)}, r"momentum_buffer of 'x' is \(4,\), expected \(3,\)"),
    ],
)
def test_state_that_no_optimizer_keeps_is_refused(state: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        check_moments({"x": state}, {"x": torch.zeros(3)})


def kept(run: str) -> dict[str, dict[str, Any]]:
    newest = RunFolder(Path(run)).newest_valid()
    assert newest is not None
    return read_checkpoint(newest).moments


@pytest.mark.parametrize("moments", ["fresh", "copy_v", "copy"])
def test_growth_under_muon_is_the_identity_and_goes_on(ppdgrow: Command, moments: str) -> None:
    ppdgrow("train --layers 2 --steps 6 --no-decay --out s --quiet -o train.optimizer=muon", *TINY)
    grown = ppdgrow(f"grow s --pair attention,orthogonal,ffn --pairs 3 --moments {moments} --out g --json").document
    assert grown["bit_exact"] is True
    state = kept("g")
    buffer = state.get("blocks.p1.plus.f.qkv.weight", {}).get("momentum_buffer")
    assert (buffer is None, buffer is not None and bool(buffer.any())) == (moments == "fresh", moments == "copy")
    ppdgrow("train g --steps 4 --out t --quiet")
    assert "optimizer: muon" in Path("t/recipe.yaml").read_text(), "inherited"
    assert {entry for name, s in kept("t").items() if "p1" in name for entry in s} == {*AdamW.entries, *Muon.entries}
    assert ppdgrow("probe t --json").document["passed"] is True


def test_another_optimizer_starts_the_state_of_its_parameters_afresh_and_says_so(ppdgrow: Command) -> None:
    says = "start with fresh optimizer state, as another optimizer kept that of the checkpoint"
    ppdgrow("train --layers 2 --steps 6 --no-decay --out a --quiet", *TINY)
    for line in ("--dry-run", ""):
        told = ppdgrow(f"train a --steps 5 --no-decay --out m -o train.optimizer=muon {line}").stderr
        assert f"train.optimizer muon: 8 of 30 parameters {says}" in told
    state = kept("m")
    assert state["blocks.l1.g.up.weight"].keys() == Muon.entries.keys()
    assert state["embed.tokens.weight"]["step"] == 11, "its own goes on"
    told = ppdgrow("train m --steps 5 --out b -o train.optimizer=adamw").stderr
    assert f"train.optimizer adamw: 8 of 30 parameters {says}" in told
    assert (kept("b")["blocks.l1.g.up.weight"]["step"], kept("b")["embed.tokens.weight"]["step"]) == (5, 16)
    assert says not in ppdgrow("train a --steps 5 --out c").stderr
    told = ppdgrow("train a --steps 5 --out d -o train.optimizer=muon -o train.reset_optimizer=true").stderr
    assert says not in told, "all of it is fresh"
