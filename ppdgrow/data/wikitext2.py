"""`wikitext2`: WikiText-2 at word level (Merity et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterable

from ppdgrow.data.dataset import Split
from ppdgrow.data.location import data_directory, download, missing_data, reading
from ppdgrow.data.text import TextDataset

FOLDER = "wikitext-2"
FILES: dict[Split, str] = {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"}
HUB = ("Salesforce/wikitext", "wikitext-2-v1")


class WikiText2(TextDataset):
    """The files `wikitext-2/{train,valid,test}.txt` below the data directory, else the hub's copy."""

    name = "wikitext2"
    default_tokenizer = "bpe:4096"

    def read(self, split: Split) -> bytes:
        """The text of the official release."""
        folder = data_directory(self.config)
        if folder is None:
            return join_rows(download(self.name, *HUB, split)["text"])
        path = folder / FOLDER / FILES[split]
        if not path.is_file():
            raise missing_data(self.name, repr(str(path)))
        with reading(self.name, path):
            return path.read_bytes()


def join_rows(rows: Iterable[str]) -> bytes:
    """The official file from the hub's rows, which hold a blank line (` \\n`) as an empty string."""
    return "".join(row or " \n" for row in rows).encode()
