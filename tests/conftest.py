"""Shared fixtures: one torch thread, tiny architectures, real data where it is present."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing is read from, or left in, the cache of whoever runs the tests."""
    os.environ["PPDGROW_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with wikitext-2/ and cifar10/; tests that need it skip without."""
    folder = Path(os.environ.get("PPDGROW_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
    if not (folder / "wikitext-2" / "train.txt").is_file():
        pytest.skip(f"no real data: set PPDGROW_DATA to a folder with wikitext-2/ and cifar10/ (looked in {folder})")
    return folder
