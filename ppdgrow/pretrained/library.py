"""Transformers itself: whether it is there, what it makes of a config, and that it does so in silence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint.safe_read import one_line
from ppdgrow.config.kinds import Task
from ppdgrow.errors import ConfigError, InvalidInputError
from ppdgrow.pretrained.refusals import CONFIG, FRESH_COPY

AUTO_CLASSES: Mapping[Task, str] = {"lm": "AutoModelForCausalLM", "mlm": "AutoModelForMaskedLM"}
KERNELS = frozenset({"_attn_implementation", "attn_implementation"})


def require_transformers(path: Path) -> None:
    """Refuse, with a `ConfigError`, to read a folder without the library that it is for."""
    try:
        import_module("transformers.models.auto.configuration_auto")
    except ImportError:
        raise ConfigError(
            f"{str(path)!r} is a model of Transformers, which is not installed: pip install 'ppdgrow[hf]'"
        ) from None


def load_config(path: Path, config: Mapping[str, Any]) -> Any:
    """The config as the installed Transformers understands it, defaults and what it derives included."""
    require_transformers(path)
    from transformers import __version__ as version
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = config["model_type"]
    if model_type not in CONFIG_MAPPING:
        own = " and comes with code of its own, which ppdgrow does not run" if "auto_map" in config else ""
        named = one_line(repr(model_type))
        raise InvalidInputError(
            f"{str(path / CONFIG)!r}: model_type {named} is not known to Transformers {version}{own}: "
            "pip install -U transformers, or take a model that it knows"
        )
    with refused_by_transformers(path / CONFIG), quiet():
        return CONFIG_MAPPING[model_type].from_dict(without_kernels(config))


def without_kernels(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that does not ask for an implementation of attention, which may need a package that is not here."""
    return {key: value for key, value in config.items() if key not in KERNELS}


@contextmanager
def refused_by_transformers(path: Path) -> Iterator[None]:
    """What a class of Transformers raises for a wrong value, as an `InvalidInputError` of one line."""
    try:
        yield
    except Exception as error:  # whatever the class of some model makes of it
        version = import_module("transformers").__version__
        found = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}")
        raise InvalidInputError(f"{str(path)!r}: Transformers {version} refuses it ({found}); {FRESH_COPY}") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Transformers and PyTorch from advising on a config that is only read, and from bars of their own."""
    logging: Any = import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="torch")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
