"""CIFAR-10: the split that decides, lazy decoding, both file formats, and what is refused."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ppdgrow.config.schema import DataConfig
from ppdgrow.data import named, open_dataset
from ppdgrow.data.images import decode
from ppdgrow.errors import ConfigError, InvalidInputError

CPU = torch.device("cpu")
PARQUET = Path("cifar10") / "plain_text"


def cifar(folder: Path) -> named.Cifar10:
    dataset = open_dataset(DataConfig(name="cifar10", directory=str(folder)), "classify")
    assert isinstance(dataset, named.Cifar10)
    return dataset


def test_validation_is_the_last_5000_and_only_these_are_decoded(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (real_data / PARQUET).is_dir():
        pytest.skip(f"no CIFAR-10 in {real_data}")
    import pyarrow.parquet

    decoded = []
    monkeypatch.setattr(named, "decode", lambda image: [decoded.append(image), decode(image)][1])  # type: ignore[func-returns-value]
    dataset = cifar(real_data)
    batches = dataset.evaluation("validation", batch_size=100, num_batches=2, device=CPU)
    shard = pyarrow.parquet.read_table(real_data / PARQUET / "train-00004-of-00005.parquet").slice(5000)
    assert decoded == [image["bytes"] for image in shard.column("img").to_pylist()]
    labels = torch.tensor(shard.column("label").to_pylist())
    assert torch.equal(torch.cat([batch.targets for batch in batches]), labels[::25])
    images = torch.cat([batch.inputs for batch in batches])
    assert images.shape == (200, 3, 32, 32)
    assert float(images.mean().abs()) < 0.1
    assert abs(float(images.std()) - 1) < 0.1
    assert set(dataset.identity(200).sha256) == {"validation"}
    assert dataset.class_names is not None
    assert dataset.class_names[3] == "cat"
    assert dataset.tokenizer_json is None
    assert dataset.bytes_per_token("validation") is None
    assert dataset.input_spec(4).num_patches == 64


def test_train_and_validation_share_no_image() -> None:
    rows = [set(named.Cifar10.rows[split]) for split in ("train", "validation")]
    assert [len(part) for part in rows] == [45_000, 5_000]
    assert rows[0] | rows[1] == set(range(50_000))


def test_the_official_python_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    pixels = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    content = {"data": pixels.reshape(6, -1), "labels": [0, 1, 2, 7, 8, 9]}
    (folder / "test_batch").write_bytes(pickle.dumps(content))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(named.Cifar10.class_names)}))
    with pytest.raises(InvalidInputError, match=r"cifar-10-batches-py.*--data-dir"):
        cifar(tmp_path).images("test")  # the checksums are wrong, so nothing is unpickled
    monkeypatch.setattr(CIFAR10, "_check_integrity", lambda self: True)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: True)
    found = cifar(tmp_path).images("test")
    assert np.array_equal(found.pixels.numpy(), pixels)
    assert found.labels.tolist() == content["labels"]


def test_missing_and_damaged_files_are_named(real_data: Path, tmp_path: Path) -> None:
    (tmp_path / PARQUET).mkdir(parents=True)
    dataset = cifar(tmp_path)
    with pytest.raises(InvalidInputError, match=r"plain_text/train-\*\.parquet.* or .*cifar-10-batches-py"):
        dataset.images("validation")
    last = real_data / PARQUET / "train-00004-of-00005.parquet"
    if not last.is_file():
        pytest.skip(f"no CIFAR-10 in {real_data}")
    copy = tmp_path / PARQUET / last.name
    shutil.copy(last, copy)
    with pytest.raises(InvalidInputError, match=r"found 10000 images .*expected 50000"):
        dataset.images("validation")
    copy.chmod(0o644)
    copy.write_bytes(last.read_bytes()[:-1000])
    with pytest.raises(InvalidInputError, match=r"cannot read .*train-00004-of-00005\.parquet"):
        dataset.images("validation")


def test_patches_that_do_not_fit_are_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^model\.patch_size is 5"):
        cifar(tmp_path).input_spec(5)
