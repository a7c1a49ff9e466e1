"""What comes after `train` on a folder: train, grow, probe and load its run, its steps, and copies of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import Command, snapshot
from text_folders import PAD, TINY, plain_model, step_folder, text_folder, tiny, trained, write_text
from tiny_models import logits, read_config, tensors, transformers

import ppdgrow as package
from ppdgrow.checkpoint import read_jsonl
from ppdgrow.errors import ConfigError


@pytest.fixture
def run(ppdgrow: Command) -> Path:
    """A copy of a run with pairs, in a folder with its data."""
    write_text()
    shutil.copytree(trained("llama", pairs=True)[1], "run")
    return Path("run")


def line_of(event: dict[str, object]) -> tuple[object, ...]:
    return event["event"], event["step"], event["parent"]


def test_the_run_and_each_step_of_it_can_be_trained_on(run: Path, ppdgrow: Command) -> None:
    folder = trained("llama", pairs=True)[0]
    on = ppdgrow(f"train {run} --steps 1 --out on --json").document
    assert on["step"] == 3
    older = ppdgrow(f"train {step_folder(run, 1)} --steps 1 --json").document
    assert older["step"] == 2
    assert older["run"].startswith("run-trained-")
    events = read_jsonl(Path("on/growth.jsonl"))
    parent = (folder.parent / "parent").as_posix()
    assert [line_of(event) for event in events] == [
        ("grow", 0, parent),
        ("train", 0, folder.as_posix()),
        ("train", 2, "run/checkpoints/step-00000002"),
    ]
    steps = [line["step"] for line in read_jsonl(Path("on/metrics.jsonl")) if "train_loss" in line]
    assert steps == [1, 2, 3]


def test_growth_of_a_run_is_a_folder_whose_lineage_is_whole(run: Path, ppdgrow: Command) -> None:
    before = snapshot()
    ppdgrow(f"train {run} --steps 1 --out on --quiet")
    grown = ppdgrow("grow on --pair ffn --json").document
    assert grown["checkpoint"].startswith("on-grown-")
    assert (grown["layers_before"], grown["layers_after"], grown["bit_exact"]) == (8, 10, True)
    assert grown["parent"] == "on/checkpoints/step-00000003"
    folder = Path(grown["checkpoint"])
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "tokenizer.json", "modeling_ppdgrow.py", "growth.jsonl"}
    assert not names & {"manifest.json", "trainer_state.json", "trainer_state.safetensors"}
    lineage = read_config(folder)["base"]["ppdgrow"]["lineage"]
    assert [entry["parent"] for entry in lineage] == ["parent", "on/step-00000003"]
    assert [entry.get("parent_trained") for entry in lineage] == [None, True]
    ppdgrow(f"train {folder} --steps 1 --only pairs --out last --quiet", *TINY)
    events = read_jsonl(Path("last/growth.jsonl"))
    assert [event["event"] for event in events] == ["grow", "train", "train", "grow", "train"]
    assert {event["step"] for event in events} == {0}  # all before the first step of the folder
    last = plain_model(step_folder(Path("last"), 1), "llama")
    assert [len(layer.pairs) for layer in last.model.layers] == [0, 2, 0, 1]
    fewer = ppdgrow("grow last --remove p3 --out fewer --json").document
    assert (fewer["layers_after"], fewer["bit_exact"]) == (8, False)
    assert before.items() <= snapshot().items()


@pytest.mark.parametrize("out", ["run", "run/grown", "run/checkpoints/step-00000002/grown"])
def test_growth_never_writes_into_the_run(out: str, run: Path, ppdgrow: Command) -> None:
    before = snapshot()
    for parent in (run, step_folder(run, 2)):
        refused = ppdgrow(f"grow {parent} --pair ffn --out {out}", code=2)
        assert "is the input or in it" in refused.stderr
        assert snapshot() == before


def test_from_within_the_run_the_growth_is_beside_it(
    run: Path, ppdgrow: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(step_folder(run, 2))
    grown = Path(ppdgrow("grow . --pair ffn --no-eval --json").document["checkpoint"])
    assert grown.parent.resolve() == Path("../../..").resolve()
    assert grown.name.startswith("run-grown-")


def test_a_run_is_probed(run: Path, ppdgrow: Command) -> None:
    for path in (run, step_folder(run, 1)):
        found = ppdgrow(f"probe {path} --json").document
        assert found["passed"] is True
        assert [(pair["id"], pair["tied"]) for pair in found["pairs"]] == [("p1", False), ("p2", False)]


def test_a_step_that_was_copied_out_is_a_folder(run: Path, ppdgrow: Command) -> None:
    """As somebody has it who downloads what was published."""
    shutil.copytree(step_folder(run, 2), "hf/published")
    shutil.rmtree(run)
    weights = tensors(Path("hf/published"))
    ppdgrow("grow hf/published --pair ffn --out grown --no-eval --quiet")
    assert [event["event"] for event in read_jsonl(Path("grown/growth.jsonl"))] == ["grow"]
    assert (
        ppdgrow("grow hf/published --pair attention --no-eval --json").document["run"].startswith("hf/published-grown")
    )
    assert ppdgrow("probe hf/published --json").document["passed"] is True
    done = ppdgrow("train hf/published --only pairs --steps 1 --json", *TINY).document
    assert done["run"].startswith("runs/published-trained-")
    after = tensors(Path(done["checkpoint"]))
    moved = {name for name, tensor in weights.items() if not torch.equal(after[name], tensor)}
    assert {name for name in moved if name.startswith("model.")} == {name for name in weights if _is_of_a_pair(name)}


def _is_of_a_pair(name: str) -> bool:
    """Whether it is a weight, and no state of the optimizer."""
    return name.startswith("model.") and ".pairs." in name


def test_what_transformers_saves_of_a_step_is_a_folder(ppdgrow: Command) -> None:
    write_text()
    step = step_folder(trained("gpt2")[1], 2)
    plain_model(step, "gpt2").save_pretrained("saved")
    shutil.copy(step / "tokenizer.json", "saved")
    ppdgrow("grow saved --pair ffn --out grown --no-eval --quiet")
    ppdgrow("train saved --steps 1 --out run --quiet", *TINY)
    assert "training" in read_config(step_folder(Path("run"), 1))["ppdgrow"]


# --- from Python


def test_load_says_what_loads_it() -> None:
    folder, run = trained("llama", pairs=True)
    for path in (folder, run, step_folder(run, 1)):
        with pytest.raises(ConfigError, match=r"is a model of Transformers: load it by ppdgrow\.load_pretrained"):
            package.load(path)


def test_load_pretrained_takes_the_run() -> None:
    _, run = trained("llama", pairs=True)
    model, step = package.load_pretrained(run).eval(), package.load_pretrained(step_folder(run, 2)).eval()
    assert torch.equal(logits(model, "llama"), logits(step, "llama"))
    assert torch.equal(logits(model, "llama"), logits(plain_model(step_folder(run, 2), "llama"), "llama"))
    assert not torch.equal(logits(model, "llama"), logits(package.load_pretrained(step_folder(run, 1)).eval(), "llama"))
    ids = torch.tensor([[5, 6, 7]])
    cached, plain = (
        model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=use_cache, eos_token_id=-1)
        for use_cache in (True, False)
    )
    assert torch.equal(cached, plain)


# --- where the folder is, and what else is in it


def hub(folder: Path) -> Path:
    """The folder in the layout of a hub cache; that of its snapshot."""
    repository, revision = Path("cache/models--owner--name"), "0123456789abcdef" * 2
    blobs, place = repository / "blobs", repository / "snapshots" / revision
    for path in (blobs, place, repository / "refs"):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, blobs / f"{number:064x}")
        (place / file.name).symlink_to(f"../../blobs/{number:064x}")
    return place


def test_a_hub_cache_is_only_read(ppdgrow: Command) -> None:
    write_text()
    place = hub(trained("llama")[0])
    before = {str(path): path.lstat().st_mtime_ns for path in Path("cache").rglob("*")}
    done = [ppdgrow(f"train {path} --steps 1 --json", *TINY).document for path in (place, place.parent.parent)]
    assert done[0]["run"].startswith("runs/name-trained-")
    assert done[0] == done[1], "the second is the same run"
    assert {str(path): path.lstat().st_mtime_ns for path in Path("cache").rglob("*")} == before
    assert not any(path.is_symlink() for path in Path(done[0]["checkpoint"]).iterdir())
    grown = ppdgrow(f"grow {place} --pair ffn --no-eval --out grown --json").document
    assert read_config(Path(grown["checkpoint"]))["base"]["ppdgrow"]["lineage"][0]["parent"] == "owner/name"


def test_what_belongs_to_the_model_goes_along(ppdgrow: Command) -> None:
    """Beside what others leave in such folders: checkpoints of Transformers' trainer, logs of the same name as ours."""
    write_text()
    folder = text_folder("llama", Path("parent"))
    for name, text in {
        "README.md": "---\nlicense: mit\n---\n# A model\n",
        "LICENSE": "MIT",
        "chat_template.jinja": "{{ messages }}",
        "metrics.jsonl": '{"foo": 1}\n',
        "trainer_state.json": '{"global_step": 7}',
        "manifest.json": "{}",
        "optimizer.pt": "not a pickle",
        "1_Pooling/config.json": "{}",
        ".gitattributes": "*",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    before = snapshot()
    said = ppdgrow("train parent --steps 1 --out run", *TINY).stderr
    assert "not taken along, since training has no use for them: the files optimizer.pt, 1_Pooling/\n" in said
    step = step_folder(Path("run"), 1)
    assert {path.name for path in step.iterdir()} == {
        "LICENSE",
        "README.parent.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "trainer_state.json",
        "trainer_state.safetensors",
    }
    for name in ("LICENSE", "chat_template.jinja", "tokenizer.json", "generation_config.json"):
        assert (step / name).read_bytes() == (folder / name).read_bytes()
    assert (step / "README.parent.md").read_text() == (folder / "README.md").read_text()
    assert json.loads((step / "trainer_state.json").read_text())["step"] == 1
    assert before.items() <= snapshot().items()
    assert transformers().AutoTokenizer.from_pretrained(step).chat_template == "{{ messages }}"
    assert transformers().GenerationConfig.from_pretrained(step).eos_token_id == PAD
    ppdgrow("train run --steps 1 --out on --quiet")
    names = {path.name for path in step_folder(Path("on"), 2).iterdir()}
    assert names == {path.name for path in step.iterdir()}


def test_a_sharded_folder_in_shards_is_one_file_of_a_step(ppdgrow: Command) -> None:
    write_text()
    folder = text_folder("llama", Path("parent"), shards=True)
    assert len(list(folder.glob("*.safetensors"))) > 1
    ppdgrow("train parent --steps 1 --out run --quiet", *tiny("--lr", "1e-9"))
    assert not (step_folder(Path("run"), 1) / "model.safetensors.index.json").exists()
    after = tensors(step_folder(Path("run"), 1))
    assert all(torch.allclose(after[name], tensor, atol=1e-8) for name, tensor in tensors(folder).items())
