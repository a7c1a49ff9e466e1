"""Whether text, as it is tokenised and cut, is such as a model of Transformers takes."""

from __future__ import annotations

from pathlib import Path

from ppdgrow.checkpoint.format import TOKENIZER
from ppdgrow.config.architecture import PretrainedArchitecture
from ppdgrow.data import Dataset
from ppdgrow.data.text import TextDataset
from ppdgrow.data.tokenization import MASKS
from ppdgrow.errors import ConfigError, InvalidInputError


def refuse_other_text(dataset: Dataset, model: PretrainedArchitecture, folder: Path) -> None:
    """Hold ids, mask and length of the examples against the model of `folder`.

    Raises:
        InvalidInputError: its tokenizer cannot be read.
        ConfigError: it has more tokens than the model, no mask for the task, or the sequences are too long.
    """
    assert isinstance(dataset, TextDataset)
    file = folder / TOKENIZER
    try:
        tokenizer = dataset.tokenizer
    except InvalidInputError as error:
        raise InvalidInputError(f"{str(file)!r}: {error}") from None
    if dataset.task == "mlm" and tokenizer.mask_id is None:
        raise ConfigError(
            f"{str(file)!r} has no mask token ({' or '.join(MASKS)}), which the task mlm needs: add it with "
            "Transformers, and resize the embedding"
        )
    given = dataset.input_spec(1)
    if given.vocabulary_size > model.input.vocabulary_size:
        raise ConfigError(
            f"the tokenizer of {str(folder)!r} has {given.vocabulary_size:,} tokens, but its config.json a "
            f"vocabulary of {model.input.vocabulary_size:,}: resize the embedding with Transformers"
        )
    if model.longest is not None and given.sequence_length > model.longest:
        raise ConfigError(
            f"data.sequence_length is {given.sequence_length}, but {str(folder)!r} has {model.longest} positions: "
            f"use at most {model.longest}"
        )
