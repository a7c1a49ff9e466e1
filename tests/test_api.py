"""The Python interface: the commands' documents, the README's own loop on a grown model, and a light import."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import ppdgrow
from ppdgrow import api, cli
from ppdgrow.cli import build_app
from ppdgrow.cli.app import run
from ppdgrow.config.requests import TrainRequest
from ppdgrow.console import Narrator
from ppdgrow.data.batches import Batch, Batches
from ppdgrow.growth.train import train as run_train
from ppdgrow.nn.coupling import Pair
from ppdgrow.probing.cancellation import separation
from ppdgrow.training.context import Parent, load_parent

ROOT = Path(__file__).parent.parent
TINY = {
    "model.layers": 2,
    "model.width": 16,
    "model.heads": 2,
    "data.sequence_length": 16,
    "train.steps": 4,
    "train.batch_size": 4,
    "train.eval_batches": 2,
    "train.eval_every": 2,
    "train.save_every": 2,
    "train.decay": False,
}
NESTED = {"model": {"layers": 2, "width": 16, "heads": 2}, "data": {"sequence_length": 16}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(folder: Path) -> str:
    """A trained, undecayed two-layer model, and a grown one beside it."""
    ppdgrow.train(values=TINY, out="small", quiet=True)
    ppdgrow.grow("small", pair="attention", pairs=2, out="grown", quiet=True)
    return "small"


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_ppdgrow_imports_no_torch() -> None:
    heavy = ("torch", "numpy", "pydantic", "typer", "rich")
    look = f"print([m for m in {heavy!r} if m in sys.modules])"
    assert printed(f"import sys, ppdgrow; dir(ppdgrow); {look}") == "[]"
    assert "torch" in printed(f"import sys, ppdgrow; ppdgrow.load; {look}"), "control: the look sees torch"


def test_every_name_is_there_and_no_other() -> None:
    assert set(ppdgrow.__all__) <= set(dir(ppdgrow))
    for name in ppdgrow.__all__:
        assert getattr(ppdgrow, name) is not None
    assert ppdgrow.train is api.train
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = ppdgrow.trian


def example() -> str:
    """The program in the README's section."""
    section = re.search(r"^## From Python\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None, "README.md has no section 'From Python'"
    (block,) = re.findall(r"^```python\n(.*?)^```", section[1], re.MULTILINE | re.DOTALL)
    return block


def executed(program: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), namespace)
    return namespace


def logits(model: Any, data: torch.Tensor, **options: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.run(data[None, :32], **options)


def test_the_loop_of_the_readme_trains_both_members_of_each_pair(folder: Path) -> None:
    after = executed(example())
    model, losses, data = after["model"], after["losses"], after["data"]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    pairs = {name: block for name, block in model.named_blocks() if isinstance(block, Pair)}
    assert set(pairs) == model.architecture.newest_ids == {"p1", "p2"}
    start = ppdgrow.load("runs/small-grown").state_dict()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, start[name]), f"{name} moved"
    assert all(separation(pair) > 1e-3 for pair in pairs.values())
    assert not torch.equal(logits(model, data), logits(model, data, skip=frozenset(pairs))), "the pairs do something"

    # Negative control: the same loop on pairs that stay tied.
    load = 'ppdgrow.load("runs/small-grown")'
    assert example().count(load) == 1
    model = executed(example().replace(load, f"{load[:-1]}, untie=False)"))["model"]
    assert all(separation(pair) == 0 for pair in dict(model.named_blocks()).values() if isinstance(pair, Pair))
    assert torch.equal(logits(model, data), logits(model, data, skip=frozenset(pairs))), "tied pairs stay the identity"


def test_documents_are_those_of_the_commands(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def command(*line: str) -> dict[str, Any]:
        capfd.readouterr()
        assert run(build_app(), [*line, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    options = [word for key, value in TINY.items() for word in ("-o", f"{key}={str(value).lower()}")]
    trained = ppdgrow.train(recipe=NESTED, values=TINY, out="small")
    assert command("train", *options, "--out", "small") == trained, "the same run, so not run again"
    grown = ppdgrow.grow("small", pair=["attention", "ffn"], position=[1, 2], scale=1, out="grown")
    assert command("grow", "small", "--pair", "attention,ffn", "--position", "1,2", "--out", "grown") == grown
    assert grown["bit_exact"] is True
    assert len(grown["pairs"]) == 2
    removed = ppdgrow.grow("grown", remove="last", evaluate=False, out="less")
    assert command("grow", "grown", "--remove", "last", "--no-eval", "--out", "less") == removed
    probed = ppdgrow.probe("grown", dtypes=["fp32"])
    assert command("probe", "grown", "--dtype", "fp32") == probed
    assert probed["passed"] is True
    ppdgrow.train("grown", values={"train.steps": 4}, out="on", device="cpu")
    compared = ppdgrow.compare("small", Path("on"))
    assert command("compare", "small", "on") == json.loads(json.dumps(compared))
    assert capfd.readouterr().out == "", "functions print nothing on stdout"


def test_a_dry_run_writes_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    document = ppdgrow.train(recipe=NESTED, out="run", dry_run=True)
    assert capfd.readouterr().out == ""
    assert document["run"] == "run"
    assert "checkpoint" not in document
    assert list(folder.iterdir()) == []


def test_a_rejection_raises_nothing(small: str) -> None:
    ppdgrow.train("grown", values={"train.steps": 2}, out="trial", quiet=True)
    assert ppdgrow.compare(small, "trial", accept=True, epsilon=-100.0, quiet=True)["verdict"] == "reject"
    assert ppdgrow.compare(small, "trial", accept=True, epsilon=100.0, quiet=True)["verdict"] == "accept"


def test_quiet_is_quiet(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ppdgrow.train(values=TINY, out="quiet", quiet=True)
    assert capfd.readouterr() == ("", "")
    ppdgrow.train(values=TINY, out="loud")
    out, err = capfd.readouterr()
    assert out == ""
    assert "val loss" in err


def test_values_lie_over_the_recipe_file_and_that_over_the_defaults(folder: Path) -> None:
    (folder / "tiny.yaml").write_text("model: {layers: 1, width: 16, heads: 2}\ntrain: {lr: 1e-3, batch_size: 4}\n")
    values = {key: value for key, value in TINY.items() if not key.startswith("model.") and "batch" not in key}
    ppdgrow.train(recipe="tiny.yaml", values=values | {"train.lr": 3e-4, "train.betas": (0.8, 0.9)}, out="run")
    recorded = (folder / "run" / "recipe.yaml").read_text()
    for line in ("layers: 1 .*# recipe tiny.yaml", "lr: 0.0003 .*# values", "betas: .0.8, 0.9. .*# values"):
        assert re.search(line, recorded)
    assert re.search(r"weight_decay: 0.1 .*# default", recorded)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ppdgrow.train(values={"trian.lr": 3e-4}), "did you mean 'train.lr'"),
        (lambda: ppdgrow.train(values={"train.lr": "3e-4"}), "found '3e-4'.*from values"),
        (lambda: ppdgrow.train(recipe={"train": {"steps": 1.5}}), "found 1.5.*from recipe"),
        (lambda: ppdgrow.train(recipe={"train": 5}), "section of the recipe"),
        (lambda: ppdgrow.train(recipe="missing.yaml"), "does not exist"),
        (lambda: ppdgrow.train(device="gpu"), "device is 'gpu', expected one of auto, cpu, cuda"),
        (lambda: ppdgrow.train(resume="maybe"), "resume is 'maybe'"),
        (lambda: ppdgrow.train(values=TINY, out=""), "out is '', expected the path"),
        (lambda: ppdgrow.grow("small", method="zeros"), "method: found 'zeros', expected"),
        (lambda: ppdgrow.grow("small", moments="all"), "moments: found 'all', expected"),
        (lambda: ppdgrow.grow("small", pair="fnn"), "found 'fnn', expected one of"),
        (lambda: ppdgrow.grow("small", pairs=0), "pairs: found 0"),
        (lambda: ppdgrow.grow("small", scale=float("nan")), "scale: found nan"),
        (lambda: ppdgrow.grow("small", position="middel"), "position: found 'middel'"),
        (lambda: ppdgrow.grow("small", precision="fp16"), "precision is 'fp16'"),
        (lambda: ppdgrow.grow("small", remove="p1", pairs=2), "give one or the other"),
        (lambda: ppdgrow.grow("small", remove="p1", method="zero"), "give one or the other"),
        (lambda: ppdgrow.probe("small", dtypes=["fp31"]), "unknown dtype 'fp31'"),
        (lambda: ppdgrow.compare("small"), "expected a baseline and at least one other"),
        (lambda: ppdgrow.compare("small", "small", epsilon=1.0), "without --accept"),
        (lambda: ppdgrow.compare("small", "small", device="cpu"), "without --test"),
        (lambda: ppdgrow.compare("small", "small", accept=True, rule="both"), "rule is 'both'"),
        (lambda: ppdgrow.load("small", device="gpu"), "device is 'gpu'"),  # type: ignore[arg-type]
        (lambda: ppdgrow.load(None), "path is None, expected the path"),  # type: ignore[arg-type]
        (lambda: ppdgrow.load("small", untie=1), "untie is 1, expected True or False"),  # type: ignore[arg-type]
        (lambda: ppdgrow.train(out=3), "out is 3, expected the path"),
        (lambda: ppdgrow.train(out=b"run"), "out is b'run', expected the path"),
        (lambda: ppdgrow.train(checkpoint=1), "checkpoint is 1"),
        (lambda: ppdgrow.train(recipe=[1]), r"recipe is \[1\]"),
        (lambda: ppdgrow.train(values=[1]), r"values is \[1\], expected a mapping"),
        (lambda: ppdgrow.train(values="train.lr=1"), "expected a mapping"),
        (lambda: ppdgrow.train(values={1: 2}), "unknown recipe key '1'"),
        (lambda: ppdgrow.train(values={"train.betas": 0.9}), "train.betas: found 0.9"),
        (lambda: ppdgrow.train(deterministic="no"), "deterministic is 'no', expected True"),
        (lambda: ppdgrow.train(dry_run="no"), "dry_run is 'no', expected True or False"),
        (lambda: ppdgrow.grow("small", evaluate="no"), "evaluate is 'no'"),
        (lambda: ppdgrow.train(grow_to=4, grow_at=0.5), "grow_at is 0.5, expected a step above 0, or a share .*'50%'"),
        (lambda: ppdgrow.train(grow_to=4, pair=3), "pair is 3, expected one of ffn, .*, or a list of them"),
        (lambda: ppdgrow.train(recipe=3), "recipe is 3, expected the path of a YAML file, or a mapping"),
        (lambda: ppdgrow.grow("small", position=0.5), "position: found 0.5, expected one of end, .*block numbers"),
        (lambda: ppdgrow.grow("small", pair=[3]), r"pair\[0\]: found 3, expected one of ffn, "),
        (lambda: ppdgrow.compare(["small", "small"]), "baseline is .*expected the path"),
        (lambda: ppdgrow.compare("a", "b", accept=True, margin="x"), "margin is 'x'"),
    ],
)
def test_wrong_arguments_are_configuration_errors(call: Callable[[], Any], message: str, folder: Path) -> None:
    with pytest.raises(ppdgrow.ConfigError, match=message):
        call()
    assert list(folder.iterdir()) == [], "nothing is written"


def test_numbers_and_paths_of_other_libraries_are_taken(folder: Path) -> None:
    (folder / "words.txt").write_text("some words\n" * 400)
    values = TINY | {"train.steps": np.int64(2), "train.lr": np.float32(0.25), "data.name": Path("words.txt")}
    document = ppdgrow.train(values=values, out=Path("run"), device=torch.device("cpu"), quiet=True)
    assert document["step"] == 2
    assert "lr: 0.25" in (folder / "run" / "recipe.yaml").read_text()
    assert len(ppdgrow.grow("run", pairs=np.int64(2), position=(0, 1), quiet=True)["pairs"]) == 2


@pytest.mark.parametrize("call", [ppdgrow.train, ppdgrow.grow, ppdgrow.probe, ppdgrow.load])
def test_a_missing_checkpoint_is_an_input_error(call: Callable[..., Any], folder: Path) -> None:
    with pytest.raises(ppdgrow.InvalidInputError, match="missing"):
        call("missing")


def test_load_gives_the_function_of_the_run_with_its_pairs_untied(small: str) -> None:
    ids = torch.arange(32).view(2, 16)
    shallow, grown, tied = ppdgrow.load(small), ppdgrow.load("grown"), ppdgrow.load(Path("grown"), untie=False)
    assert not grown.training
    with torch.no_grad():
        assert torch.equal(shallow(ids), grown(ids))
        assert torch.equal(shallow(ids), tied(ids))
    assert [block.state for block in grown.architecture.pairs] == ["untied"] * 2
    assert [block.state for block in tied.architecture.pairs] == ["tied"] * 2
    assert grown.architecture.newest_ids == {"p1", "p2"}
    assert shallow.architecture.newest_ids == frozenset()
    assert all(parameter.requires_grad for parameter in grown.parameters())
    (checkpoint,) = Path("grown", "checkpoints").iterdir()
    again = ppdgrow.load(checkpoint).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in grown.state_dict().items())


def test_load_refuses_a_checkpoint_that_was_altered(small: str) -> None:
    (checkpoint,) = Path("grown", "checkpoints").iterdir()
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ppdgrow.InvalidInputError):
        ppdgrow.load(checkpoint)


def test_load_reads_no_optimizer_state(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def load(path: Path, *, optimizer: bool) -> Parent:
        read.append(optimizer)
        return load_parent(path)

    monkeypatch.setattr(api, "load_parent", load)
    ppdgrow.load(small)
    assert read == [False]


def test_training_leaves_the_state_of_torch_to_the_caller(folder: Path) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    ppdgrow.train(values=TINY, out="run", deterministic=True, quiet=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        ppdgrow.train(values=TINY, out="other", quiet=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    run_train(TrainRequest.parse({"values": TINY, "out": "third"}), Narrator(quiet=True))
    assert not torch.equal(torch.get_rng_state(), before), "control: training itself seeds torch"


def test_an_interrupt_leaves_a_state_from_which_the_same_call_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    draw, handler = Batches.at, signal.getsignal(signal.SIGINT)

    def at(self: Batches, step: int) -> Batch:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return draw(self, step)

    values = TINY | {"train.steps": 8, "train.save_every": 100}
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "at", at)
        with pytest.raises(ppdgrow.InterruptedRunError, match="saved") as caught:
            ppdgrow.train(values=values, out="run", quiet=True)
    assert caught.value.exit_code == 130
    assert signal.getsignal(signal.SIGINT) is handler
    stopped = ppdgrow.load("run")
    capfd.readouterr()
    document = ppdgrow.train(values=values, out="run")
    assert "going on from step" in capfd.readouterr().err
    assert document["step"] == 8
    ppdgrow.train(values=values, out="unbroken", quiet=True)
    whole, again = ppdgrow.load("unbroken").state_dict(), ppdgrow.load("run").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
    assert not torch.equal(stopped.get_parameter("head.norm.weight"), whole["head.norm.weight"]), (
        "control: it had stopped earlier"
    )


def test_training_runs_in_another_thread(folder: Path) -> None:
    done: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: done.append(ppdgrow.train(values=TINY, out="run", quiet=True)))
    thread.start()
    thread.join()
    assert done[0]["step"] == TINY["train.steps"]


# What the command line alone has, and what it calls otherwise.
ALONE = {"json", "keys"}
RECIPE_FLAGS = {
    "model",
    "num_layers",
    "width",
    "data",
    "data_dir",
    "steps",
    "horizon",
    "decay",
    "seed",
    "pair_lr",
    "only",
}
RECIPE_FLAGS |= {"lr", "batch_size"}
RENAMED = {
    "train": {**dict.fromkeys(RECIPE_FLAGS | {"precision"}, "values"), "override": "values"},
    "grow": {},
    "probe": {},
    "compare": {"paths": "baseline others"},
}


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.NAME)
def test_a_function_takes_what_its_command_takes(command: ModuleType) -> None:
    flags = set(inspect.signature(command.run).parameters) - ALONE
    renamed = RENAMED[command.NAME]
    assert renamed.keys() <= flags, "every exception is needed"
    expected = {name for flag in flags for name in renamed.get(flag, flag).split()}
    assert set(inspect.signature(getattr(ppdgrow, command.NAME)).parameters) == expected
