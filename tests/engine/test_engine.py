"""The training loop on a planted task: what is applied, what is not, what it reports, and where it stops."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ppdgrow.config.architecture import Architecture, BlockSpec, TokenInput, new_architecture
from ppdgrow.config.schema import ModelConfig, TrainConfig
from ppdgrow.config.state import Ledger
from ppdgrow.data import Batch
from ppdgrow.engine.evaluate import Evaluation, evaluate, mean_loss
from ppdgrow.engine.loop import FLUSH_EVERY, Engine
from ppdgrow.engine.movement_check import MovementCheck
from ppdgrow.engine.stop_flag import StopFlag
from ppdgrow.errors import CheckFailedError, ConfigError, DivergedError, InterruptedRunError, InvalidInputError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import Model, build_model
from ppdgrow.optim.optimizer import NamedOptimizer
from ppdgrow.optim.schedule import make_schedule
from ppdgrow.optim.update_rules import OPTIMIZERS
from ppdgrow.seeding import generator

CPU = torch.device("cpu")
VOCABULARY, LENGTH, BATCH = 7, 5, 4


class Counting:
    """The planted task: the next token is the last one plus one."""

    def at(self, step: int) -> Batch:
        start = torch.randint(VOCABULARY, (BATCH, 1), generator=generator("toy", step))
        tokens = (start + torch.arange(LENGTH + 1)) % VOCABULARY
        return Batch(tokens[:, :-1], tokens[:, 1:])


@dataclass
class Log:
    """A listener that remembers."""

    engine: Engine | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)

    def on_steps(self, lines: Sequence[dict[str, Any]]) -> None:
        self.metrics += lines

    def on_evaluation(self, line: dict[str, Any]) -> None:
        assert self.metrics[-1]["step"] == line["step"], "the step comes first"
        self.evaluations.append(line)

    def on_save(self) -> None:
        assert self.engine is not None
        self.saved.append(self.engine.step)


def architecture(pair: bool = False) -> Architecture:
    config = ModelConfig(layers=2, width=16, heads=2)
    arch = new_architecture(config, "lm", TokenInput(vocabulary_size=VOCABULARY, sequence_length=LENGTH))
    spec = BlockSpec(id="p1", type="pair", kind="ffn", state="untied", born=1)
    return arch.with_blocks((*arch.blocks, spec)) if pair else arch


def engine_of(model: nn.Module, steps: int = 40, device: torch.device = CPU, **changes: Any) -> tuple[Engine, Log]:
    config = TrainConfig(steps=steps, batch_size=BATCH, lr=1e-2, warmup_steps=4, eval_every=15, save_every=12)
    config = config.model_copy(update=changes)
    new = frozenset(name for name, _ in model.named_parameters() if name.startswith("blocks.p1"))
    schedule, _ = make_schedule(config, first=0, last=steps, initial=0.0)
    engine = Engine(
        model,
        NamedOptimizer(model, config, new),
        schedule,
        new_factor=lambda step: config.pair_lr,
        batches=Counting(),
        evaluation=[Counting().at(-1)],
        figures=lambda evaluation: evaluation.figures(None, tokens=True),
        config=config,
        device=device,
        precision="fp32",
        first=0,
        step=0,
        ledger=Ledger(),
        tokens_per_step=BATCH * LENGTH,
        flops_per_step=10,
        stop=StopFlag(),
    )
    log = Log(engine)
    engine.listeners = [log]
    return engine, log


def new_model(pair: bool = False, device: torch.device = CPU) -> Model:
    arch = architecture(pair)
    return build_model(arch, initial_tensors(arch, 0), device)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(x: dict[str, Tensor], y: dict[str, Tensor]) -> bool:
    return all(torch.equal(x[name], y[name]) for name in x)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_learns_and_reports_every_step_once(optimizer: str) -> None:
    engine, log = engine_of(new_model(), optimizer=optimizer)
    assert FLUSH_EVERY < 15, "the tests below poison and stop within a flush"
    engine.run(40)
    assert [line["step"] for line in log.metrics] == list(range(1, 41))
    assert log.metrics[-1]["train_loss"] < 0.5 * log.metrics[0]["train_loss"]
    assert [line["step"] for line in log.evaluations] == [15, 30, 40]
    assert log.saved == [12, 24, 36, 40]
    assert log.metrics[-1]["tokens"] == 40 * BATCH * LENGTH
    assert log.metrics[-1]["flops"] == 400
    assert all(line["lr"] > 0 for line in log.metrics)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_old_and_new_parameters_are_clipped_and_logged_apart(optimizer: str) -> None:
    model = new_model(pair=True)
    engine, log = engine_of(model, clip_norm=1e-3, optimizer=optimizer)
    engine.run(2)
    assert all("grad_norm_new" in line for line in log.metrics)
    batch = Counting().at(9)
    torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten()).backward()  # type: ignore[no-untyped-call]
    engine.optimizer.clip()
    for members in (engine.optimizer.old, engine.optimizer.new):
        norm = torch.nn.utils.get_total_norm([p.grad for p in members.values() if p.grad is not None])
        assert float(norm) == pytest.approx(1e-3, rel=1e-3)


class Masked(Counting):
    """Rows with very different numbers of targets, so that a plain mean over microbatches would be wrong."""

    def at(self, step: int) -> Batch:
        batch = super().at(step)
        taken = torch.arange(LENGTH) < torch.tensor([1, LENGTH, 2, LENGTH])[:, None]
        return Batch(batch.inputs, torch.where(taken, batch.targets, -100))


@pytest.mark.parametrize("microbatches", [2, 3, 4])
def test_a_batch_in_pieces_has_the_gradient_and_the_loss_of_the_whole(microbatches: int) -> None:
    def after(accumulate: int) -> tuple[float, dict[str, Tensor]]:
        engine, _ = engine_of(new_model().double(), accumulate=accumulate)
        loss = engine._backward(Masked().at(1), accumulate)
        return float(loss), {name: p.grad for name, p in engine.model.named_parameters() if p.grad is not None}

    loss, gradients = after(1)
    found, added = after(microbatches)
    assert found == pytest.approx(loss, rel=1e-12)
    assert all(torch.allclose(added[name], gradients[name], rtol=1e-9, atol=1e-12) for name in gradients)


def test_control_an_unweighted_mean_of_pieces_is_another_gradient() -> None:
    model = new_model().double()
    batch = Masked().at(1)
    halves = [mean_loss(model(batch.inputs[rows]), batch.targets[rows]) for rows in (slice(2), slice(2, 4))]
    whole = mean_loss(model(batch.inputs), batch.targets)
    assert float((sum(halves) / 2 - whole).detach().abs()) > 1e-6


def test_training_in_pieces_is_the_same_training_up_to_rounding() -> None:
    whole, cut = engine_of(new_model()), engine_of(new_model(), accumulate=4)
    for engine, _log in (whole, cut):
        engine.run(10)
    assert cut[1].metrics[-1]["tokens"] == whole[1].metrics[-1]["tokens"]
    for a, b in zip(whole[1].metrics, cut[1].metrics, strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)


def test_accuracy_by_class() -> None:
    zeros = torch.zeros(5, dtype=torch.float64)
    right, classes = torch.tensor([1, 0, 1, 1, 0]), torch.tensor([0, 0, 2, 2, 2])
    evaluation = Evaluation(zeros, torch.ones(5, dtype=torch.int64), right, classes)
    figures = evaluation.figures(None, tokens=False, class_names=["cat", "dog", "fox"])
    assert figures.class_accuracy == {"cat": 0.5, "fox": pytest.approx(2 / 3)}, "no dog was seen"
    assert figures.accuracy == pytest.approx(0.6)


class PoisonAt(Counting):
    """From one step on the model's outputs, and so the loss and every gradient, are NaN."""

    def __init__(self, model: nn.Module, step: int) -> None:
        self.step, self.factor = step, 1.0
        model.register_forward_hook(lambda module, args, output: output * self.factor)

    def at(self, step: int) -> Batch:
        self.factor = 1.0 if step < self.step else torch.nan
        return super().at(step)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_non_finite_loss_is_never_applied(optimizer: str) -> None:
    """Poison at step 7, flushed at step 10: weights and moments are those after step 6."""
    good, _ = engine_of(new_model(), optimizer=optimizer)
    good.run(6)
    engine, log = engine_of(new_model(), optimizer=optimizer)
    engine.batches = PoisonAt(engine.model, 7)
    with pytest.raises(DivergedError, match="diverged at step 7: the loss is nan"):
        engine.run(40)
    assert same(weights(engine.model), weights(good.model))
    found, expected = engine.optimizer.moments(), good.optimizer.moments()
    assert all(torch.equal(found[name][key], expected[name][key]) for name in expected for key in expected[name])
    assert engine.step == 6
    assert log.saved == [6]
    assert [line["step"] for line in log.metrics] == [1, 2, 3, 4, 5, 6]


def blow_up(model: Model, name: str) -> None:
    """The output of a module is infinite from now on."""
    dict(model.named_modules())[name].register_forward_hook(lambda module, args, output: output / 0.0)


@pytest.mark.parametrize("name", ["embed", "blocks.l1.f.qkv", "blocks.l2.g.up", "blocks.p1.minus.f.out", "head.norm"])
def test_the_first_place_of_a_non_finite_value_is_named(name: str) -> None:
    model = new_model(pair=True)
    blow_up(model, "head.out")  # later, and not to be named
    blow_up(model, name)
    engine, _log = engine_of(model)
    block = f"in block {name.split('.')[1]}, " if name.startswith("blocks.") else ""
    with pytest.raises(DivergedError) as info:
        engine.run(40)
    assert f"(first {block}in the output of {name})" in str(info.value)
    assert all(p.grad is None for p in model.parameters())


def test_a_non_finite_gradient_of_finite_values_is_named() -> None:
    class Poisoned(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return gradients[0] * torch.nan

    model = new_model()
    dict(model.named_modules())["blocks.l2.f.out"].register_forward_hook(
        lambda module, args, output: Poisoned.apply(output)
    )
    engine, _log = engine_of(model)
    with pytest.raises(DivergedError, match=r"gradient norm .* is nan \(first in block l2, in the gradient of") as info:
        engine.run(40)
    assert "blocks.l2.f.out" in str(info.value)


def test_weights_and_evaluations_that_are_not_finite_are_named() -> None:
    model = new_model()
    with torch.no_grad():
        model.get_parameter("blocks.l1.g.up.weight")[0, 0] = torch.nan
    engine, log = engine_of(model)
    with pytest.raises(DivergedError, match=r"first in block l1, in the weights of blocks\.l1\.g\.up\.weight"):
        engine.run(40)
    model = new_model()
    engine, log = engine_of(model, eval_every=2)

    def only_in_evaluation(module: Any, args: Any, output: Tensor) -> Tensor:
        return output if model.training else output * torch.inf

    dict(model.named_modules())["blocks.l2.g"].register_forward_hook(only_in_evaluation)
    with pytest.raises(DivergedError, match=r"validation loss at step 2 is nan \(first in block l2, in the output of"):
        engine.run(40)
    assert log.saved == [2]


class Hungry:
    """A model that needs more memory than there is for more than some examples."""

    def __init__(self, model: nn.Module, most: int) -> None:
        self.seen: list[int] = []
        self.most = most
        model.register_forward_pre_hook(self.look)

    def look(self, module: Any, args: tuple[Tensor, ...]) -> None:
        self.seen.append(len(args[0]))
        if len(args[0]) > self.most and module.training:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: 8 bytes"
            )


@pytest.mark.parametrize(("most", "microbatches"), [(3, 2), (2, 2), (1, 4)])
def test_out_of_memory_names_the_batch_and_what_was_tried_and_fits(most: int, microbatches: int) -> None:
    model = new_model()
    engine, log = engine_of(model)
    hungry = Hungry(model, most)
    with pytest.raises(
        ConfigError, match=rf"out of memory at step 1 with train\.batch_size 4, 4 .*accumulate={microbatches} "
    ):
        engine.run(40)
    assert hungry.seen[-1] <= most
    assert all(p.grad is None for p in model.parameters())
    fitting, log = engine_of(new_model(), accumulate=microbatches)
    Hungry(fitting.model, most)
    fitting.run(40)
    assert log.saved[-1] == 40


def test_out_of_memory_in_mid_course_leaves_the_last_step_saved() -> None:
    engine, log = engine_of(new_model())
    batches = engine.batches
    hungry = Hungry(engine.model, BATCH)

    class Late:
        def at(self, step: int) -> Any:
            hungry.most = BATCH if step < 8 else 0
            return batches.at(step)

    engine.batches = Late()
    with pytest.raises(ConfigError, match=r"out of memory at step 8 .*; not even one example fits"):
        engine.run(40)
    assert log.saved == [7]
    assert [line["step"] for line in log.metrics] == list(range(1, 8))


def test_control_another_error_is_not_taken_for_a_lack_of_memory() -> None:
    model = new_model()
    model.register_forward_pre_hook(lambda module, args: (_ for _ in ()).throw(RuntimeError("shapes differ")))
    engine, _log = engine_of(model)
    with pytest.raises(RuntimeError, match="shapes differ"):
        engine.run(40)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_control_without_suppression_the_weights_are_lost(optimizer: str) -> None:
    engine, _log = engine_of(new_model(), optimizer=optimizer)
    engine.batches = PoisonAt(engine.model, 7)
    apply = engine.optimizer.step
    engine.optimizer.step = lambda suppressed: apply(torch.zeros(()))  # type: ignore[method-assign]
    with pytest.raises(DivergedError):
        engine.run(40)
    assert not all(bool(tensor.isfinite().all()) for tensor in weights(engine.model).values())


def test_a_signal_stops_after_the_step_with_its_state_saved() -> None:
    engine, log = engine_of(new_model())

    class Interrupting(Counting):
        def at(self, step: int) -> Batch:
            if step == 5:
                engine.stop.handle(signal.SIGTERM, None)
            return super().at(step)

    engine.batches = Interrupting()
    with pytest.raises(InterruptedRunError, match="interrupted at step 5") as caught:
        engine.run(40)
    assert caught.value.exit_code == 143
    assert log.saved == [5]
    assert [line["step"] for line in log.metrics] == [1, 2, 3, 4, 5]


def test_a_signal_at_any_moment_saves_only_what_was_flushed() -> None:
    """The flag goes up between the update and the save: the step after is the one that stops."""
    engine, log = engine_of(new_model())
    add_seconds = engine._add_seconds

    def interrupt(started: float) -> None:
        if engine.step == 7:
            engine.stop.handle(signal.SIGTERM, None)
        add_seconds(started)

    engine._add_seconds = interrupt  # type: ignore[method-assign]
    with pytest.raises(InterruptedRunError):
        engine.run(40)
    assert log.saved == [8]
    assert [line["step"] for line in log.metrics] == list(range(1, 9))
    assert engine.ledger.tokens == 8 * BATCH * LENGTH


def test_a_signal_inside_evaluation_saves_the_step_and_the_evaluation_is_made_up_for() -> None:
    whole, whole_log = engine_of(new_model(), steps=20)
    whole.run(20)
    engine, log = engine_of(new_model(), steps=20)

    class Interrupting(list[Batch]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            engine.stop.handle(signal.SIGINT, None)
            yield Counting().at(-1)

    engine.evaluation = Interrupting()
    with pytest.raises(InterruptedRunError, match="interrupted at step 15") as caught:
        engine.run(20)
    assert caught.value.exit_code == 130
    assert log.saved == [12, 15]
    assert not log.evaluations
    engine.evaluation, engine.stop = [Counting().at(-1)], StopFlag()
    engine.run(20)

    def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in line.items() if key != "timing"} for line in lines]

    assert log.saved == [12, 15, 15, 20], "again, with the figures"
    assert untimed(log.metrics) == untimed(whole_log.metrics)
    assert untimed(log.evaluations) == untimed(whole_log.evaluations)
    assert same(weights(engine.model), weights(whole.model))


def test_a_parameter_without_gradient_fails_the_check() -> None:
    model = new_model(pair=True)
    model.register_parameter("forgotten", torch.nn.Parameter(torch.zeros(3)))
    engine, _log = engine_of(model)
    with pytest.raises(CheckFailedError, match="'forgotten' gets no gradient"):
        engine.run(5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_parameter_that_does_not_move_fails_the_check(optimizer: str) -> None:
    model = new_model()
    unused = torch.nn.Linear(3, 3, bias=False)
    torch.nn.init.zeros_(unused.weight)
    model.blocks["l2"].register_module("unused", unused)
    model.register_forward_hook(lambda module, args, output: output + 0.0 * unused.weight.sum())
    engine, _log = engine_of(model, optimizer=optimizer)
    with pytest.raises(CheckFailedError, match=r"unused\.weight' did not move"):
        engine.run(5)


def test_a_parameter_outside_the_optimizer_fails_the_check() -> None:
    model = new_model()
    optimizer = NamedOptimizer(model, TrainConfig(), frozenset())
    model.register_parameter("late", torch.nn.Parameter(torch.zeros(3)))
    with pytest.raises(CheckFailedError, match="'late' is in 0 optimizer groups"):
        MovementCheck(model, optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_pair_rate_moves_new_parameters_only(optimizer: str) -> None:
    """With pair_lr 0 the new parameters stand still while the old ones train."""
    model = new_model(pair=True)
    before = weights(model)
    engine, _log = engine_of(model, pair_lr=0.0, optimizer=optimizer)
    engine.run(3)
    for name, tensor in weights(model).items():
        assert torch.equal(tensor, before[name]) == name.startswith("blocks.p1"), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_state_goes_in_and_out_by_name(optimizer: str) -> None:
    engine, _log = engine_of(new_model(), steps=20, optimizer=optimizer)
    engine.run(20)
    other = NamedOptimizer(engine.model, engine.config, frozenset())
    other.load_moments(engine.optimizer.moments())
    found, expected = other.moments(), engine.optimizer.moments()
    assert found.keys() == expected.keys() == {name for name, _ in engine.model.named_parameters()}
    assert all(torch.equal(found[name][key], expected[name][key]) for name in expected for key in expected[name])


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq", "step"])
def test_half_an_optimizer_state_is_refused(key: str) -> None:
    engine, _ = engine_of(new_model())
    engine.run(1)
    moments = engine.optimizer.moments()
    name, state = next(iter(moments.items()))
    del state[key]
    with pytest.raises(InvalidInputError, match=f"optimizer state of {name!r} is just .*, which no optimizer keeps"):
        NamedOptimizer(engine.model, TrainConfig(), frozenset()).load_moments(moments)


def test_evaluation_is_per_example_and_leaves_the_model_in_training_mode() -> None:
    model = new_model()
    model.train()
    batches = [Counting().at(1), Counting().at(2)]
    result = evaluate(model, batches, device=CPU, precision="fp32")
    assert model.training
    assert result.losses.shape == (2 * BATCH,)
    assert result.counts.tolist() == [LENGTH] * 2 * BATCH
    with torch.no_grad():
        expected = torch.stack(
            [torch.nn.functional.cross_entropy(model(b.inputs).flatten(0, 1), b.targets.flatten()) for b in batches]
        ).mean()
    assert result.loss == pytest.approx(float(expected), rel=1e-6)
