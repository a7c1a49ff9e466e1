"""Growth as surgery on named tensors: what is added, from where, and that it can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdgrow.config.architecture import Architecture, TokenInput, new_architecture
from ppdgrow.config.schema import ModelConfig, TrainConfig
from ppdgrow.errors import ConfigError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import Model, build_model, tensor_shapes
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.update_rules import OPTIMIZERS, AdamW, Muon, Update, updates_of
from ppdgrow.surgery import GrowthRequest, apply_plan, plan_growth, remove_blocks, select_pair, theta_digest, untie
from ppdgrow.surgery.positions import describe_positions, resolve_positions

CPU = torch.device("cpu")
MomentsByName = dict[str, dict[str, Tensor]]


def architecture(stream: str = "coupled", layers: int = 3, **changes: object) -> Architecture:
    config = ModelConfig.model_validate({"stream": stream, "layers": layers, "width": 16, "heads": 2, **changes})
    return new_architecture(config, "lm", TokenInput(vocabulary_size=11, sequence_length=6))


def weights(arch: Architecture) -> dict[str, Tensor]:
    """Weights of a model that has trained: nothing is zero, one or small."""
    torch.manual_seed(3)
    return {name: tensor + 0.3 * torch.randn_like(tensor) for name, tensor in initial_tensors(arch, 5).items()}


def moments(tensors: dict[str, Tensor], update: type[Update] = AdamW) -> MomentsByName:
    torch.manual_seed(4)
    draw: dict[str, Callable[[Tensor], Tensor]] = {
        "momentum": torch.randn_like,
        "scale": torch.rand_like,
        "counter": lambda zero: zero + 7.0,
    }
    return {
        name: {entry: draw[update.entries[entry]](zero) for entry, zero in update.new_state(t).items()}
        for name, t in tensors.items()
    }


def logits(arch: Architecture, tensors: dict[str, Tensor]) -> Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        return build_model(arch, tensors, CPU).eval()(torch.randint(11, (4, 6)))


def grow(arch: Architecture, tensors: dict[str, Tensor], request: GrowthRequest, state: MomentsByName | None = None):  # type: ignore[no-untyped-def]
    plan = plan_growth(arch, request, step=9)
    grown, grown_state = apply_plan(plan, tensors, state or {}, policy=request.moments, seed=1)
    return plan, grown, grown_state


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("end", (6, 6, 6)),
        ("start", (0, 0, 0)),
        ("middle", (3, 3, 3)),
        ("interleave", (2, 4, 6)),
        ("1,5,0", (0, 1, 5)),
    ],
)
def test_positions(position: str, expected: tuple[int, ...]) -> None:
    assert resolve_positions(position, 6, 3) == expected


def test_a_single_insertion_goes_to_the_middle_unless_a_place_is_asked_for() -> None:
    single = {position: resolve_positions(position, 6, 1) for position in ("interleave", "middle", "end", "start", "5")}
    assert single == {"interleave": (3,), "middle": (3,), "end": (6,), "start": (0,), "5": (5,)}
    assert resolve_positions("interleave", 5, 1) == (3,)
    assert resolve_positions("interleave", 1, 1) == (1,)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((2, 4, 6), "after blocks 2, 4, 6 of 6"),
        ((3, 3), "after block 3 of 6"),
        ((0, 0), "before block 1 of 6"),
        ((0, 3, 6), "before block 1 and after blocks 3, 6 of 6"),
    ],
)
def test_places_are_told_in_words(places: tuple[int, ...], expected: str) -> None:
    assert describe_positions(places, 6) == expected


def test_interleave_with_more_pairs_than_blocks_puts_pairs_side_by_side() -> None:
    assert resolve_positions("interleave", 2, 5) == (1, 1, 2, 2, 2)


@pytest.mark.parametrize(("position", "says"), [("7,1,2", "does not exist"), ("1,2", "--pairs 2"), ("top", "unknown")])
def test_bad_positions_are_refused(position: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve_positions(position, 6, 3)


@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize("kinds", [("ffn",), ("attention",), ("attention", "ffn")])
@pytest.mark.parametrize("source", [None, "random"])
@pytest.mark.parametrize("position", ["end", "start", "interleave"])
def test_pairs_keep_the_function_to_the_bit_and_every_old_tensor(
    stream: str, kinds: tuple[str, ...], source: str | None, position: str
) -> None:
    arch = architecture(stream)
    old = weights(arch)
    request = GrowthRequest(kinds=kinds, pairs=3, source=source, position=position)  # type: ignore[arg-type]
    plan, grown, _ = grow(arch, old, request)
    assert plan.architecture.num_layers == arch.num_layers + 6
    assert {name: tuple(t.shape) for name, t in grown.items()} == tensor_shapes(plan.architecture)
    assert all(grown[name] is old[name] for name in old)
    assert torch.equal(logits(plan.architecture, grown), logits(arch, old))
    untied_arch, untied, _ = untie(plan.architecture, grown, {})
    assert torch.equal(logits(untied_arch, untied), logits(arch, old))
    assert all(block.state == "untied" for block in untied_arch.pairs)


def test_control_an_untied_pair_that_was_trained_changes_the_function() -> None:
    arch = architecture()
    plan, grown, _ = grow(arch, weights(arch), GrowthRequest())
    untied_arch, untied, _ = untie(plan.architecture, grown, {})
    untied["blocks.p1.minus.f.out.bias"] += 1e-3
    assert not torch.equal(logits(untied_arch, untied), logits(arch, weights(arch)))


def test_copies_come_from_the_nearest_preceding_branch_of_the_same_kind() -> None:
    arch = architecture()
    old = weights(arch)
    _, ffn, _ = grow(arch, old, GrowthRequest(position="2"))
    for role in ("f", "g"):
        assert torch.equal(ffn[f"blocks.p1.plus.{role}.up.weight"], old["blocks.l2.g.up.weight"])
    _, attention, _ = grow(arch, old, GrowthRequest(kinds=("attention",), position="0"))
    assert torch.equal(attention["blocks.p1.plus.f.qkv.weight"], old["blocks.l1.f.qkv.weight"])
    assert torch.equal(attention["blocks.p1.plus.g.up.weight"], old["blocks.l1.g.up.weight"])


def test_inside_an_earlier_pair_the_source_is_theta_plus() -> None:
    arch = architecture(layers=1)
    plan, grown, _ = grow(arch, weights(arch), GrowthRequest(source="random"))
    untied_arch, untied, _ = untie(plan.architecture, grown, {})
    second = plan_growth(untied_arch, GrowthRequest(position="end"), step=20)
    twice, _ = apply_plan(second, untied, {}, policy="fresh", seed=1)
    assert second.ids == ("p2",)
    for role in ("f", "g"):
        assert torch.equal(twice[f"blocks.p2.plus.{role}.up.weight"], untied[f"blocks.p1.plus.{role}.up.weight"])


def test_slices_of_a_residual_layer() -> None:
    """Width 16: half a is channels 0-7, half b 8-15; f reads b, writes a, and takes the odd inner units."""
    arch = architecture("residual")
    old = weights(arch)
    _, grown, _ = grow(arch, old, GrowthRequest(kinds=("attention",), position="2"))
    root2 = 2**0.5
    f, layer_f = "blocks.p1.plus.f.", "blocks.l2.f."
    assert torch.equal(grown[f + "qkv.weight"], old[layer_f + "qkv.weight"][1::2, 8:] * root2)
    assert torch.equal(grown[f + "qkv.bias"], old[layer_f + "qkv.bias"][1::2])
    assert torch.equal(grown[f + "out.weight"], old[layer_f + "out.weight"][:8, 1::2])
    assert torch.equal(grown[f + "norm.weight"], old[layer_f + "norm.weight"][8:])
    g, layer_g = "blocks.p1.plus.g.", "blocks.l2.g."
    assert torch.equal(grown[g + "up.weight"], old[layer_g + "up.weight"][0::2, :8] * root2)
    assert torch.equal(grown[g + "out.weight"], old[layer_g + "out.weight"][8:, 0::2])
    assert torch.equal(grown[g + "out.bias"], old[layer_g + "out.bias"][8:])


def test_scale_multiplies_the_output_projections_only() -> None:
    arch = architecture()
    old = weights(arch)
    _, grown, _ = grow(arch, old, GrowthRequest(scale=0.25, position="3"))
    assert torch.equal(grown["blocks.p1.plus.g.out.weight"], old["blocks.l3.g.out.weight"] * 0.25)
    assert torch.equal(grown["blocks.p1.plus.g.up.weight"], old["blocks.l3.g.up.weight"])


def test_stacking_copies_the_whole_stack_in_order() -> None:
    arch = architecture(layers=4)
    old = weights(arch)
    plan, grown, _ = grow(arch, old, GrowthRequest(method="copy", pairs=2, position="end"))
    assert [block.id for block in plan.architecture.blocks] == [f"l{n}" for n in range(1, 9)]
    for new, source in (("l5", "l1"), ("l6", "l2"), ("l7", "l3"), ("l8", "l4")):
        assert torch.equal(grown[f"blocks.{new}.f.out.weight"], old[f"blocks.{source}.f.out.weight"])
    assert not torch.equal(logits(plan.architecture, grown), logits(arch, old))


def test_interleaving_copies_the_layers_before_each_place() -> None:
    arch = architecture(layers=4)
    old = weights(arch)
    plan, grown, _ = grow(arch, old, GrowthRequest(method="copy", pairs=2))
    assert [block.id for block in plan.architecture.blocks] == ["l1", "l2", "l5", "l6", "l3", "l4", "l7", "l8"]
    for new, source in (("l5", "l1"), ("l6", "l2"), ("l7", "l3"), ("l8", "l4")):
        assert torch.equal(grown[f"blocks.{new}.g.up.weight"], old[f"blocks.{source}.g.up.weight"])


@pytest.mark.parametrize("stream", ["coupled", "residual"])
def test_zero_copies_keep_the_function_and_fresh_layers_do_not(stream: str) -> None:
    arch = architecture(stream)
    old = weights(arch)
    zero, zero_tensors, _ = grow(arch, old, GrowthRequest(method="zero", pairs=3))
    assert zero.architecture.num_layers == 9
    assert torch.equal(logits(zero.architecture, zero_tensors), logits(arch, old))
    fresh, fresh_tensors, _ = grow(arch, old, GrowthRequest(method="fresh", pairs=3))
    assert fresh.architecture.num_layers == 9
    assert not torch.equal(logits(fresh.architecture, fresh_tensors), logits(arch, old))


@pytest.mark.parametrize("update", [AdamW, Muon])
@pytest.mark.parametrize("policy", ["fresh", "copy_v", "copy"])
def test_moments_of_new_parameters(policy: str, update: type[Update]) -> None:
    arch = architecture("residual")
    old = weights(arch)
    state = moments(old, update)
    request = GrowthRequest(position="2", moments=policy)  # type: ignore[arg-type]
    _, _, grown_state = grow(arch, old, request, state)
    assert all(torch.equal(grown_state[n][k], state[n][k]) for n in state for k in state[n])
    new, source = "blocks.p1.plus.f.out.weight", state["blocks.l2.g.out.weight"]
    if policy == "fresh":
        assert new not in grown_state
        return
    assert grown_state[new].keys() == update.entries.keys()
    momentum = next(entry for entry, role in update.entries.items() if role == "momentum")
    first = source[momentum][:8, 1::2] if policy == "copy" else torch.zeros(8, 32)
    assert torch.equal(grown_state[new][momentum], first)
    if update is AdamW:
        assert torch.equal(grown_state[new]["exp_avg_sq"], source["exp_avg_sq"][:8, 1::2])
        assert grown_state[new]["step"] == 7.0


def test_stale_momentum_moves_both_members_alike() -> None:
    """`copy` gives the first moment in unfolded signs: one step on momentum alone leaves the function unchanged.

    The control moves the second member by the first member's momentum without the sign.
    """
    arch = architecture()
    old = weights(arch)
    plan, grown, state = grow(arch, old, GrowthRequest(moments="copy"), moments(old))
    untied_arch, untied, untied_state = untie(plan.architecture, grown, state)
    plus, minus = "blocks.p1.plus.f.out.weight", "blocks.p1.minus.f.out.weight"
    assert torch.equal(untied_state[minus]["exp_avg"], -untied_state[plus]["exp_avg"])
    assert torch.equal(untied_state[minus]["exp_avg_sq"], untied_state[plus]["exp_avg_sq"])

    def stepped(sign: float) -> dict[str, Tensor]:
        moved = dict(untied)
        for name, values in untied_state.items():
            if name.startswith("blocks.p1"):
                factor = sign if name.startswith("blocks.p1.minus") and ".out." in name else 1.0
                moved[name] = untied[name] - 0.01 * factor * values["exp_avg"]
        return moved

    assert torch.equal(logits(untied_arch, stepped(1.0)), logits(arch, old))
    assert not torch.equal(logits(untied_arch, stepped(-1.0)), logits(arch, old))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_step_on_stale_momentum_alone_leaves_the_function_unchanged(optimizer: Any, damaged: bool) -> None:
    """The optimizer itself takes it, with gradients of zero; the control is momentum of the wrong sign."""
    arch = architecture()
    old = weights(arch)
    config = TrainConfig(optimizer=optimizer, weight_decay=0.0)
    updates = updates_of(build_model(arch, old, CPU), optimizer)
    state = {name: moments({name: tensor}, updates[name])[name] for name, tensor in old.items()}
    plan, grown, grown_state = grow(arch, old, GrowthRequest(moments="copy"), state)
    untied_arch, untied, untied_state = untie(plan.architecture, grown, grown_state)
    if damaged:
        name = "blocks.p1.minus.f.out.weight"
        untied_state[name] = updates["blocks.l1.g.out.weight"].negated(untied_state[name])
    model = build_model(untied_arch, untied, CPU)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("blocks.p1"))
        parameter.grad = torch.zeros_like(parameter)
    stepper = NamedOptimizer(model, config, frozenset())
    stepper.load_moments(untied_state)
    stepper.step(torch.zeros(()))
    assert not torch.equal(model.get_parameter("blocks.p1.plus.f.out.weight"), untied["blocks.p1.plus.f.out.weight"])
    assert torch.equal(logits(untied_arch, dict(model.state_dict())), logits(arch, old)) != damaged


def test_removal_of_a_tied_pair_gives_the_parent_back() -> None:
    arch = architecture()
    old = weights(arch)
    state = moments(old)
    plan, grown, grown_state = grow(arch, old, GrowthRequest(pairs=2), state)
    back, tensors, back_state = remove_blocks(plan.architecture, frozenset(plan.ids), grown, grown_state)
    assert back == arch
    assert list(tensors) == list(old)
    assert all(torch.equal(tensors[name], old[name]) for name in old)
    assert back_state.keys() == state.keys()


def test_ids_are_never_given_twice() -> None:
    arch = architecture()
    plan = plan_growth(arch, GrowthRequest(pairs=2), step=5, used_ids=frozenset({"p1", "p4", "l9"}))
    assert plan.ids == ("p5", "p6")
    assert plan_growth(arch, GrowthRequest(method="zero"), step=5, used_ids=frozenset({"l9"})).ids == ("l10", "l11")


def test_select_pair() -> None:
    arch = architecture()
    plan = plan_growth(arch, GrowthRequest(pairs=2), step=5)
    assert select_pair(plan.architecture, "last") == "p2"
    assert select_pair(plan.architecture, "p1") == "p1"
    with pytest.raises(ConfigError, match="expected last or one of p1, p2"):
        select_pair(plan.architecture, "p9")
    with pytest.raises(ConfigError, match="no pair to remove"):
        select_pair(arch, "last")


@pytest.mark.parametrize(
    ("stream", "request_", "says"),
    [
        ("coupled", GrowthRequest(kinds=("fnn",)), "unknown pair kind"),
        ("coupled", GrowthRequest(source="slice"), "use --source copy"),
        ("residual", GrowthRequest(source="copy"), "use --source slice or random"),
        ("coupled", GrowthRequest(pairs=0), "at least 1"),
        ("coupled", GrowthRequest(kinds=("ffn", "ffn")), "set --pairs 2"),
    ],
)
def test_bad_requests_are_refused(stream: str, request_: GrowthRequest, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_growth(architecture(stream), request_, step=1)


def test_a_width_that_pairs_cannot_halve_is_refused() -> None:
    arch = architecture("residual", width=18, heads=6)
    with pytest.raises(ConfigError, match="use a multiple of 12"):
        plan_growth(arch, GrowthRequest(kinds=("attention",)), step=1)


def test_theta_digest_sees_one_bit() -> None:
    arch = architecture()
    _, grown, _ = grow(arch, weights(arch), GrowthRequest())
    before = theta_digest(grown, "p1")
    grown["blocks.p1.plus.f.up.bias"] = grown["blocks.p1.plus.f.up.bias"].clone()
    assert theta_digest(grown, "p1") == before
    grown["blocks.p1.plus.f.up.bias"][0] = torch.nextafter(
        grown["blocks.p1.plus.f.up.bias"][0], torch.tensor(torch.inf)
    )
    assert theta_digest(grown, "p1") != before


def test_state_dict_names_are_the_tensor_names() -> None:
    arch = architecture()
    plan, _, _ = grow(arch, weights(arch), GrowthRequest())
    assert set(Model(plan.architecture).state_dict()) == set(tensor_shapes(plan.architecture))
