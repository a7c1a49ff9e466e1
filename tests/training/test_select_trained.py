"""`train.only`: what is trained, by name."""

from __future__ import annotations

import pytest
import torch

from ppdgrow.config.architecture import TokenInput, new_architecture
from ppdgrow.config.load import Layer, resolve
from ppdgrow.config.schema import ModelConfig, TrainConfig
from ppdgrow.errors import ConfigError
from ppdgrow.nn.init import initial_tensors
from ppdgrow.nn.model import Model, build_model
from ppdgrow.training.trainer import select_trained


def make_model() -> Model:
    spec = TokenInput(vocabulary_size=11, sequence_length=4)
    architecture = new_architecture(ModelConfig(layers=3, width=8, heads=2), "lm", spec)
    return build_model(architecture, dict(initial_tensors(architecture, 0)), torch.device("cpu"))


def trained(only: str) -> set[str]:
    model = make_model()
    select_trained(model, TrainConfig(only=only))
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_blocks_by_their_ids() -> None:
    everything = trained("all")
    assert trained("l3") == {name for name in everything if name.startswith("blocks.l3.")} != set()
    assert trained("l1,l3") == {name for name in everything if name.startswith(("blocks.l1.", "blocks.l3."))}
    assert not all(name.startswith("blocks.") for name in everything)


def test_blocks_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match=r"names l9, p1, but the blocks of the model are l1, l2, l3"):
        trained("l1,p1,l9")


@pytest.mark.parametrize("wrong", ["l0", "l1,", "1", "l1 l2", "pair", "", 3, None])
def test_what_is_no_list_of_ids_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="expected all, pairs or the ids of blocks, such as l5,l6"):
        resolve([Layer("-o", {"train.only": wrong})])
