"""Augmentation: a pure function of (seed, step), of training batches only, that moves and mirrors and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from local_images import write_classes

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import Dataset, open_dataset
from ppdgrow.data.images import Augmentation
from ppdgrow.seeding import generator

CPU = torch.device("cpu")


def dataset_at(path: Path, augment: bool) -> Dataset:
    return open_dataset(DataConfig(name=str(path), augment=augment), "classify")


def test_a_batch_depends_on_seed_and_step_alone(tmp_path: Path) -> None:
    write_classes(tmp_path)
    first, second = (dataset_at(tmp_path, True).batches("train", batch_size=8, seed=5, device=CPU) for _ in range(2))
    torch.manual_seed(1)
    forward = [first.at(step).inputs for step in (1, 2, 30)]
    torch.manual_seed(2)
    backward = [second.at(step).inputs for step in (30, 2, 1)]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))
    other = dataset_at(tmp_path, True).batches("train", batch_size=8, seed=6, device=CPU).at(1).inputs
    assert not torch.equal(forward[0], other)


def test_the_same_image_looks_different_in_another_epoch_and_evaluation_never_changes(tmp_path: Path) -> None:
    write_classes(tmp_path, count=20)
    plain, augmented = dataset_at(tmp_path, False), dataset_at(tmp_path, True)

    def epochs(dataset: Dataset) -> set[bytes]:
        batches = dataset.batches("train", batch_size=32, seed=0, device=CPU)
        return {bytes(image.numpy()) for step in range(6) for image in batches.at(step).inputs}

    assert len(epochs(plain)) == 32, "control: without it an epoch shows every image as it is"
    assert len(epochs(augmented)) > 100
    seen = [d.evaluation("validation", batch_size=4, num_batches=1, device=CPU)[0] for d in (plain, augmented)]
    assert torch.equal(seen[0].inputs, seen[1].inputs)
    assert torch.equal(seen[0].targets, seen[1].targets)


@pytest.mark.parametrize("flip", [True, False])
def test_every_crop_is_a_shift_of_the_image_or_of_its_mirror(flip: bool) -> None:
    image = torch.arange(1.0, 16 * 16 + 1).reshape(1, 1, 16, 16)
    padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
    mirrored = torch.nn.functional.pad(image.flip(-1), (2, 2, 2, 2))
    places = [(top, left) for top in range(5) for left in range(5)]
    shifts = {bytes(padded[0, :, top : top + 16, left : left + 16].numpy()) for top, left in places}
    mirrors = {bytes(mirrored[0, :, top : top + 16, left : left + 16].numpy()) for top, left in places}
    many = Augmentation(flip)(image.repeat(4000, 1, 1, 1), generator("test"))
    found = [bytes(one.numpy()) for one in many]
    assert set(found) == (shifts | mirrors if flip else shifts)
    share = sum(one in mirrors for one in found) / len(found)
    assert share == pytest.approx(0.5 if flip else 0.0, abs=0.03)


def test_a_mirror_image_of_a_digit_is_none() -> None:
    pytest.importorskip("sklearn")
    augmentation = open_dataset(DataConfig(name="digits"), "classify").augmentation
    assert augmentation == Augmentation(flip=False)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_change_the_choices() -> None:
    images = torch.rand(16, 3, 32, 32)
    on_cpu = Augmentation(True)(images, generator("test"))
    on_gpu = Augmentation(True)(images.cuda(), generator("test"))
    assert torch.equal(on_cpu, on_gpu.cpu())
