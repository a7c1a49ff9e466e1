"""The results that the README and `recipes/RESULTS.md` show: generated, and in both the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "recipes" / "RESULTS.md"


def tables(text: str) -> list[list[str]]:
    return [table.splitlines() for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)]


def test_the_tables_of_the_readme_are_those_of_the_results() -> None:
    section = (ROOT / "README.md").read_text().partition("## The first experiment")[2].partition("\n## ")[0]
    shown = tables(section)
    assert len(shown) == 2
    assert all(table in tables(RESULTS.read_text()) for table in shown)


def test_every_picture_of_the_results_is_there() -> None:
    pictures = re.findall(r"!\[.*?\]\(<(.*?)>\)", RESULTS.read_text())
    assert pictures
    assert all((RESULTS.parent / picture).is_file() for picture in pictures)


def test_the_results_say_how_they_were_made() -> None:
    for page in re.split(r"^# ", RESULTS.read_text(), flags=re.MULTILINE)[1:]:
        for line in ("machine: ", "environment: torch ", "commit ", "sha256 of the validation split"):
            assert line in page, page.splitlines()[0]
