"""Growth upon growth: several kinds in one model, before and after training, side by side, tied or not; removal."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from grown_models import CASES, CPU, Case, every_case, gradients, grow, inputs, logits, trained, weights
from torch import Tensor

from ppdgrow.config.architecture import Architecture
from ppdgrow.config.kinds import FAMILIES, KINDS
from ppdgrow.errors import ConfigError
from ppdgrow.nn.model import build_model
from ppdgrow.surgery import GrowthRequest, plan_growth, remove_blocks, theta_digest, untie

TRANSFORMER = next(case for case in CASES if case.family == "transformer" and case.task == "lm")
SEQUENCES = [case for case in CASES if case.family == "sequence"]
NOT_FITTING = [(case, kind) for case in CASES for kind in KINDS if kind not in FAMILIES[case.family].pairs]


def kinds_of(case: Case) -> tuple[str, ...]:
    return FAMILIES[case.family].pairs


def train(architecture: Architecture, tensors: dict[str, Tensor], steps: int = 3) -> dict[str, Tensor]:
    """A few real AdamW steps."""
    network = build_model(architecture, tensors, CPU)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    batch = inputs(architecture)
    for _ in range(steps):
        found = network(batch)
        optimizer.zero_grad()
        F.cross_entropy(found.flatten(0, -2), torch.zeros(found.shape[:-1], dtype=torch.long).flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("position", ["start", "interleave"])
@every_case
def test_every_kind_in_one_model_one_growth_after_another_trained_in_between(case: Case, position: str) -> None:
    """Each growth keeps the function to the last bit, whatever stands in the model already."""
    architecture = case.architecture()
    tensors = weights(architecture)
    for number, kind in enumerate(kinds_of(case)):
        before = logits(architecture, tensors)
        plan, grown = grow(architecture, tensors, GrowthRequest(kinds=(kind,), position=position), step=10 * number + 1)
        assert plan.ids == (f"p{number + 1}",)
        assert all(grown[name] is tensors[name] for name in tensors)
        assert torch.equal(logits(plan.architecture, grown), before)
        architecture, untied, _ = untie(plan.architecture, grown, {})
        assert torch.equal(logits(architecture, untied), before)
        tensors = train(architecture, untied)
        assert all(not torch.equal(tensors[name], untied[name]) for name in tensors if ".plus." in name)
    assert architecture.num_layers == 2 + 2 * len(kinds_of(case))


@every_case
def test_all_kinds_side_by_side_in_one_growth(case: Case) -> None:
    """A list of kinds, all pairs at one place; also in bf16 under autocast, and gradients of old parameters."""
    architecture = case.architecture()
    old = weights(architecture)
    kinds = kinds_of(case)
    plan, grown = grow(architecture, old, GrowthRequest(kinds=kinds, pairs=len(kinds) + 1, position="middle"))
    assert [block.type for block in plan.architecture.blocks] == ["layer", *["pair"] * (len(kinds) + 1), "layer"]
    assert plan.kinds == (*plan.kinds[:-1], plan.kinds[-2]), "the last kind of a list repeats"
    for mode in ("fp64", "fp32", "bf16_autocast"):
        assert torch.equal(logits(plan.architecture, grown, mode), logits(architecture, old, mode))
    untied_architecture, untied, _ = untie(plan.architecture, grown, {})
    expected, found = gradients(architecture, old), gradients(untied_architecture, untied)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@every_case
def test_a_still_tied_model_grows_again_and_gives_every_ancestor_back(case: Case) -> None:
    """Tied upon tied: removal in any order leaves, byte for byte, what was there without the pair."""
    architecture = case.architecture()
    old = weights(architecture)
    kinds = kinds_of(case)
    current, tensors = architecture, old
    for number, kind in enumerate(kinds[:3]):
        plan, tensors = grow(current, tensors, GrowthRequest(kinds=(kind,), position="1"), step=number + 1)
        current = plan.architecture
    assert [pair.state for pair in current.pairs] == ["tied"] * 3
    assert torch.equal(logits(current, tensors), logits(architecture, old))
    digests = {pair.id: theta_digest(tensors, pair.id) for pair in current.pairs}
    for order in itertools.permutations(pair.id for pair in current.pairs):
        less, left = current, dict(tensors)
        for pair_id in order:
            less, left, _ = remove_blocks(less, frozenset({pair_id}), left, {})
            assert all(theta_digest(left, pair.id) == digests[pair.id] for pair in less.pairs)
        assert less == architecture
        assert list(left) == list(old)
        assert all(left[name] is old[name] for name in old)


@every_case
def test_removal_of_a_tied_pair_from_a_trained_model_takes_nothing_else_along(case: Case) -> None:
    """An earlier pair has trained: the later, tied one goes again, or the earlier one goes and the tied one stays."""
    kind, other = kinds_of(case)[0], kinds_of(case)[1]
    architecture = case.architecture()
    plan, tensors = grow(architecture, weights(architecture), GrowthRequest(kinds=(kind,)), step=1)
    first, untied, _ = untie(plan.architecture, tensors, {})
    untied = trained(untied, seed=4)
    plan, grown = grow(first, untied, GrowthRequest(kinds=(other,)), step=2)
    assert plan.ids == ("p2",)
    assert torch.equal(logits(plan.architecture, grown), logits(first, untied))
    back, left, _ = remove_blocks(plan.architecture, frozenset({"p2"}), grown, {})
    assert back == first
    assert all(left[name] is untied[name] for name in untied)
    without, left, _ = remove_blocks(plan.architecture, frozenset({"p1"}), grown, {})
    assert [(pair.id, pair.state) for pair in without.pairs] == [("p2", "tied")]
    assert not torch.equal(logits(without, left), logits(plan.architecture, grown)), "a trained pair does something"


@every_case
def test_a_pair_of_a_kind_that_is_there_copies_theta_plus(case: Case) -> None:
    """The nearest branch of its kind, here always the earlier pair's first member."""
    for kind in kinds_of(case):
        architecture = case.architecture()
        plan, tensors = grow(
            architecture, weights(architecture), GrowthRequest(kinds=(kind,), source="random", position="2")
        )
        current, untied, _ = untie(plan.architecture, tensors, {})
        untied = trained(untied, seed=4)
        _, twice = grow(current, untied, GrowthRequest(kinds=(kind,), position="3"))
        copied = [name for name in twice if name.startswith("blocks.p2.plus.")]
        assert copied
        assert all(torch.equal(twice[name], untied[name.replace(".p2.", ".p1.")]) for name in copied)


@every_case
def test_every_method_on_a_model_that_has_pairs(case: Case) -> None:
    """The rivals copy layers and leave the pairs alone."""
    kinds = kinds_of(case)
    architecture = case.architecture()
    plan, tensors = grow(architecture, weights(architecture), GrowthRequest(kinds=kinds, pairs=len(kinds)))
    current, untied, _ = untie(plan.architecture, tensors, {})
    untied = trained(untied, seed=4)
    for method in ("pair", "zero", "copy", "fresh"):
        plan, grown = grow(current, untied, GrowthRequest(method=method, pairs=2))
        assert plan.architecture.num_layers == current.num_layers + 4
        same = torch.equal(logits(plan.architecture, grown), logits(current, untied))
        assert same == (method in ("pair", "zero"))


@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize("task", ["lm", "mlm", "classify"])
def test_attention_first_is_attention_once_and_ffn_from_then_on(stream: str, task: str) -> None:
    case = next(c for c in CASES if (c.family, c.stream, c.task) == ("transformer", stream, task))
    architecture = case.architecture()
    request = GrowthRequest(kinds=("attention-first",), pairs=3)
    plan, tensors = grow(architecture, weights(architecture), request)
    assert plan.kinds == ("attention", "ffn", "ffn")
    again = plan_growth(plan.architecture, request, step=20)
    assert again.kinds == ("ffn", "ffn", "ffn")
    less, _, _ = remove_blocks(plan.architecture, frozenset({plan.ids[0]}), tensors, {})
    assert plan_growth(less, request, step=20).kinds == ("attention", "ffn", "ffn")


def test_attention_first_in_a_list_counts_what_stands_before_it() -> None:
    architecture = TRANSFORMER.architecture()
    for kinds, expected in (
        (("attention", "attention-first"), ("attention", "ffn", "ffn")),
        (("ffn", "attention-first"), ("ffn", "attention", "ffn")),
        (("depthwise", "linear", "attention-first"), ("depthwise", "linear", "attention")),
    ):
        assert plan_growth(architecture, GrowthRequest(kinds=kinds, pairs=3), step=1).kinds == expected


@pytest.mark.parametrize("case", SEQUENCES, ids=str)
def test_recurrent_is_the_mixer_of_a_sequence_model(case: Case) -> None:
    architecture = case.architecture()
    plan, tensors = grow(architecture, weights(architecture), GrowthRequest(kinds=("recurrent",), position="1"))
    assert plan.kinds == (case.layer,)
    mixer = {"recurrent": "gates.weight", "convolution": "mix.weight"}[case.layer]
    source, new = weights(architecture)[f"blocks.l1.f.{mixer}"], tensors[f"blocks.p1.plus.f.{mixer}"]
    if case.stream == "coupled":
        assert torch.equal(new, source)
    elif case.layer == "recurrent":
        assert torch.equal(new, source[1::2, 8:] * 2**0.5)
    else:
        assert torch.equal(new, source[1::2])


@pytest.mark.parametrize(("case", "kind"), NOT_FITTING, ids=str)
def test_a_kind_that_does_not_fit_is_refused_with_those_that_do(case: Case, kind: str) -> None:
    fitting = ", ".join(FAMILIES[case.family].pairs)
    with pytest.raises(ConfigError, match=f"{kind!r} does not fit the family {case.family!r}: .*{fitting}"):
        plan_growth(case.architecture(), GrowthRequest(kinds=(kind,)), step=1)


@every_case
def test_an_unknown_kind_is_refused_with_those_that_fit(case: Case) -> None:
    with pytest.raises(ConfigError, match=f"unknown pair kind 'fnn': .*{', '.join(kinds_of(case))}"):
        plan_growth(case.architecture(), GrowthRequest(kinds=("fnn",)), step=1)


@every_case
def test_a_kind_without_a_counterpart_is_drawn_and_said_so(case: Case) -> None:
    for kind in kinds_of(case):
        plan = plan_growth(case.architecture(), GrowthRequest(kinds=(kind,)), step=1)
        drawn = any(origin.how == "random" for origin in plan.origins)
        assert drawn == any("drawn at random" in note for note in plan.notes)
        if not KINDS[kind].additive or kind == "depthwise":
            assert drawn
