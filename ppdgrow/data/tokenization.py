"""Tokenisers: raw UTF-8 bytes to ids. Each is a pure function of the train split.

Text is cut at line ends before anything else, so that ids do not depend on how a text is divided into chunks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ppdgrow.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer as LibraryTokenizer

END_OF_LINE = "<eos>"
UNKNOWN = "<unk>"
MASKS = ("[MASK]", "<mask>")
CHUNK_CHARACTERS = 4_000
PARALLEL = "TOKENIZERS_PARALLELISM"  # said outright before the library is used, as it else warns when a process forks


class ByteTokenizer:
    """Every byte is a token; nothing is trained, so there is no `json` to keep."""

    size = 256
    json: str | None = None
    mask_id: int | None = None
    frame: tuple[int, int] | None = None

    def encode(self, raw: bytes, name: str) -> NDArray[np.uint8]:
        return np.frombuffer(bytearray(raw), dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD, here as below."""
        return bytes(ids).decode("utf-8", errors="replace")


class TrainedTokenizer:
    """A tokenizer of the `tokenizers` library with ids below `size`, kept whole as its JSON.

    `mask_id` is that of its mask token, `frame` those of the tokens around a whole text, if it has such.
    """

    def __init__(self, tokenizer: LibraryTokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.size = max(tokenizer.get_vocab().values(), default=-1) + 1
        special = {str(token.content): number for number, token in tokenizer.get_added_tokens_decoder().items()}
        self.mask_id = next((special[name] for name in MASKS if name in special), None)
        around = tokenizer.encode("").ids
        self.frame = (around[0], around[1]) if len(around) == 2 else None
        self.json = tokenizer.to_str()

    def encode(self, raw: bytes, name: str) -> NDArray[Any]:
        """Ids `(tokens,)` of a text in the smallest integer type; InvalidInputError by its `name` if it is no UTF-8."""
        encodings = self._tokenizer.encode_batch_fast(list(_chunks(_decode(raw, name))), add_special_tokens=False)
        dtype = np.int16 if self.size <= 2**15 else np.int32
        return np.concatenate([np.zeros(0, dtype), *(np.asarray(encoding.ids, dtype) for encoding in encodings)])

    def decode(self, ids: Sequence[int]) -> str:
        """The tokens as text; words, which have no decoder, with blanks between them and line ends as such."""
        text = self._tokenizer.decode(list(ids))
        return text if self._tokenizer.decoder is not None else text.replace(END_OF_LINE, "\n")


Tokenizer = ByteTokenizer | TrainedTokenizer


def make_tokenizer(spec: str, train_text: Callable[[], bytes]) -> Tokenizer:
    """The tokenizer that `byte`, `bpe:N` or `word` stands for, trained on the train split where it needs it.

    Raises:
        InvalidInputError: the train split is not UTF-8.
    """
    if spec == "byte":
        return ByteTokenizer()
    os.environ.setdefault(PARALLEL, "true")
    text = _decode(train_text(), "the train split")
    return TrainedTokenizer(_train_word(text) if spec == "word" else _train_bpe(text, int(spec.partition(":")[2])))


def load_tokenizer(json: str) -> Tokenizer:
    """A tokenizer from its JSON; InvalidInputError if that is none."""
    os.environ.setdefault(PARALLEL, "true")
    import tokenizers

    try:
        return TrainedTokenizer(tokenizers.Tokenizer.from_str(json))
    except Exception as error:  # the library raises bare Exception
        raise InvalidInputError(
            f"the tokenizer of the checkpoint cannot be read ({error}), expected JSON of the tokenizers library: "
            "use another checkpoint"
        ) from None


def _train_bpe(text: str, size: int) -> LibraryTokenizer:
    """Byte-level BPE (Sennrich et al. 2016; GPT-2's pre-tokenisation) of at most `size` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split("\n", behavior="merged_with_previous")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([lines, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(_chunks(text), trainer)
    return tokenizer


def _train_word(text: str) -> LibraryTokenizer:
    """Every word of the train split by falling frequency, a token for each line end, and one for unknown words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    counts = Counter(text.replace("\n", f" {END_OF_LINE} ").split())
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if UNKNOWN not in counts:
        words.append(UNKNOWN)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {END_OF_LINE} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _chunks(text: str) -> Iterator[str]:
    """The text in pieces of whole lines: short enough to encode in parallel, long enough to cost little."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + CHUNK_CHARACTERS) + 1 or len(text)
        yield text[start:end]
        start = end


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{name}: found byte 0x{raw[error.start]:02x} at offset {error.start}, expected UTF-8: "
            "convert the file, or use data.tokenizer byte"
        ) from None
