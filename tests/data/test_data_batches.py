"""Batches are a pure function of (seed, step), and an epoch shows every example once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from devices import on_each_device, waiting_is_an_error

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import NO_TARGET, Batch, Batches, open_dataset
from ppdgrow.data.batches import Examples, evaluation_batches
from ppdgrow.data.images import ImageExamples, LabelledImages
from ppdgrow.data.text import MaskedTask, TokenWindows
from ppdgrow.errors import InvalidInputError
from ppdgrow.seeding import generator

T = 7
CPU = torch.device("cpu")


def windows(num_tokens: int = 1000, masked: MaskedTask | None = None, device: torch.device = CPU) -> TokenWindows:
    """A stream in which each token is its own place."""
    return TokenWindows(torch.arange(num_tokens, dtype=torch.int32, device=device), T, masked)


def images(num: int = 60, device: torch.device = CPU) -> ImageExamples:
    pixels = torch.arange(num, dtype=torch.uint8)[:, None, None, None].expand(num, 3, 4, 4).contiguous()
    return ImageExamples(LabelledImages(pixels, torch.arange(num)).to(device), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


KINDS: dict[str, Callable[..., Examples]] = {
    "lm": windows,
    "mlm": partial(windows, masked=MaskedTask(1000, 0.15, mask_id=1000)),
    "images": images,
}


def equal(first: Batch, second: Batch) -> bool:
    return torch.equal(first.inputs, second.inputs) and torch.equal(first.targets, second.targets)


def batches(examples: Examples, seed: int = 3, batch_size: int = 10) -> Batches:
    return Batches(examples, batch_size=batch_size, seed=seed, name="some train")


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_seed_and_step_alone(kind: str) -> None:
    examples = KINDS[kind]()
    steps = [0, 1, 5, 13, 14, 15, 28, 29, 100, 1000]  # 14: across the first two epochs of text
    forwards = {step: batches(examples).at(step) for step in steps}
    one = batches(KINDS[kind]())
    backwards = {step: one.at(step) for step in reversed(steps)}
    assert all(equal(forwards[step], backwards[step]) for step in steps)
    assert all(equal(one.at(step), one.at(step)) for step in steps)
    other = batches(examples, seed=4)
    assert not any(equal(forwards[step], other.at(step)) for step in steps)
    assert not any(equal(forwards[step], forwards[0]) for step in steps[1:])


@pytest.mark.parametrize("batch_size", [1, 10, 141])
@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_an_epoch_shows_every_window_once(batch_size: int, epoch: int) -> None:
    examples = windows()
    size = examples.num_examples
    assert size == 1000 // T - 1
    source = batches(examples, batch_size=batch_size)
    steps = range(epoch * size // batch_size, (epoch + 1) * size // batch_size + 1)
    starts = torch.cat([source.at(step).inputs[:, 0] for step in steps])
    first = epoch * size - steps.start * batch_size
    seen = starts[first : first + size].sort().values
    shift = int(seen[0])
    assert 0 <= shift < T
    assert torch.equal(seen, shift + T * torch.arange(size))


def test_epochs_differ_in_order_and_shift() -> None:
    source = batches(windows(), batch_size=141)
    epochs = [source.at(epoch).inputs[:, 0] for epoch in range(20)]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 20
    assert {int(epoch.min()) for epoch in epochs} == set(range(T))


def test_targets_are_the_next_tokens() -> None:
    batch = batches(windows()).at(2)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.inputs.shape == batch.targets.shape == (10, T)
    assert torch.equal(batch.inputs + 1, batch.targets)


@pytest.mark.parametrize("num_tokens", [T + 1, 2 * T, 2 * T + 1, 3 * T - 1])
def test_the_shortest_streams_stay_inside(num_tokens: int) -> None:
    source = batches(windows(num_tokens), batch_size=1)
    targets = torch.cat([source.at(step).targets for step in range(200)])
    assert int(targets.max()) == num_tokens - 1 if num_tokens < 2 * T else int(targets.max()) < num_tokens


def test_images_come_once_an_epoch_and_normalised() -> None:
    source = batches(images(60), batch_size=20)
    epoch = [source.at(step) for step in range(3)]
    labels = torch.cat([batch.targets for batch in epoch])
    assert labels.sort().values.tolist() == list(range(60))
    batch = epoch[0]
    assert batch.inputs.dtype == torch.float32
    expected = (batch.targets[:, None] / 255 - torch.tensor([0.5, 0.4, 0.3])) / torch.tensor([0.2, 0.3, 0.4])
    torch.testing.assert_close(batch.inputs[:, :, 1, 2], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_is_fixed_however_it_is_cut(kind: str) -> None:
    wide = evaluation_batches(KINDS[kind](), batch_size=8, num_batches=4)
    narrow = evaluation_batches(KINDS[kind](), batch_size=4, num_batches=8)
    assert [len(batch.targets) for batch in wide] == [8] * 4
    for field in ("inputs", "targets"):
        assert torch.equal(*(torch.cat([getattr(batch, field) for batch in cut]) for cut in (wide, narrow)))


def test_evaluation_is_spread_over_the_split_and_takes_all_it_can() -> None:
    starts = torch.cat([batch.inputs[:, 0] for batch in evaluation_batches(windows(), batch_size=5, num_batches=2)])
    assert starts.tolist() == [index * 142 // 10 * T for index in range(10)]
    everything = evaluation_batches(windows(), batch_size=100, num_batches=5)
    assert [len(batch.inputs) for batch in everything] == [100, 42]
    targets = torch.cat([batch.targets.flatten() for batch in everything])
    assert torch.equal(targets, torch.arange(1, 995))


def test_masks_are_those_of_bert() -> None:
    masked = MaskedTask(num_tokens=1000, fraction=0.15, mask_id=1000)
    source = batches(windows(masked=masked), batch_size=100)
    unmasked = batches(windows(), batch_size=100)
    pairs = [(source.at(step), unmasked.at(step).inputs) for step in range(100)]
    inputs = torch.cat([batch.inputs for batch, _ in pairs])
    targets = torch.cat([batch.targets for batch, _ in pairs])
    tokens = torch.cat([original for _, original in pairs])
    taken = targets != NO_TARGET
    assert torch.equal(targets[taken], tokens[taken])
    assert torch.equal(inputs[~taken], tokens[~taken])
    assert bool(taken.any(dim=1).all())
    kept = (inputs == tokens)[taken].double().mean()
    hidden = (inputs == masked.num_tokens)[taken].double().mean()
    assert abs(float(hidden) - 0.8) < 0.02
    assert abs(float(kept) - 0.1) < 0.02
    assert int(inputs.max()) == masked.num_tokens


@pytest.mark.parametrize("fraction", [0.01, 0.5, 1.0])
def test_the_fraction_of_masked_tokens(fraction: float) -> None:
    selected, replacements = MaskedTask(10, fraction, mask_id=10).draw((200, 512), generator("a test"))
    assert abs(float(selected.double().mean()) - fraction) < 0.01
    assert bool(selected.any(dim=1).all())
    assert not bool((replacements >= 0)[~selected].any())


def test_less_than_one_batch_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"some train: found 141 windows of 8 tokens, expected .* 142.*lower"):
        batches(windows(), batch_size=142)


def test_less_than_one_sequence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "valid.txt").write_text("short\n")
    config = DataConfig(name="wikitext2", tokenizer="byte", directory=str(tmp_path), sequence_length=6)
    dataset = open_dataset(config, "lm")
    with pytest.raises(InvalidInputError, match=r"found 6 tokens, expected at least 7 .*data\.sequence_length"):
        dataset.evaluation("validation", batch_size=1, num_batches=1, device=CPU)


def test_streams_of_random_numbers_have_names() -> None:
    def first(*labels: int | str) -> int:
        return int(torch.randint(2**62, (), generator=generator(*labels)))

    assert first(1, "batch", 2) == first(1, "batch", 2)
    others: list[tuple[int | str, ...]] = [
        (1, "batch", 3),
        (2, "batch", 2),
        ("1", "batch", 2),
        (1, "batch2"),
        (1, "bat", "ch", 2),
    ]
    assert len({first(1, "batch", 2), *(first(*labels) for labels in others)}) == 6


@on_each_device
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_sees_the_same_batches_without_synchronising(kind: str, device: torch.device) -> None:
    source = batches(KINDS[kind](device=device))
    source.at(0)
    with waiting_is_an_error(device):
        found = [source.at(step) for step in range(20)]
    for step, batch in enumerate(found):
        here = batches(KINDS[kind]()).at(step)
        assert torch.equal(batch.targets.cpu(), here.targets)
        torch.testing.assert_close(batch.inputs.cpu(), here.inputs)
