"""Probe on every family, stream and kind of pair, in memory: what is reported, judged and named."""

from __future__ import annotations

import json

import pytest
import torch

from ppdgrow.config.architecture import Architecture, ImageInput, InputSpec, TokenInput, VectorInput, new_architecture
from ppdgrow.config.kinds import FAMILIES, KINDS, Task
from ppdgrow.config.schema import ModelConfig, Recipe
from ppdgrow.data.batches import Batch
from ppdgrow.nn.cost import half_steps
from ppdgrow.nn.coupling import Coupling
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.linear import LinearPair
from ppdgrow.nn.model import Model, build_model
from ppdgrow.probing.probe import probe_model
from ppdgrow.probing.report import IDLE_ACTIVITY, ProbeReport, block_rows, pair_rows
from ppdgrow.surgery import GrowthRequest, apply_plan, plan_growth, theta_digest, untie
from ppdgrow.training.context import Setting

CPU = torch.device("cpu")
SETTING = Setting(CPU, "fp32", None, Recipe())  # type: ignore[arg-type]
TOKENS = TokenInput(vocabulary_size=11, sequence_length=9)
IMAGES = ImageInput(channels=3, height=8, width=8, patch_size=4, num_classes=5)
VECTORS = VectorInput(features=10, num_classes=5)
CASES: list[tuple[str, Task, InputSpec]] = [
    ("transformer", "lm", TOKENS),
    ("transformer", "mlm", TOKENS),
    ("transformer", "classify", IMAGES),
    ("mlp", "classify", IMAGES),
    ("mlp", "classify", VECTORS),
    ("sequence", "lm", TOKENS),
]


def grown(family: str, stream: str, task: Task, spec: InputSpec, *, tied: bool, kinds: tuple[str, ...] = ()) -> Model:
    """A model with a pair of every kind that fits it, its weights anything but small."""
    config = ModelConfig.model_validate({"family": family, "stream": stream, "layers": 2, "width": 16, "heads": 2})
    architecture = new_architecture(config, task, spec)
    kinds = kinds or FAMILIES[family].pairs
    plan = plan_growth(architecture, GrowthRequest(kinds=kinds, pairs=len(kinds)), step=1)
    tensors, _ = apply_plan(plan, initial_tensors(architecture, 3), {}, policy="fresh", seed=1)
    architecture = plan.architecture
    torch.manual_seed(5)
    tensors = {name: tensor + 0.2 * torch.randn_like(tensor) for name, tensor in tensors.items()}
    if not tied:
        architecture, tensors, _ = untie(architecture, tensors, {})
        tensors = {
            name: tensor + 0.2 * torch.randn_like(tensor) if ".minus." in name else tensor
            for name, tensor in tensors.items()
        }
    return build_model(architecture, tensors, CPU)


def batch(architecture: Architecture) -> Batch:
    torch.manual_seed(0)
    spec = architecture.input
    if isinstance(spec, TokenInput):
        ids = torch.randint(spec.vocabulary_size, (3, spec.sequence_length))
        return Batch(ids, ids.roll(1, 1))
    shape = (spec.features,) if isinstance(spec, VectorInput) else (spec.channels, spec.height, spec.width)
    return Batch(torch.randn(3, *shape), torch.tensor([0, 1, 2]))


def probed(model: Model, **options: object) -> ProbeReport:
    return probe_model(model, SETTING, [batch(model.architecture)], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize(("family", "task", "spec"), CASES, ids=lambda value: getattr(value, "kind", value))
def test_every_kind_passes_in_every_family_and_stream(
    family: str, task: Task, spec: InputSpec, stream: str, tied: bool
) -> None:
    model = grown(family, stream, task, spec, tied=tied)
    architecture = model.architecture
    report = probed(model)
    assert report.failures == ()
    document = json.loads(json.dumps(report.document(), allow_nan=False))
    assert [pair["kind"] for pair in document["pairs"]] == [block.kind for block in architecture.pairs]
    for pair in document["pairs"]:
        rotates = not KINDS[pair["kind"]].additive
        judged = {"fp64", "fp32"} if rotates else {"fp64", "fp32", "bf16"}
        assert pair["bound"].keys() == pair["round_trips"].keys() == judged
        assert (pair["orthogonality"] is not None) == rotates
        assert pair["idle"] is False
        if tied:
            assert set(pair["round_trips"].values()) == {0}
            assert {figure["max_abs"] for figure in pair["cancellation"].values()} == {0}
        else:
            assert all(figure < pair["bound"][name] / 2 for name, figure in pair["round_trips"].items()), pair
    assert [block["parameters"] for block in document["blocks"]] == [
        sum(parameter.numel() for parameter in model.blocks[block.id].parameters()) for block in architecture.blocks
    ]
    assert sum(block["half_steps"] for block in document["blocks"]) == half_steps(architecture)
    layers = [block for block in document["blocks"] if block["kind"] == "layer"]
    assert all((block["round_trip"] is None) == (stream == "residual") for block in layers)
    assert all(block["activity"] > 0 for block in layers)
    widths = {len(row) for row in pair_rows(report)}
    assert len(widths) == 1
    assert len(block_rows(report)) == len(architecture.blocks) + 2


def test_the_keys_of_the_json_are_those_that_were_promised() -> None:
    document = probed(grown("transformer", "coupled", "lm", TOKENS, tied=True)).document()
    assert document.keys() >= {"schema", "passed", "failures", "loss", "pairs", "blocks"}
    assert document["pairs"][0].keys() >= {
        "id", "kind", "tied", "cancellation", "gradient_antisymmetry", "separation", "activity", "ablation_loss",
        "round_trip", "gradient_norm", "orthogonality", "idle", "theta_0", "bound", "ratio",
    }  # fmt: skip
    assert document["blocks"][0].keys() >= {
        "id", "kind", "round_trip", "round_trip_fp64", "gradient_norm", "parameters", "half_steps", "bound", "ratio",
    }  # fmt: skip
    assert isinstance(document["pairs"][0]["round_trip"], float)


def test_control_a_layer_with_a_wrong_inverse_fails_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = grown("transformer", "coupled", "lm", TOKENS, tied=False, kinds=("ffn",))
    monkeypatch.setattr(Coupling, "inverse", lambda self, halves: halves)
    failures = probed(model).failures
    assert len(failures) == 2
    assert all(
        f"the inverse of {name} misses its input" in text for name, text in zip(("l1", "l2"), failures, strict=True)
    )
    assert "in fp64" in failures[0]
    assert "in fp32" in failures[0]


def test_control_a_rotation_that_is_none_fails_and_names_the_pair() -> None:
    model = grown("transformer", "coupled", "lm", TOKENS, tied=False, kinds=("orthogonal",))
    pair = model.blocks["p1"]
    assert isinstance(pair, LinearPair)
    torch.nn.utils.parametrize.remove_parametrizations(pair.minus.get_submodule("map"), "weight")  # type: ignore[union-attr]
    with torch.no_grad():
        pair.minus.map.weight.mul_(1.001)  # type: ignore[union-attr, operator]
    assert any("pair p1 has a member that is not orthogonal" in text for text in probed(model).failures)


@pytest.mark.parametrize(("move", "idle"), [(1e-5, True), (0.3, False)])
def test_an_untied_pair_that_does_next_to_nothing_is_named_idle_and_fails_nothing(move: float, idle: bool) -> None:
    model = grown("transformer", "coupled", "lm", TOKENS, tied=True, kinds=("ffn", "linear"))
    assert not any(pair.idle for pair in probed(model).pairs), "a tied pair is meant to do nothing"
    architecture, tensors, _ = untie(model.architecture, model.state_dict(), {})
    torch.manual_seed(2)
    moved = {n: t + move * torch.randn_like(t) if ".minus." in n else t for n, t in tensors.items()}
    report = probed(build_model(architecture, moved, CPU))
    assert report.passed
    assert [pair.idle for pair in report.pairs] == [idle] * 2
    assert all((pair.activity < IDLE_ACTIVITY) == idle for pair in report.pairs)
    assert any(note.startswith("idle: p1, p2") for note in report.notes) == idle


def test_theta_0_is_held_against_the_record() -> None:
    model = grown("transformer", "coupled", "lm", TOKENS, tied=True, kinds=("ffn", "orthogonal"))
    recorded = {name: theta_digest(model.state_dict(), name) for name in ("p1", "p2")}
    report = probed(model, recorded=recorded)
    assert report.passed
    assert [pair.theta_0 for pair in report.pairs] == ["as recorded"] * 2
    assert [pair.theta_0 for pair in probed(model).pairs] == [None] * 2
    foreign = probed(model, recorded={"p2": recorded["p2"]})
    assert foreign.passed
    assert any("no sha256 of theta_0 for p1" in note for note in foreign.notes)
    with torch.no_grad():
        next(model.blocks["p2"].parameters())[0, 0] += 1e-6
    report = probed(model, recorded=recorded)
    assert [pair.theta_0 for pair in report.pairs] == ["as recorded", "changed"]
    assert [text.split(" is ")[0] for text in report.failures] == ["pair p2"]


def test_bf16_is_shown_only_where_it_is_asked_for() -> None:
    model = grown("transformer", "coupled", "lm", TOKENS, tied=False, kinds=("ffn",))
    trip = probed(model, dtypes=("fp16",)).blocks[0].round_trip
    assert trip is not None
    assert trip.bound.keys() == {"fp64", "fp32"}
