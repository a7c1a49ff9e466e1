"""Tiny folders of Transformers that read text, the text, and runs that trained such folders a little."""

from __future__ import annotations

import atexit
import random
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny_models import MODELS, VOCABULARY, make_folder, transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import ppdgrow
from ppdgrow.data import Batch
from ppdgrow.training.context import Setting, checkpoint_setting, load_parent

SPECIAL = ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]")
PAD, CLS, SEP, MASK = range(1, 5)
FAMILIES = tuple(name for name in MODELS if name != "vit")
AUTO = {True: "AutoModelForCausalLM", False: "AutoModelForMaskedLM"}  # by whether it is a decoder
LENGTH = 16
VALUES: Mapping[str, Any] = {
    "data.sequence_length": LENGTH,
    "train.batch_size": 4,
    "train.eval_batches": 2,
    "train.eval_every": 2,
    "train.save_every": 2,
    "train.warmup_steps": 1,
    "train.lr": 1e-3,
}


def tiny(*more: str) -> list[str]:
    """Options of a tiny run on `words.txt`, and further ones, which go before."""
    given = {word.partition("=")[0] for word in more}
    words = [word for key, value in VALUES.items() if key not in given for word in ("-o", f"{key}={value}")]
    return [*words, *(() if "--data" in more else ("--data", "words.txt")), *more]


TINY = tiny()


def write_text(path: Path = Path("words.txt"), *, lines: int = 300) -> Path:
    """Lines of eight words, of which each has two likely successors."""
    draw = random.Random(0)
    words = VOCABULARY - len(SPECIAL)
    text, word = [], 0
    for _ in range(lines):
        line = []
        for _ in range(8):
            word = (3 * word + draw.choice((1, 2))) % words
            line.append(f"w{word}")
        text.append(" ".join(line))
    path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return path


def tokenizer_json(
    *, mask: str | None = "[MASK]", frame: bool = True, cuts: bool = False, size: int = VOCABULARY
) -> str:
    """A tokenizer of words.

    Args:
        mask: its mask token, None for one without.
        frame: whether it puts [CLS] and [SEP] around a text.
        cuts: whether it is set to cut each text to a few tokens and to fill it up, as many on the hub are.
        size: of the vocabulary.
    """
    special = [name for name in (*SPECIAL[:-1], mask) if name is not None]
    words = [f"w{number}" for number in range(size - len(special))]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate([*special, *words])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    if frame:
        ends = [("[CLS]", CLS), ("[SEP]", SEP)]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    if cuts:
        tokenizer.enable_truncation(6)
        tokenizer.enable_padding(length=6, pad_id=PAD, pad_token="[PAD]")
    return tokenizer.to_str()


def text_folder(name: str, path: Path, *, tokenizer: Mapping[str, Any] | None = None, **options: Any) -> Path:
    """A tiny model of a family with a tokenizer, which frames and cuts a text where the model is an encoder."""
    folder = make_folder(name, path, **options)
    encoder = not MODELS[name].decoder
    add_tokenizer(folder, **{"frame": encoder, "cuts": encoder, **(tokenizer or {})})
    return folder


def add_tokenizer(folder: Path, **options: Any) -> None:
    (folder / "tokenizer.json").write_text(tokenizer_json(**options), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")


@cache
def trained(name: str, *, pairs: bool = False, **options: Any) -> tuple[Path, Path]:
    """A folder and a run of two steps on it, made once for all tests, which only read them.

    Each step is evaluated and saved. With `pairs` the folder has them, and only they were trained. `options` are those
    of `make_folder`.
    """
    kept = tempfile.TemporaryDirectory()
    atexit.register(kept.cleanup)
    place = Path(kept.name)
    folder = text_folder(name, place / "parent", **options)
    if pairs:
        ppdgrow.grow(folder, pair="attention,ffn", pairs=2, out=place / "grown", quiet=True)
        folder = place / "grown"
    write_text(place / "words.txt")
    train_two_steps(folder, place / "run", pairs=pairs)
    return folder, place / "run"


def train_two_steps(folder: Path, out: Path, *, pairs: bool = False) -> dict[str, Any]:
    """What `trained` does; once more, it is the same command."""
    values = {**VALUES, "data.name": str(folder.parent / "words.txt"), "train.only": "pairs" if pairs else "all"}
    values |= {"train.steps": 2, "train.eval_every": 1, "train.save_every": 1, "train.clip_norm": 1e6}
    return ppdgrow.train(folder, values=values, out=out, quiet=True)


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def setting_of(run: Path) -> Setting:
    """Data and recipe of a run."""
    return checkpoint_setting(load_parent(run), device="cpu", precision=None, data_dir=None)


def plain_model(folder: Path, name: str) -> Any:
    """The model of a folder by Transformers alone, in the type that its config asks for."""
    auto = getattr(transformers(), AUTO[MODELS[name].decoder])
    model, report = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def plain_loss(model: Any, batch: Batch) -> torch.Tensor:
    """The loss by Transformers' own function, mean over the targets of a batch."""
    labels = {"labels": batch.targets}
    if (batch.targets >= 0).all():  # of the next tokens: it would shift labels that are the inputs
        labels = {"labels": batch.inputs, "shift_labels": batch.targets}
    loss: torch.Tensor = model(input_ids=batch.inputs, use_cache=False, **labels).loss
    return loss
