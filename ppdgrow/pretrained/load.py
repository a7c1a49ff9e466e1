"""Load a model of Transformers, with or without pairs, in one call and without code from the folder."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ppdgrow.errors import ConfigError
from ppdgrow.pretrained.folder import read_folder


def load_pretrained(path: Any, auto: str | None = None, **options: Any) -> Any:
    """The model of a folder of Transformers, also of one with pairs, which needs no `trust_remote_code` here.

    Args:
        path: the folder.
        auto: the auto class that it is loaded as, such as `AutoModelForCausalLM`; as it was saved by default.
        options: as `from_pretrained` takes them, such as `dtype` or `device_map`.

    Raises:
        InvalidInputError: the folder is damaged, or of a sort that ppdgrow does not read.
        ConfigError: Transformers is not installed, or the model cannot be loaded as `auto`.
    """
    folder = read_folder(Path(path))
    transformers: Any = import_module("transformers")
    names = [str(name) for name in folder.config.get("architectures") or ()]
    if folder.has_pairs:
        modeling: Any = import_module("ppdgrow.pretrained.modeling_ppdgrow")
        facades = {facade.auto_class: facade for facade in modeling.FACADES}
        chosen = facades.get(auto) if auto else getattr(modeling, names[0], None) if names else modeling.PPDGrowModel
        possible = [name for name, facade in facades.items() if facade.parents(folder.config["base_model_type"])]
        if chosen is None or chosen.auto_class not in possible:
            raise ConfigError(f"{str(path)!r} cannot be loaded as {auto or names[0]}: expected {', '.join(possible)}")
    else:
        chosen = getattr(transformers, auto or (names[0] if names else "AutoModel"), None)
        if chosen is None:
            raise ConfigError(f"Transformers {transformers.__version__} has no {auto or names[0]}")
    return chosen.from_pretrained(folder.path, **options)
