"""Load a model of Transformers, with or without pairs, in one call and without code from the folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.folder import read_folder
from ppdgrow.pretrained.library import KERNELS
from ppdgrow.pretrained.recognition import pretrained_folder


def load_pretrained(path: Any, auto: str | None = None, **options: Any) -> Any:
    """The model of a folder of Transformers, also of one with pairs, which needs no `trust_remote_code` here.

    Args:
        path: the folder, or a run that trained one, whose newest checkpoint it is then.
        auto: the auto class that it is loaded as, such as `AutoModelForCausalLM`; as it was saved by default.
        options: as `from_pretrained` takes them, such as `dtype` or `device_map`.

    Raises:
        InvalidInputError: the folder is damaged, or of a sort that ppdgrow does not read.
        ConfigError: Transformers is not installed, or the model cannot be loaded as `auto`.
    """
    folder = read_folder(pretrained_folder(Path(path)) or Path(path))
    transformers: Any = import_module("transformers")
    names = folder.config.get("architectures") or ()
    wanted = auto or (names[0] if names else "AutoModel")
    if folder.has_pairs:
        modeling: Any = import_module("ppdgrow.pretrained.modeling_ppdgrow")
        possible = [facade for facade in modeling.FACADES if facade.parents(folder.model_type)]
        chosen = next((facade for facade in possible if wanted in (facade.auto_class, facade.__name__)), None)
        expected = ", ".join(facade.auto_class for facade in possible)
    else:
        chosen, expected = getattr(transformers, wanted, None), "a class of models"
    if chosen is None or not hasattr(chosen, "from_pretrained"):
        found = f"{str(path)!r} cannot be loaded as {wanted} by Transformers {transformers.__version__}"
        raise ConfigError(f"{found}: expected {expected}")
    import_module("ppdgrow.pretrained.expected_tensors").refuse_other_tensors(folder)
    if KERNELS & (folder.config.keys() | folder.parent_config.keys()):
        options = {"attn_implementation": None, **options}  # the model's own choice, whatever is installed
    return chosen.from_pretrained(folder.path, **options)
