"""Every family through the command line: trained shallow, grown by kinds that fit, probed, trained on, grown again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command_line import TINY, Command

from ppdgrow.checkpoint import RunFolder, read_checkpoint, read_config
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.kinds import FAMILIES
from ppdgrow.data.dataset import Split
from ppdgrow.data.images import LabelledImages
from ppdgrow.data.named import Cifar10

MODELS = {
    "transformer-lm": "--model transformer",
    "transformer-mlm": "--model transformer -o model.task=mlm -o model.stream=residual",
    "sequence": "--model sequence",
    "sequence-residual": "--model sequence -o model.stream=residual",
    "convolution": "--model sequence -o model.mixer=convolution",
}


def newest(run: str) -> Path:
    found = RunFolder(Path(run)).newest_valid()
    assert found is not None
    return found


def architecture(run: str) -> Architecture:
    return read_config(newest(run))


def data_bytes(run: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(newest(run).iterdir())}


@pytest.mark.parametrize("name", MODELS)
def test_text_families_grow_by_every_kind_and_train_on(ppdgrow: Command, name: str) -> None:
    ppdgrow(f"train {MODELS[name]} --layers 2 --steps 4 --no-decay --out s --quiet", *TINY)
    kinds = FAMILIES[architecture("s").family].pairs
    grown = ppdgrow(f"grow s --pair {','.join(kinds)} --pairs {len(kinds)} --out g --json").document
    assert grown["bit_exact"] is True
    assert grown["validation"]["loss_before"] == grown["validation"]["loss_after"]
    assert grown["layers_after"] == 2 + 2 * len(kinds)
    probed = ppdgrow("probe g --json").document
    assert probed["passed"] is True
    assert [pair["kind"] for pair in probed["pairs"]] == [block.kind for block in architecture("g").pairs]
    assert all(max(c["max_abs"] for c in pair["cancellation"].values()) == 0 for pair in probed["pairs"])
    assert ppdgrow("train g --steps 4 --out t --json").document["step"] == 8
    trained = ppdgrow("probe t --json").document
    assert trained["passed"] is True
    assert all(pair["separation"] > 0 for pair in trained["pairs"]), "every kind moves away from the identity"


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 drawn images in place of CIFAR-10, which takes seconds to decode; `test_story` reads the real ones."""

    def read(self: Cifar10, split: Split) -> LabelledImages:
        torch.manual_seed(len(split))
        return LabelledImages(torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (64,)))

    monkeypatch.setattr(Cifar10, "read", read)


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("stream", ["coupled", "residual"])
def test_images_through_mlp(ppdgrow: Command, stream: str) -> None:
    line = f"--model mlp --data cifar10 --layers 2 -o model.stream={stream}"
    ppdgrow(f"train {line} --steps 4 --no-decay --out s --quiet", *TINY)
    kinds = FAMILIES["mlp"].pairs
    grown = ppdgrow(f"grow s --pair {','.join(kinds)} --pairs {len(kinds)} --out g --json").document
    assert grown["bit_exact"] is True
    assert grown["validation"]["loss_before"] == grown["validation"]["loss_after"]
    assert ppdgrow("probe g --json").document["passed"] is True
    ppdgrow("train g --steps 4 --out t --quiet")
    assert all(pair["separation"] > 0 for pair in ppdgrow("probe t --json").document["pairs"])


def test_a_growth_before_training_one_upon_it_and_one_after(ppdgrow: Command, shallow: Path) -> None:
    """A still tied model grows; the pairs go again in another order; what is left trains, grows and trains."""
    ppdgrow(f"grow {shallow} --pair attention-first --position 1 --out a --quiet")
    ppdgrow("grow a --pair attention-first --position 2 --out b --quiet")
    twice = ppdgrow("grow b --pair orthogonal,depthwise --pairs 2 --position 2,2 --out c --json").document
    assert twice["bit_exact"] is True
    assert [(block.id, block.kind) for block in architecture("c").blocks] == [
        ("l1", "attention"),
        ("p1", "attention"),
        ("p3", "orthogonal"),
        ("p4", "depthwise"),
        ("p2", "ffn"),
        ("l2", "attention"),
    ]
    for number, pair in enumerate(("p3", "p1", "p4", "p2")):
        source = "c" if number == 0 else f"less{number}"
        assert ppdgrow(f"grow {source} --remove {pair} --out less{number + 1} --json").document["bit_exact"] is True
    assert data_bytes("less4") == data_bytes(str(shallow))

    ppdgrow("train c --steps 4 --no-decay --out t --quiet")
    again = ppdgrow("grow t --pair recurrent,linear --pairs 2 --out d --json").document
    assert again["bit_exact"] is True
    assert again["pairs"] == ["p5", "p6"]
    probed = {pair["id"]: pair["tied"] for pair in ppdgrow("probe d --json").document["pairs"]}
    assert probed == {"p1": False, "p2": False, "p3": False, "p4": False, "p5": True, "p6": True}
    removed = ppdgrow("grow d --remove p3 --out e --json").document
    assert removed["bit_exact"] is False, "a trained pair does something"
    before, after = read_checkpoint(newest("d")).tensors, read_checkpoint(newest("e")).tensors
    assert {name for name in before if name not in after} == {n for n in before if n.startswith("blocks.p3.")}
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert ppdgrow("train e --steps 3 --out f --json").document["step"] == 17


@pytest.mark.parametrize("method", ["zero", "copy", "fresh"])
@pytest.mark.parametrize("mixer", ["recurrence", "convolution"])
def test_rival_methods_on_a_sequence_model(ppdgrow: Command, mixer: str, method: str) -> None:
    ppdgrow(f"train --model sequence -o model.mixer={mixer} --layers 2 --steps 3 --no-decay --out s --quiet", *TINY)
    grown = ppdgrow(f"grow s --method {method} --pairs 2 --out g --json").document
    assert (grown["layers_after"], grown["bit_exact"]) == (6, method == "zero")
    assert ppdgrow("train g --steps 2 --out t --json").document["step"] == 5


def test_recurrent_is_the_mixer_of_a_convolution_model(ppdgrow: Command) -> None:
    ppdgrow(f"train {MODELS['convolution']} --layers 2 --steps 2 --no-decay --out s --quiet", *TINY)
    ppdgrow("grow s --pair recurrent --out g --quiet")
    assert [block.kind for block in architecture("g").pairs] == ["convolution"]


@pytest.mark.usefixtures("few_images")
def test_kinds_that_do_not_fit_are_refused_with_those_that_do(ppdgrow: Command) -> None:
    ppdgrow("train --model mlp --data cifar10 --layers 1 --steps 1 --no-decay --out s --quiet", *TINY)
    for kind in ("attention", "recurrent", "attention-first"):
        refused = " ".join(ppdgrow(f"grow s --pair {kind} --out g", code=2).stderr.split())
        assert "does not fit the family 'mlp'" in refused
        assert ", ".join(FAMILIES["mlp"].pairs) in refused
    assert not Path("g").exists()
