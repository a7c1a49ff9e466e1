"""What a run records of its making: only what is true of this code and this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ppdgrow.provenance import commit, machine, provenance


def _git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *settings, "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a checkout of its own."""
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    _git(folder.parent, "init", "--quiet")
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_commit_is_that_of_the_checkout_and_says_when_files_differ(package: Path) -> None:
    head = _git(package, "rev-parse", "--short=12", "HEAD")
    assert commit(package) == head
    commit.cache_clear()
    (package / "__init__.py").write_text("changed = True\n")
    assert commit(package) == f"{head}-dirty"


def test_no_commit_of_a_checkout_that_only_contains_the_package(package: Path) -> None:
    installed = package.parent / ".venv" / "ppdgrow"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit(installed) is None


def test_no_commit_outside_a_checkout_or_without_git(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("")
    assert commit(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(package) is None


def test_the_command_can_be_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/ppdgrow/__main__.py", "train", "--out", "runs/a b"])
    assert provenance()["command"] == "ppdgrow train --out 'runs/a b'"


def test_machine_has_its_number_of_cores() -> None:
    assert machine().endswith("cores")
