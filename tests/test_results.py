"""The results that the README and `recipes/RESULTS.md` show: generated, and the same in both."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "recipes" / "RESULTS.md"


def tables(text: str) -> list[list[str]]:
    return [table.splitlines() for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)]


def cells(table: list[str]) -> dict[tuple[str, str], str]:
    """Each cell by the first one of its row and the head of its column."""
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]
    return {(row[0], name): cell for row in rows for name, cell in zip(head, row, strict=True)}


def test_the_table_of_the_readme_is_a_part_of_that_of_the_results() -> None:
    section = (ROOT / "README.md").read_text().partition("## The first experiment")[2].partition("\n## ")[0]
    (shown,) = tables(section)
    whole = cells(tables(RESULTS.read_text())[0])
    assert cells(shown).items() <= whole.items()
    assert {arm for arm, _ in cells(shown)} >= {"scratch-12", "attention", "zero", "scratch-6"}

    # Negative control: a figure that is off in its last digit.
    assert not cells([line.replace("1.5279", "1.5278") for line in shown]).items() <= whole.items()


def test_the_table_of_the_second_experiment_is_that_of_its_page() -> None:
    section = (ROOT / "README.md").read_text().partition("## The second experiment")[2].partition("\n## ")[0]
    (shown,) = tables(section)
    page = RESULTS.read_text().partition("# wikitext2: 4 arms against 2-layers-small")[2]
    whole = cells(tables(page)[0])
    assert cells(shown).items() <= whole.items()
    assert not cells([line.replace("1.5819", "1.5818") for line in shown]).items() <= whole.items(), "control"


def test_every_picture_of_the_results_is_there() -> None:
    pictures = re.findall(r"!\[.*?\]\(<(.*?)>\)", RESULTS.read_text())
    assert pictures
    assert all((RESULTS.parent / picture).is_file() for picture in pictures)


def test_the_results_say_how_they_were_made() -> None:
    for page in re.split(r"^# ", RESULTS.read_text(), flags=re.MULTILINE)[1:]:
        for line in ("machine: ", "environment: torch ", "commit ", "sha256 of the validation split"):
            assert line in page, page.splitlines()[0]
