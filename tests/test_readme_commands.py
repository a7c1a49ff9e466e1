"""The README's commands, run in order in one folder as a reader would, on tiny models; and what else it names."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from synthetic_wikitext import write_wikitext
from tiny_models import make_folder, write_byte_tokenizer

from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.config.load import Layer, resolve
from ppdgrow.config.schema import flatten
from ppdgrow.config.yaml12 import parse_yaml

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SCALE = 500  # a command's steps, divided; at least 2
TINY = {
    "model.heads": 2,
    "data.tokenizer": "byte",
    "data.sequence_length": 16,
    "train.batch_size": 4,
    "train.eval_batches": 2,
}


def shell_lines(text: str) -> list[list[str]]:
    """The words of every command in the blocks of shell, continued lines joined and comments left out."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def commands(text: str) -> list[list[str]]:
    return [words[1:] for words in shell_lines(text) if words[0] == "ppdgrow"]


def option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def scaled_down(words: list[str]) -> list[str]:
    """The same command on a tiny model for a few steps: of an option that is given twice the last one holds."""
    if words[0] != "train":
        return words
    steps = max(2, int(option(words, "--steps") or 1000) // SCALE)
    given = {value.partition("=")[0] for name, value in itertools.pairwise(words) if name == "-o"}
    more = ["--quiet", "--steps", str(steps)]
    own = ("model.heads", "data.tokenizer") if words[1].startswith("hf/") else ()  # a folder has these itself
    for key, value in TINY.items():
        more += [] if key in given or key in own else ["-o", f"{key}={value}"]
    new = words[1].startswith("-")
    return [*words, *more, *(["--width", "16"] if new else [])]


def test_every_command_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPDGROW_DATA", str(write_wikitext(tmp_path / "data")))
    write_byte_tokenizer(make_folder("llama", tmp_path / "hf/SmolLM", vocab_size=256))
    write_wikitext(tmp_path / "notes")
    ran = []
    for words in commands(README):
        line = shlex.join(["ppdgrow", *words])
        out = option(words, "--out")
        assert out is None or not Path(out).exists(), f"{line}: an earlier command of the README made {out}"
        code = run(build_app(), scaled_down(words))
        printed, told = capfd.readouterr()
        assert code in ((0, 3) if "--accept" in words else (0,)), f"{line}: exit code {code}\n{printed}\n{told}"
        if out is not None:
            assert Path(out, "config.json" if out.startswith("hf/") else "recipe.yaml").is_file(), line
            assert printed.splitlines()[-1] == out, f"{line}: the last line is the path that the next command needs"
        ran.append(words[0])
    assert set(ran) == {"train", "grow", "probe", "compare"}


def test_control_a_command_that_fails_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ((*words,),) = commands("```sh\nppdgrow grow runs/none \\\n  --pairs 3   # a comment\n```\n")
    assert words == ["grow", "runs/none", "--pairs", "3"]
    assert run(build_app(), scaled_down(words)) == 4


def test_the_other_commands_name_files_that_exist() -> None:
    others = [words for words in shell_lines(README) if words[0] in ("sh", "python")]
    assert others
    for words in others:
        assert (ROOT / words[1]).is_file(), shlex.join(words)
        if words[1] == "recipes/experiment.py":
            assert (ROOT / "recipes" / f"{words[2]}.yaml").is_file(), shlex.join(words)


def test_recipes_in_the_text_are_valid() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        resolve([Layer("README.md", flatten(parse_yaml(block, "README.md")))])


def test_extras_that_are_installed_exist() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"pip install (?:-e )?'?(?:\.|ppdgrow)\[([a-z,]+)\]", README)
    assert named
    assert {extra for names in named for extra in names.split(",")} <= known.keys()


def test_it_is_short_and_wrapped() -> None:
    lines = README.splitlines()
    assert len(lines) <= 350
    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize("term", ["theta_0", "half-steps", "arm", "twin"])
def test_a_term_is_explained_where_it_first_occurs(term: str) -> None:
    first = re.search(rf"(?<![\w-]){term}(?![\w-])", README)
    assert first is not None
    assert README[first.start() - 1] + README[first.end()] == "**", README[first.start() - 80 : first.end() + 80]


def test_the_hooks_before_a_commit_are_the_first_checks_of_the_gate() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = [hook["entry"] for hook in repository["hooks"]]
    gate = (ROOT / "tests" / "run.sh").read_text().splitlines()
    assert hooks == [line for line in gate if line.startswith(("ruff", "mypy"))]
    assert all(hook["language"] == "system" and hook["pass_filenames"] is False for hook in repository["hooks"])
