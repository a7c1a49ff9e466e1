"""The files that `compare` writes on request: pictures and pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ppdgrow.comparison.compare import Comparison
from ppdgrow.comparison.plot import draw_comparison
from ppdgrow.comparison.report import report_page
from ppdgrow.console.picture import SUFFIXES, check_file, check_matplotlib, write_output
from ppdgrow.errors import ConfigError

HTML = ".html"
PAGES = (HTML, ".md")


@dataclass(frozen=True)
class OutputFiles:
    """Where pictures and pages go."""

    plot: Path | None = None
    reports: tuple[Path, ...] = ()

    def refuse_with(self, flag: str, *, test: bool) -> None:
        """Refuse what another flag leaves without meaning.

        Raises:
            ConfigError: something was given.
        """
        given = {"--plot": self.plot is not None, "--report": bool(self.reports), "--test": test}
        named = " and ".join(name for name, present in given.items() if present)
        if named:
            raise ConfigError(
                f"found {named} with {flag}, which decides between two runs and draws nothing: leave one of them out"
            )

    def check(self) -> None:
        """Refuse files that could not be written, before any work.

        Raises:
            ConfigError: a suffix is unknown, matplotlib is missing, or a file is named twice.
            StorageError: a folder is not there.
        """
        paths = [*([] if self.plot is None else [self.plot]), *self.reports]
        if len({path.resolve() for path in paths}) < len(paths):
            raise ConfigError(f"one file is named twice among {', '.join(repr(str(path)) for path in paths)}")
        if self.plot is not None:
            check_file(self.plot, "--plot", SUFFIXES)
            check_matplotlib("--plot")
        for path in self.reports:
            check_file(path, "--report", PAGES)
        if any(path.suffix.lower() == HTML for path in self.reports):
            check_matplotlib("--report FILE.html")

    def write(self, comparison: Comparison) -> Iterator[Path]:
        """Write the files, each whole or not at all.

        Raises:
            StorageError: the file system refused one; an older file is left as it was.
        """
        if self.plot is not None:
            write_output(self.plot, "--plot", draw_comparison(comparison, self.plot.suffix.lower().removeprefix(".")))
            yield self.plot
        embedded = any(path.suffix.lower() == HTML for path in self.reports)
        picture = draw_comparison(comparison, "svg") if embedded else None
        for path in self.reports:
            beside = None if self.plot is None else Path(os.path.relpath(self.plot, path.parent)).as_posix()
            page = report_page(comparison, picture, beside)
            text = page.html() if path.suffix.lower() == HTML else page.markdown()
            write_output(path, "--report", text.encode("utf-8"))
            yield path
