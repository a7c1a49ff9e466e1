"""Whether the losses of two runs are of the same examples, coded alike."""

from __future__ import annotations

from typing import Any

from ppdgrow.comparison.history import RunHistory
from ppdgrow.config.architecture import TokenInput, VectorInput
from ppdgrow.errors import ConfigError


def refuse_incomparable(
    baseline: RunHistory, other: RunHistory, *, on_other_data: bool = False, advice: str = ""
) -> None:
    """Raise a ConfigError that names every difference unless both losses are of the same examples, coded alike.

    Where both are evaluated `on_other_data` too, they may differ in their own. `advice` is what to do if only that
    differs.
    """
    coding, of_data = _differences(baseline, other)
    differing = coding if on_other_data else [*of_data, *coding]
    if differing:
        raise ConfigError(
            f"cannot compare {baseline.name!r} with {other.name!r}, whose losses are not of the same examples "
            f"({'; '.join(differing)}): give runs on the same data, tokenizer, sequence length and task"
            f"{'' if coding else advice}"
        )


def same_data(one: RunHistory, other: RunHistory) -> bool:
    """Whether the figures of two runs that may be compared are of the same data."""
    return not _differences(one, other)[1]


def _differences(baseline: RunHistory, other: RunHistory) -> tuple[list[str], list[str]]:
    """In how examples are cut and coded, and in the examples themselves, each in words."""
    one, two = baseline.state.data, other.state.data
    known = one.sha256.keys() & two.sha256.keys()
    renamed = one.name != two.name and (not known or any(one.sha256[split] != two.sha256[split] for split in known))
    names = [f"data: {one.name!r} and {two.name!r}"] if renamed else []
    return _differing(_coding(baseline), _coding(other)), [*names, *_differing(_content(baseline), _content(other))]


def _differing(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """A key that one run lacks is not compared."""
    both = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    return [f"{key}: {_short(ours[key])} and {_short(theirs[key])}" for key in both]


def _short(value: Any) -> str:
    return f"{value[:12]}.." if isinstance(value, str) and len(value) == 64 else repr(value)


def _content(history: RunHistory) -> dict[str, Any]:
    """Of the data, what it holds: what it is called, and where it lay, says nothing."""
    data = history.state.data
    digests = {f"sha256 of the {split} split": digest for split, digest in data.sha256.items()}
    return {"validation examples": data.validation_examples, **digests}


def _coding(history: RunHistory) -> dict[str, Any]:
    """How it becomes examples."""
    data, spec = history.state.data, history.architecture.input
    coding: dict[str, Any] = {
        "task": history.architecture.task,
        "tokenizer": data.tokenizer,
        "sequence length": data.sequence_length,
    }
    if isinstance(spec, TokenInput):
        coding["vocabulary size"] = spec.vocabulary_size
    elif isinstance(spec, VectorInput):
        coding |= {"features": spec.features, "classes": spec.num_classes}
    else:
        size = f"{spec.channels}x{spec.height}x{spec.width}"
        coding |= {"image size": size, "classes": spec.num_classes}
    if history.recipe is not None and history.architecture.task == "mlm":
        coding["data.mask_fraction"] = history.recipe.data.mask_fraction
    return coding
