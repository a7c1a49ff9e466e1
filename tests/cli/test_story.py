"""The main job, end to end: train, grow, probe, train on, compare."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import TINY, Command
from tampering import damage

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_config, read_jsonl
from ppdgrow.nn.coupling import Pair
from ppdgrow.nn.model import build_model
from ppdgrow.probing.probe import probe_model
from ppdgrow.training.context import checkpoint_setting, load_parent


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def newest(run: Path) -> Path:
    found = RunFolder(run).newest_valid()
    assert found is not None
    return found


def test_the_story(ppdgrow: Command, shallow: Path) -> None:
    before = files(shallow)
    grown = ppdgrow("grow shallow --pair attention,ffn --pairs 3 --out grown --json").document
    assert files(shallow) == before
    assert grown["bit_exact"] is True
    assert grown["validation"]["loss_before"] == grown["validation"]["loss_after"]
    assert (grown["layers_before"], grown["layers_after"]) == (2, 8)
    assert grown["pairs"] == ["p1", "p2", "p3"]
    assert grown["checkpoint"] == "grown/checkpoints/step-00000010"
    assert grown["parent"] == "shallow/checkpoints/step-00000010"
    assert [block.state for block in read_config(newest(Path("grown"))).pairs] == ["tied"] * 3

    probed = ppdgrow("probe grown --json").document
    assert probed["passed"] is True
    for pair in probed["pairs"]:
        assert {d: c["max_abs"] for d, c in pair["cancellation"].items()} == dict.fromkeys(
            ("fp64", "fp32", "bf16", "bf16_autocast", "fp16"), 0
        )
        assert pair["gradient_antisymmetry"] in (0, None)
        assert pair["separation"] == pair["activity"] == 0

    trained = ppdgrow("train grown --steps 12 --out trained --json").document
    assert trained["step"] == 22
    assert [block.state for block in read_config(newest(Path("trained"))).pairs] == ["untied"] * 3
    parent_lines, lines = (read_jsonl(Path(name) / "metrics.jsonl") for name in ("shallow", "trained"))
    assert lines[: len(parent_lines)] == parent_lines
    assert [line["step"] for line in parent_lines if "validation" in line][-1] == 10
    metrics = [line for line in lines if "train_loss" in line]
    assert [line["step"] for line in metrics] == list(range(1, 23))
    assert all(("grad_norm_new" in line) == (line["step"] > 10) for line in metrics)
    assert metrics[10]["lr"] == metrics[9]["lr"], "no second warm-up after an undecayed run"

    probed = ppdgrow("probe trained --json").document
    assert probed["passed"] is True, "a trained, untied pair does not fail the probe"
    assert all(pair["separation"] > 0 and pair["activity"] > 0 for pair in probed["pairs"])

    ppdgrow("train --layers 8 --steps 22 --out baseline --quiet", *TINY)
    compared = ppdgrow("compare baseline trained --json").document
    assert compared["runs"][1]["insertions"][0]["loss_before"] == grown["validation"]["loss_before"]
    assert compared["criteria"][0]["passed"] is True
    assert compared["criteria"][0]["value"] == 0
    judged = [criterion["passed"] for criterion in compared["criteria"] if criterion["passed"] is not None]
    assert len(judged) == 5, "of training too; there is no ungrown control"
    assert compared["verdict"] == ("accept" if all(judged) else "reject")
    assert compared["pays"] == "not judged"


def test_the_three_lines_of_the_readme_work_as_typed(ppdgrow: Command) -> None:
    """Without --out each command names and prints its folder, which the next command takes."""
    first = ppdgrow("train --layers 6 --steps 3", *TINY).stdout.splitlines()[-1]
    grown = ppdgrow(f"grow {first} --pair ffn").stdout.splitlines()[-1]
    on = ppdgrow(f"train {grown} --steps 3").stdout.splitlines()[-1]
    assert len({first, grown, on}) == 3
    table = ppdgrow(f"compare {first} {on}").stdout
    assert "no insertion spike" in table
    assert "6 -> 8 at step 3" in table


def test_automatic_names_have_one_suffix_and_never_meet(ppdgrow: Command) -> None:
    def path(*arguments: str) -> str:
        return ppdgrow(*arguments).stdout.splitlines()[-1]

    first = path("train", *TINY, "--no-decay", "--steps", "4")
    stem = re.fullmatch(r"(runs/stdlib-transformer-coupled-\d+)-[0-9a-f]{8}", first)
    assert stem, first
    found = [first]
    for arguments in (["grow", first], ["grow", first, "--pairs", "2"]):
        found.append(path(*arguments))
        found += [path("train", found[-1], "--steps", "2"), path("grow", found[-1], "--remove", "last")]
    assert len(set(found)) == len(found), "the same recipe from another parent is another run"
    done = [*("grown", "trained", "removed") * 2]
    assert [re.sub("[0-9a-f]{8}$", "", name) for name in found[1:]] == [f"{stem[1]}-{how}-" for how in done]
    assert path("train", found[1], "--steps", "2") == found[2], "a repeated command finds its own folder"
    shutil.copytree(found[1], "own-20260101")
    assert path("train", "own-20260101", "--steps", "2").startswith("own-20260101-trained-"), "a date is no digest"


def test_every_line_for_people_is_on_stderr_and_only_data_on_stdout(ppdgrow: Command, shallow: Path) -> None:
    grown = ppdgrow("grow shallow --out g")
    assert grown.stdout.splitlines()[-1] == "g"
    assert "identical to the last bit" in grown.stdout
    assert ppdgrow("train g --steps 2 --out t --quiet").stderr == ""
    assert ppdgrow("train g --steps 2 --out t2 --json").stderr == ""


def test_the_place_of_a_growth_is_told_in_words(ppdgrow: Command, shallow: Path) -> None:
    one = ppdgrow("grow shallow --out one")
    assert "1 ffn pair (p1) after block 1 of 2; theta_0 copied" in one.stderr
    assert one.stdout.splitlines()[1].split(maxsplit=3) == ["layers", "2", "4", "after block 1 of 2"]
    assert "2 ffn pairs (p2, p3) after blocks 2, 3 of 3" in ppdgrow("grow one --pairs 2 --out more").stderr
    out = ppdgrow("grow more --remove p1 --out less")
    assert "pair p1 (block 2 of 5) is taken out" in out.stderr
    assert "block 2 of 5" in out.stdout


def test_a_rerun_prints_the_same_document_and_changes_nothing(ppdgrow: Command, shallow: Path) -> None:
    for line in (
        "grow shallow --pairs 2 --out again --json",
        "train again --steps 3 --out on --json",
        "grow again --remove last --out less --json",
    ):
        first = ppdgrow(line)
        before = files(Path.cwd())
        assert ppdgrow(line).stdout == first.stdout
        assert files(Path.cwd()) == before


def test_removing_tied_pairs_gives_the_parent_back_byte_for_byte(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --pairs 2 --out grown")
    ppdgrow("grow grown --remove p1 --out one")
    removed = ppdgrow("grow one --remove last --out none --json").document
    assert removed["bit_exact"] is True
    assert files(newest(Path("none"))) == files(newest(shallow))
    assert files(newest(Path("one"))) != files(newest(shallow))
    regrown = ppdgrow("grow none --out regrown --json").document
    assert regrown["pairs"] == ["p3"], "an id is never given twice"


def test_removing_a_trained_pair_keeps_the_other_weights_and_says_the_losses(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --pairs 2 --out grown")
    ppdgrow("train grown --steps 4 --out trained --quiet")
    removed = ppdgrow("grow trained --remove p2 --out less --json").document
    assert removed["validation"]["loss_before"] != removed["validation"]["loss_after"]
    assert removed["bit_exact"] is False
    old, new = read_checkpoint(newest(Path("trained"))), read_checkpoint(newest(Path("less")))
    assert old.tensors.keys() - new.tensors.keys() == {n for n in old.tensors if n.startswith("blocks.p2.")}
    assert all(torch.equal(new.tensors[name], old.tensors[name]) for name in new.tensors)
    assert new.moments.keys() == new.tensors.keys()


@pytest.mark.parametrize("stream", ["coupled", "residual"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("task", ["lm", "mlm"])
@pytest.mark.parametrize("kind", ["ffn", "attention"])
def test_insertion_keeps_the_loss_in_every_stream_precision_and_task(
    ppdgrow: Command, stream: str, precision: str, task: str, kind: str
) -> None:
    options = f"-o model.stream={stream} -o model.task={task} --precision {precision}"
    ppdgrow(f"train --layers 2 --steps 4 --no-decay {options} --out s --quiet", *TINY)
    grown = ppdgrow(f"grow s --pair {kind} --pairs 3 --out g --json").document
    assert grown["bit_exact"] is True
    assert grown["validation"]["loss_before"] == grown["validation"]["loss_after"]
    assert ppdgrow("probe g --json").document["passed"] is True
    ppdgrow("train g --steps 4 --out t --quiet")
    assert all(pair["separation"] > 0 for pair in ppdgrow("probe t --json").document["pairs"])


@pytest.mark.parametrize("method", ["zero", "copy", "fresh"])
@pytest.mark.parametrize("stream", ["coupled", "residual"])
def test_rival_methods_add_as_many_layers_and_train(ppdgrow: Command, method: str, stream: str) -> None:
    ppdgrow(f"train --layers 2 --steps 4 --no-decay -o model.stream={stream} --out s --quiet", *TINY)
    grown = ppdgrow(f"grow s --method {method} --pairs 2 --position end --out g --json").document
    assert grown["layers_after"] == 6
    assert grown["bit_exact"] is (method == "zero")
    assert ppdgrow("train g --steps 4 --out t --json").document["step"] == 8


def test_without_evaluation_the_outputs_are_still_compared(ppdgrow: Command, shallow: Path) -> None:
    grown = ppdgrow("grow shallow --no-eval --out g --json").document
    assert grown["validation"] is None
    assert grown["bit_exact"] is True


def test_only_pairs_and_the_pair_rate_touch_the_new_parameters_alone(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --out g --quiet")
    ppdgrow("train g --steps 4 --only pairs --out only --quiet")
    ppdgrow("train g --steps 4 --pair-lr 0 --out still --quiet")
    old = read_checkpoint(newest(shallow)).tensors
    only, still = (read_checkpoint(newest(Path(name))).tensors for name in ("only", "still"))
    assert all(torch.equal(only[name], old[name]) for name in old)
    assert not all(torch.equal(still[name], old[name]) for name in old)
    kept = read_checkpoint(newest(Path("only"))).moments
    parent = read_checkpoint(newest(shallow)).moments
    assert all(torch.equal(kept[name][key], parent[name][key]) for name in parent for key in parent[name])
    theta = read_checkpoint(newest(Path("g"))).tensors
    for name in theta.keys() - old.keys():
        assert torch.equal(still[name], theta[name])
        assert not torch.equal(only[name], theta[name])


def test_reset_optimizer_starts_with_empty_moments(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("train shallow --steps 1 --out kept --quiet")
    ppdgrow("train shallow --steps 1 --out reset --quiet -o train.reset_optimizer=true")
    steps = [
        {float(state["step"]) for state in read_checkpoint(newest(Path(name))).moments.values()}
        for name in ("kept", "reset")
    ]
    assert steps == [{11.0}, {1.0}]


def test_a_pair_that_does_not_preserve_the_function_fails_and_writes_nothing(ppdgrow: Command, shallow: Path) -> None:
    """Weights so large that a branch overflows: infinity minus infinity is no zero."""
    damage(shallow, lambda t: t | {"blocks.l2.g.out.bias": torch.full_like(t["blocks.l2.g.out.bias"], 3e38)})
    failed = ppdgrow("grow shallow --pair ffn --out g", code=7)
    assert "change the function" in failed.stderr
    assert not Path("g").exists()


def test_control_a_tied_pair_whose_members_differ_by_one_ulp_fails_the_probe(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --pair attention --out g --quiet")
    parent = load_parent(Path("g"))
    setting = checkpoint_setting(parent, device="cpu", precision=None, data_dir=None)
    model = build_model(parent.checkpoint.architecture, parent.checkpoint.tensors, setting.device)
    batches = setting.evaluation()
    assert probe_model(model, setting, batches).passed
    pair = model.blocks["p1"]
    assert isinstance(pair, Pair)
    twin = build_model(parent.checkpoint.architecture, parent.checkpoint.tensors, setting.device).blocks["p1"]
    assert isinstance(twin, Pair)
    pair.minus = twin.plus
    assert probe_model(model, setting, batches).passed, "equal members pass"
    with torch.no_grad():
        weight = pair.minus.get_parameter("g.out.weight")
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(torch.inf))
    report = probe_model(model, setting, batches)
    assert not report.passed
    assert any("does not cancel" in failure for failure in report.failures)


def test_a_checkpoint_is_complete_and_says_where_it_comes_from(ppdgrow: Command, shallow: Path) -> None:
    ppdgrow("grow shallow --out g --quiet")
    card = Path("g/README.md").read_text()
    assert "grown from 2 to 4 layers by method pair" in card
    assert Path("g/recipe.yaml").read_text() in card
    events = read_jsonl(Path("g/growth.jsonl"))
    assert [event["event"] for event in events] == ["train", "grow", "check"]
    assert events[1]["theta_sha256"].keys() == {"p1"}
    json.dumps(events, allow_nan=False)


@pytest.mark.parametrize("model", ["--model mlp", "-o model.patch_size=4"])
def test_digits_are_learned_grown_and_told_by_class(ppdgrow: Command, model: str) -> None:
    pytest.importorskip("sklearn")
    line = f"{model} --data digits --layers 2 --width 32 -o train.batch_size=32 -o train.eval_batches=6"
    trained = ppdgrow(f"train {line} --steps 120 --no-decay --out s --json").document
    figures = trained["validation"]
    assert figures["accuracy"] > 0.3, "three times chance"
    assert list(figures["class_accuracy"]) == list("0123456789")
    assert "| - of 7 |" in Path("s/README.md").read_text()
    assert ppdgrow("grow s --pair ffn --out g --json").document["bit_exact"] is True
    ppdgrow("train g --steps 10 --out t --quiet")
    ppdgrow("compare s t --report r.md")
    assert "## Accuracy by class" in Path("r.md").read_text()


@pytest.mark.slow
def test_real_images_are_learned_and_grown(ppdgrow: Command, real_data: Path) -> None:
    line = f"--data cifar10 --data-dir {real_data} --layers 2 --width 32 -o train.batch_size=32 -o train.eval_batches=4"
    trained = ppdgrow(f"train {line} --steps 60 --no-decay --out s --json").document
    assert trained["validation"]["accuracy"] > 0.2
    assert trained["validation"]["perplexity"] is None
    grown = ppdgrow(f"grow s --pair attention --data-dir {real_data} --out g --json").document
    assert grown["bit_exact"] is True
