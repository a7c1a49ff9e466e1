"""What the shells are offered when TAB is pressed, in their own protocols and in a real bash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer

from ppdgrow.cli import build_app, completion
from ppdgrow.cli.app import add_command, new_app, run
from ppdgrow.config.kinds import DATA_NAMES, FAMILIES
from ppdgrow.config.requests import DTYPE_NAMES
from ppdgrow.config.schema import recipe_keys

ROOT = Path(__file__).parents[2]
NAMES = ["shallow", "my run [1]", "été", "中文", "a b$c", "x*y"]
Ask = Callable[..., list[str]]


def other(
    override: Annotated[list[str] | None, typer.Option("-o", autocompletion=completion.complete_setting)] = None,
    data: Annotated[str | None, typer.Option(autocompletion=completion.complete_data)] = None,
    only: Annotated[str | None, typer.Option(autocompletion=completion.words("all", "pairs"))] = None,
    model: Annotated[str | None, typer.Option(autocompletion=completion.words(*FAMILIES))] = None,
) -> None:
    """Do nothing."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs, with things beside them that are none."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        (tmp_path / "runs" / name / "checkpoints" / "step-00000010").mkdir(parents=True)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "recipe.yaml").touch()
    (tmp_path / ".hidden" / "checkpoints").mkdir(parents=True)
    (tmp_path / "corpus.txt").touch()
    return tmp_path


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Ask as a shell does; bash gets its words as a list, cut as it cuts them, the others a line."""

    def asked(shell: str, *words: str, app: typer.Typer | None = None) -> list[str]:
        monkeypatch.setenv("_PPDGROW_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("ppdgrow", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(("ppdgrow", *words)))
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
        capsys.readouterr()
        assert run(app or build_app()) in (0, 1)
        out, err = capsys.readouterr()
        assert err == ""
        return [line.partition("\t")[0] for line in out.splitlines() if line]

    return asked


def demo() -> typer.Typer:
    app = new_app()
    add_command(app, other, example="ppdgrow demo", name="demo")
    add_command(app, other, example="ppdgrow demo", name="demonstrate")
    return app


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("command", ["train", "probe", "grow", "compare"])
def test_runs_are_found_below_the_typed_place(ask: Ask, command: str) -> None:
    arms = ["runs"] if command == "compare" else []
    everything = ["alone", *arms, *sorted(f"runs/{name}" for name in NAMES)]
    assert ask("fish", command, "") == everything
    assert ask("fish", command, "runs/sh") == ["runs/shallow"]
    assert ask("fish", command, "./runs/sh") == ["./runs/shallow"]
    assert ask("fish", command, "al") == ["alone"]
    assert ask("fish", command, ".h") == [".hidden"]
    assert ask("fish", command, "corp") == [], "the shell completes files on its own"
    assert ask("fish", command, "runs/shallow/") == ["runs/shallow/checkpoints/step-00000010"]
    assert ask("fish", command, "runs/shallow/checkpoints/s") == ["runs/shallow/checkpoints/step-00000010"]


@pytest.mark.usefixtures("runs")
def test_a_run_is_found_among_many(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_MOST_ENTRIES", 2)
    assert [ask("fish", "probe", f"runs/{name}") for name in ("shallow", "x*y")] == [["runs/shallow"], ["runs/x*y"]]
    assert len(ask("fish", "probe", "runs/")) <= 2


def test_a_home_folder_stays_short(runs: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(runs))
    assert ask("bash", "probe", "~/runs/sh") == ["~/runs/shallow"]
    assert ask("bash", "probe", "~nobody-of-this-name/x") == []


@pytest.mark.usefixtures("runs")
def test_names_are_quoted_for_bash_alone(ask: Ask) -> None:
    assert ask("bash", "probe", "runs/m") == [r"runs/my\ run\ \[1\]"]
    assert ask("bash", "probe", r"runs/my\ r") == [r"runs/my\ run\ \[1\]"]
    assert ask("bash", "probe", "runs/é") == ["runs/été"]
    assert ask("bash", "probe", "runs/中") == ["runs/中文"]
    assert ask("bash", "probe", "'runs/a") == ["runs/a b$c"], "within quotes as it is"
    assert ask("bash", "probe", '"runs/a') == [], "within these it would be a variable"
    assert ask("fish", "probe", "runs/m") == ["runs/my run [1]"]
    assert ask("zsh", "probe", "runs/m") == ["""_arguments '*: :(("runs/my run [1]"))'"""]


def test_zsh_is_not_offered_a_name_that_its_answer_would_change(runs: Path, ask: Ask) -> None:
    (runs / "it's" / "checkpoints").mkdir(parents=True)
    assert ask("fish", "probe", "it") == ["it's"]
    assert ask("zsh", "probe", "it") == ["_files"]


@pytest.mark.skipif(os.name != "posix", reason="names of bytes")
def test_a_name_that_stdout_cannot_say_is_left_out(runs: Path) -> None:
    hostile = ["new\nline", "esc\x1b[31m", os.fsdecode(b"\xff"), "plain-é"]
    for name in hostile:
        (runs / "hostile" / name / "checkpoints").mkdir(parents=True)
    changes = {"_PPDGROW_COMPLETE": "complete_bash", "COMP_WORDS": "ppdgrow\nprobe\nhostile/", "COMP_CWORD": "2"}
    for encoding, expected in {"utf-8": "hostile/plain-é\n", "ascii": ""}.items():
        done = subprocess.run(
            [sys.executable, "-m", "ppdgrow"],
            env=os.environ | changes | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, expected, b"")


def test_a_folder_that_cannot_be_read_gives_nothing(runs: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs / "loop").symlink_to("loop")
    (runs / "gone").symlink_to("nowhere")
    assert ask("bash", "probe", "loop/") == ask("bash", "probe", "gone/") == completion.complete_run("a\0b") == []
    assert ask("bash", "probe", "al") == ["alone"]
    assert ask("bash", "probe", "x" * 5000 + "/") == []

    def refuse(folder: object) -> object:
        raise PermissionError(13, "no", str(folder))

    monkeypatch.setattr(os, "scandir", refuse)
    assert ask("bash", "probe", "al") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["pro"], ["probe"]),
        (["grow", "--pair", "at"], ["attention", "attention-first"]),
        (["grow", "--pair", "ffn,conv"], ["ffn,convolution"]),
        (["grow", "--pair", "=", "conv"], ["convolution"]),
        (["grow", "--position", ""], ["end", "start", "middle", "interleave"]),
        (["grow", "--source", "s"], ["slice"]),
        (["grow", "--method", ""], ["pair", "zero", "copy", "fresh"]),
        (["grow", "--moments", "c"], ["copy_v", "copy"]),
        (["grow", "--device", ""], ["auto", "cpu", "cuda"]),
        (["compare", "--device", "c"], ["cpu", "cuda"]),
        (["compare", "--rule", ""], ["parent", "twin"]),
        (["compare", "--on", "w"], ["wikitext2"]),
        (["compare", "--on", "wikitext2", "--on", ""], ["stdlib", "wikitext2", "cifar10", "digits"]),
        (["probe", "--precision", "b"], ["bf16"]),
        (["probe", "--dtype", "fp32,bf16_"], ["fp32,bf16_autocast"]),
        (["probe", "--dev"], ["--device"]),
        (["train", "--model", "s"], ["sequence"]),
        (["train", "--only", ""], ["all", "pairs"]),
        (["train", "--resume", "n"], ["never"]),
        (["train", "--data", "w"], ["wikitext2"]),
        (["train", "-o", "train.sched"], ["train.schedule=", "train.schedule=wsd", "train.schedule=cosine"]),
        (["probe", "--dtype", "x"], []),
    ],
)
def test_words_of_options(ask: Ask, words: list[str], expected: list[str]) -> None:
    assert ask("bash", *words) == expected
    if "=" not in words:
        assert ask("fish", *words) == expected


def test_recipe_keys_and_their_words(ask: Ask) -> None:
    app = demo()
    assert ask("fish", "demo", "-o", "", app=app) == [f"{key}=" for key in recipe_keys()]
    assert ask("fish", "demo", "-o", "train.pair", app=app) == [
        "train.pair_lr=",
        "train.pair_warmup_steps=",
        "train.pair_weight_decay=",
    ]
    assert ask("fish", "demo", "-o", "train.onl", app=app) == ["train.only=", "train.only=all", "train.only=pairs"]
    assert ask("fish", "demo", "-o", "train.decay=", app=app) == ["train.decay=true", "train.decay=false"]
    assert ask("fish", "demo", "-o", "model.task=", app=app) == [
        f"model.task={word}" for word in ("lm", "mlm", "classify", "null")
    ]
    assert ask("fish", "demo", "-o", "train.lr=", app=app) == ["train.lr=0.002"]
    assert ask("fish", "demo", "-o", "train.betas=", app=app) == ["train.betas=[0.9,0.95]"]
    assert ask("fish", "demo", "-o", "trian.lr=", app=app) == []


def test_every_recipe_key_has_completions_that_the_recipe_accepts() -> None:
    from ppdgrow.config.load import parse_override

    for key in recipe_keys():
        for text in completion.complete_setting(f"{key}="):
            assert parse_override(text)[0] == key
        assert completion.complete_setting(f"{key}=") or key == "growth"


def test_bash_gets_what_follows_its_own_cut(ask: Ask) -> None:
    app = demo()
    assert ask("bash", "demo", "-o", "train.only", "=", app=app) == ["all", "pairs"]
    assert ask("bash", "demo", "-o", "train.only", "=", "p", app=app) == ["pairs"]
    assert ask("bash", "demo", "-o", "train.lr", "=", "1", "-o", "train.only", "=", "p", app=app) == ["pairs"]
    assert ask("bash", "demo", "--data", "=", "wik", app=app) == ["wikitext2"]
    assert ask("bash", "demo", "-o", "data.tokenizer", "=", "bpe", ":", "4", app=app) == ["4096"]
    assert ask("bash", "demo", "-o", "data.tokenizer", "=", "bpe", ":", app=app) == ["4096"]
    assert ask("bash", "demo", "-o", "train.onl", app=app) == ["train.only=", "train.only=all", "train.only=pairs"]
    assert ask("bash", "demo", "-o", "train.lr", "=", "1", "--only", "", app=app) == ["all", "pairs"]


@pytest.mark.usefixtures("runs")
def test_data_is_a_name_or_a_file(ask: Ask) -> None:
    assert ask("bash", "demo", "--data", "", app=demo()) == list(DATA_NAMES)
    assert ask("bash", "demo", "--data", "c", app=demo()) == ["cifar10", "corpus.txt"]
    assert ask("bash", "demo", "--data", "corp", app=demo()) == [], "the shell completes files on its own"


def test_remove_knows_the_pairs_of_the_run(runs: Path, ask: Ask) -> None:
    events = [{"event": "grow", "ids": ["p1", "p2"]}, {"event": "remove", "ids": ["p1"]}, {"event": "x"}]
    log = runs / "alone" / "growth.jsonl"
    log.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    assert ask("bash", "grow", "alone", "--remove", "") == ["last", "p2"]
    assert ask("bash", "grow", "--remove", "") == ["last"]
    for broken in ("{", "[1]", '{"ids": 3}'):
        log.write_text(broken)
        assert ask("bash", "grow", "alone", "--remove", "") == ["last"]


def test_the_words_are_those_of_the_program() -> None:
    from ppdgrow.data.named import DATASETS
    from ppdgrow.probing.cancellation import DTYPES

    assert set(DATASETS) == set(DATA_NAMES)
    assert tuple(DTYPES) == DTYPE_NAMES


def test_completion_needs_no_torch(runs: Path) -> None:
    code = (
        "import sys\nfrom ppdgrow.cli import build_app\nfrom ppdgrow.cli.app import run\nrun(build_app())\n"
        "sys.exit(' '.join(m for m in ('torch', 'numpy', 'tokenizers', 'datasets') if m in sys.modules) or 0)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COMP_CWORD": "2", "_PPDGROW_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment | {"COMP_WORDS": "ppdgrow\nprobe\nruns/sh"},
        cwd=runs,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"runs/shallow\n", b"")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_shown_and_installed(shell: str, tmp_path: Path) -> None:
    changes = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    for flag in ("--show-completion", "--install-completion"):
        done = subprocess.run(
            [sys.executable, "-m", "ppdgrow", flag, shell],
            env=os.environ | changes,
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.isascii()
        assert b"\x1b" not in done.stdout
    assert any(f"complete_{shell}" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


@pytest.fixture
def bash(runs: Path) -> Callable[[list[str]], list[str]]:
    """The script of `--show-completion` in a real bash, for words as bash cuts them."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    program = runs / "bin" / "ppdgrow"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -P -m ppdgrow "$@"\n')
    program.chmod(0o755)

    def complete(words: list[str]) -> list[str]:
        code = (
            'eval "$(_PPDGROW_COMPLETE=source_bash ppdgrow)"\n'
            'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ppdgrow_completion ppdgrow\n'
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "--norc", "-c", code, "bash", *words],
            env=os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            timeout=60,
        )
        assert done.stderr == b""
        return [line for line in done.stdout.decode().split("\n") if line]

    return complete


def test_a_real_bash_gets_names_that_it_reads_back(bash: Callable[[list[str]], list[str]], runs: Path) -> None:
    found = bash(["ppdgrow", "probe", "runs/"])
    assert len(found) == len(NAMES)
    # What bash would put on the command line is, read by bash, an existing folder.
    code = "".join(f"[ -d {word} ] || exit 1\n" for word in found)
    assert subprocess.run(["bash", "--norc", "-c", code], cwd=runs, timeout=60).returncode == 0
    assert bash(["ppdgrow", "probe", "--device", "=", "cu"]) == ["cuda"]
