"""Whether the losses of two runs are of the same examples, coded alike."""

from __future__ import annotations

from typing import Any

from ppdgrow.comparison.history import RunHistory
from ppdgrow.config.architecture import TokenInput, VectorInput
from ppdgrow.errors import ConfigError

TASK = "task"
DATA = "data"


def refuse_incomparable(
    baseline: RunHistory, other: RunHistory, *, on_other_data: bool = False, advice: str = ""
) -> None:
    """Raise a ConfigError that names every difference unless both losses are of the same examples, coded alike.

    Of runs that are then evaluated `on_other_data` only the task must agree. `advice` is for those whose task does.
    """
    found = differences(baseline, other)
    differing = [f"{key}: {_short(one)} and {_short(two)}" for key, (one, two) in found.items()]
    if TASK in found or (differing and not on_other_data):
        raise ConfigError(
            f"cannot compare {baseline.name!r} with {other.name!r}, whose losses are not of the same examples "
            f"({'; '.join(differing)}): give runs on the same data, tokenizer, sequence length and task"
            f"{'' if TASK in found else advice}"
        )


def are_comparable(one: RunHistory, other: RunHistory) -> bool:
    """Whether the losses of two runs are of the same examples, coded alike."""
    return not differences(one, other)


def differences(one: RunHistory, other: RunHistory) -> dict[str, tuple[Any, Any]]:
    """What decides which examples a loss is of and differs, with both values; a key that one lacks is not compared.

    Of the data that is its content: what it is called, and where it lay, says nothing where that is known.
    """
    digests = [history.state.data.sha256 for history in (one, other)]
    known = digests[0].keys() & digests[1].keys()
    same = all(digests[0][split] == digests[1][split] for split in known) if known else None
    names = {DATA: (one.state.data.name, other.state.data.name)} if not same else {}
    ours, theirs = _identity(one), _identity(other)
    both = names | {key: (ours[key], theirs[key]) for key in ours if key in theirs}
    return {key: (first, second) for key, (first, second) in both.items() if first != second}


def _identity(history: RunHistory) -> dict[str, Any]:
    data, spec = history.state.data, history.architecture.input
    identity: dict[str, Any] = {
        TASK: history.architecture.task,
        "tokenizer": data.tokenizer,
        "sequence length": data.sequence_length,
        "validation examples": data.validation_examples,
    }
    identity |= {f"sha256 of the {split} split": digest for split, digest in data.sha256.items()}
    if isinstance(spec, TokenInput):
        identity["vocabulary size"] = spec.vocabulary_size
    elif isinstance(spec, VectorInput):
        identity |= {"features": spec.features, "classes": spec.num_classes}
    else:
        size = f"{spec.channels}x{spec.height}x{spec.width}"
        identity |= {"image size": size, "classes": spec.num_classes}
    if history.recipe is not None and history.architecture.task == "mlm":
        identity["data.mask_fraction"] = history.recipe.data.mask_fraction
    return identity


def _short(value: Any) -> str:
    return f"{value[:12]}.." if isinstance(value, str) and len(value) == 64 else repr(value)
