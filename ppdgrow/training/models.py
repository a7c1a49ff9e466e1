"""Models of either make: those of `nn`, and those of Transformers, of which the library is imported only here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from ppdgrow.checkpoint import Checkpoint
from ppdgrow.config.architecture import Architecture, PretrainedArchitecture
from ppdgrow.config.schema import Recipe
from ppdgrow.nn import model as native
from ppdgrow.nn.model import Model
from ppdgrow.nn.parts import NAMES

if TYPE_CHECKING:
    from ppdgrow.pretrained.language_model import LanguageModel

AnyModel: TypeAlias = "Model | LanguageModel"


def build_model(architecture: Architecture, tensors: Mapping[str, Tensor], device: torch.device) -> AnyModel:
    """A model over fp32 copies of named tensors, on `device`, in training mode.

    Raises:
        InvalidInputError: a tensor is missing, unexpected or of the wrong shape.
        ConfigError: it is a model of Transformers, which is not installed.
    """
    if not isinstance(architecture, PretrainedArchitecture):
        return native.build_model(architecture, tensors, device)
    from ppdgrow.pretrained.language_model import build_language_model

    return build_language_model(architecture, tensors, device)


def shape_model(architecture: Architecture) -> AnyModel:
    """A model on the meta device: shapes alone."""
    if not isinstance(architecture, PretrainedArchitecture):
        with torch.device("meta"):
            return Model(architecture)
    from ppdgrow.pretrained.language_model import language_model_without_memory

    return language_model_without_memory(architecture)


def completed(checkpoint: Checkpoint, recipe: Recipe) -> Checkpoint:
    """A checkpoint as the recipe runs it: of a folder of Transformers with what it lacked, such as a head, drawn."""
    if not isinstance(checkpoint.architecture, PretrainedArchitecture):
        return checkpoint
    from ppdgrow.pretrained.parent import for_training

    length, seed = recipe.data.sequence_length, recipe.train.seed
    architecture, tensors = for_training(checkpoint.architecture, checkpoint.tensors, length=length, seed=seed)
    return replace(checkpoint, architecture=architecture, tensors=tensors)


def drawn_names(architecture: Architecture) -> tuple[str, ...]:
    """Parameters outside of all blocks that are new to the model, such as those of its head."""
    return architecture.drawn if isinstance(architecture, PretrainedArchitecture) else ()


def block_of(architecture: Architecture, name: str) -> str | None:
    """The id of the block to which a parameter belongs, if to any."""
    if isinstance(architecture, PretrainedArchitecture):
        return architecture.block_of(name)
    return NAMES.block_of(name)
