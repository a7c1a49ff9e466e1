"""The tokenizer of a folder as training uses it: no setting of it cuts the text, its own mask, its own frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from text_folders import CLS, LENGTH, MASK, SEP, SPECIAL, setting_of, step_folder, tokenizer_json, trained, write_text
from tiny_models import VOCABULARY

from ppdgrow.config.kinds import Task
from ppdgrow.config.schema import DataConfig
from ppdgrow.data import NO_TARGET, Batch, open_dataset
from ppdgrow.data.text import TextDataset
from ppdgrow.data.tokenization import ByteTokenizer, load_tokenizer

CPU = torch.device("cpu")


def dataset(place: Path, task: Task, **options: Any) -> TextDataset:
    name = str(write_text(place / "words.txt"))
    config = DataConfig(name=name, sequence_length=LENGTH, tokenizer="pretrained:00000000")
    found = open_dataset(config, task, tokenizer_json(**options))
    assert isinstance(found, TextDataset)
    return found


def batches(data: TextDataset, number: int = 30) -> list[Batch]:
    source = data.batches("train", batch_size=8, seed=0, device=CPU)
    return [source.at(step) for step in range(1, number + 1)]


def test_no_setting_of_the_tokenizer_cuts_the_text(tmp_path: Path) -> None:
    data = dataset(tmp_path, "mlm", cuts=True)
    words = (tmp_path / "words.txt").read_text().split()
    ids = [int(word[1:]) + len(SPECIAL) for word in words]
    streams = [data.stream(split).tokens.tolist() for split in ("train", "validation", "test")]
    assert sorted(token for stream in streams for token in stream) == sorted(ids)
    assert load_tokenizer(tokenizer_json(cuts=True)).encode(" ".join(words).encode(), "").tolist() == ids
    assert not data.warnings


def test_the_tokenizer_of_a_step_is_that_of_the_folder() -> None:
    """With its settings, by which others use it."""
    folder, run = trained("bert")
    given = (folder / "tokenizer.json").read_bytes()
    assert b'"max_length":6' in given
    assert (step_folder(run, 2) / "tokenizer.json").read_bytes() == given


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_masks_within_the_frame(mask: str, tmp_path: Path) -> None:
    data = dataset(tmp_path, "mlm", mask=mask)
    assert data.input_spec(1).vocabulary_size == VOCABULARY
    found = batches(data)
    inputs, targets = torch.cat([batch.inputs for batch in found]), torch.cat([batch.targets for batch in found])
    assert (inputs[:, 0] == CLS).all()
    assert (inputs[:, -1] == SEP).all()
    assert (targets[:, [0, -1]] == NO_TARGET).all()
    chosen = targets != NO_TARGET
    assert chosen.any(dim=1).all()
    assert float(chosen[:, 1:-1].double().mean()) == pytest.approx(0.15, abs=0.02)
    assert float((inputs == MASK)[chosen].double().mean()) == pytest.approx(0.8, abs=0.05)
    assert not (inputs == MASK)[~chosen].any()
    assert int(targets[chosen].min()) >= len(SPECIAL)  # nothing of the frame is to be guessed
    assert int(inputs.max()) < VOCABULARY


def test_all_but_the_frame_may_be_masked(tmp_path: Path) -> None:
    data = dataset(tmp_path, "mlm")
    data.config = data.config.model_copy(update={"mask_fraction": 1.0})
    for batch in batches(data, 3):
        assert (batch.targets != NO_TARGET).sum(dim=1).eq(LENGTH - 2).all()


def test_the_frame_takes_the_place_of_two_tokens(tmp_path: Path) -> None:
    """Control: the same windows, with and without a frame."""
    framed, plain = (batches(dataset(tmp_path, "mlm", frame=frame)) for frame in (True, False))
    one, other = (torch.where(b.targets == NO_TARGET, b.inputs, b.targets) for b in (framed[0], plain[0]))
    assert torch.equal(one[:, 1:-1], other[:, 1:-1])
    assert not (other[:, 0] == CLS).any()
    assert (torch.cat([batch.targets for batch in plain])[:, [0, -1]] != NO_TARGET).any()


def test_next_tokens_have_no_frame(tmp_path: Path) -> None:
    data = dataset(tmp_path, "lm", frame=True, cuts=True)
    stream = data.stream("train").tokens.tolist()
    for batch in batches(data, 3):
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
            window = [*inputs, targets[-1]]
            assert inputs[1:] == targets[:-1]
            assert any(stream[at : at + LENGTH + 1] == window for at in range(len(stream)))


def test_evaluation_is_framed_too() -> None:
    for batch in setting_of(trained("roberta")[1]).evaluation():
        assert (batch.inputs[:, 0] == CLS).all()
        assert (batch.targets[:, [0, -1]] == NO_TARGET).all()


def test_tokenizers_of_our_own_have_neither_mask_nor_frame(tmp_path: Path) -> None:
    """As it was before there were others: the mask is the id behind the last token."""
    config = DataConfig(name=str(write_text(tmp_path / "words.txt")), sequence_length=LENGTH)
    for spec in ("byte", "word", "bpe:300"):
        data = open_dataset(config.model_copy(update={"tokenizer": spec}), "mlm")
        assert isinstance(data, TextDataset)
        tokenizer = data.tokenizer
        assert (tokenizer.mask_id, tokenizer.frame) == (None, None)
        assert data.input_spec(1).vocabulary_size == tokenizer.size + 1
        (batch,) = batches(data, 1)
        assert (batch.inputs == tokenizer.size).any()
        assert isinstance(tokenizer, ByteTokenizer) == (spec == "byte")
