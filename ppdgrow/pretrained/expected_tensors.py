"""Whether a folder has the tensors that its config asks for: Transformers' own loading, of shapes alone."""

from __future__ import annotations

from typing import Any

import torch

from ppdgrow.errors import InvalidInputError
from ppdgrow.pretrained.folder import CONFIG, PretrainedFolder, reading
from ppdgrow.pretrained.library import quiet, refused_by_transformers, without_kernels
from ppdgrow.pretrained.refusals import FRESH_COPY
from ppdgrow.pretrained.skeleton import skeleton


def refuse_other_tensors(folder: PretrainedFolder) -> None:
    """Load the headers of the files into the model without weights, older names and tied weights included.

    Tensors that the model has no use for are left alone, as Transformers does; so is a pooler that is missing.

    Raises:
        InvalidInputError: a tensor is missing or of another shape than the config makes it.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.modeling_utils import LoadStateDictConfig

    model = _model(folder)
    with quiet(), torch.device("meta"):
        shapes = {name: torch.empty(entry.shape) for name, entry in folder.entries.items()}
        loading = LoadStateDictConfig(
            device_map={"": torch.device("meta")},
            ignore_mismatched_sizes=True,
            weight_mapping=get_model_conversion_mapping(model, None, None),
        )
        shapes_of = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        found, _ = model._load_pretrained_model(model, shapes, None, loading)
        model.tie_weights(missing_keys=found.missing_keys, recompute_mapping=False)
        model._adjust_missing_and_unexpected_keys(found)
    where = f"{str(folder.path)!r}"
    for name, shape, expected in sorted(found.mismatched_keys):
        raise InvalidInputError(
            f"{where}: tensor {name!r} has shape {list(shape)}, and {CONFIG} makes it {list(expected)}; {FRESH_COPY}"
        )
    for name in sorted(found.conversion_errors):
        raise InvalidInputError(
            f"{where}: the tensors for {name!r} cannot be brought to shape {shapes_of.get(name)}, which {CONFIG} makes "
            f"it; {FRESH_COPY}"
        )
    for name in sorted(name for name in found.missing_keys if "pooler" not in name.split(".")):
        raise InvalidInputError(
            f"{where}: tensor {name!r} is missing, expected with shape {shapes_of[name]} by {CONFIG}; {FRESH_COPY}"
        )


def _model(folder: PretrainedFolder) -> Any:
    """The model on the meta device, with its pairs."""
    if not folder.has_pairs:
        return skeleton(folder.path, folder.config)
    from ppdgrow.pretrained import modeling_ppdgrow as modeling

    names = folder.config.get("architectures") or ["PPDGrowModel"]
    facade = next((each for each in modeling.FACADES if each.__name__ == names[0]), modeling.PPDGrowModel)
    config = {**folder.config, "base": without_kernels(folder.config["base"])}
    with reading(folder.path), refused_by_transformers(folder.path / CONFIG), torch.device("meta"), quiet():
        return facade._from_config(modeling.PPDGrowConfig.from_dict(config))
