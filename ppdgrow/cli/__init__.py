"""The command line: four commands, their options and what they print. `main` is the console script.

May import everything; what needs torch only inside the commands.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from ppdgrow.cli import compare, grow, probe, train
from ppdgrow.cli.app import add_command, new_app, run

EXAMPLE = """
ppdgrow train --layers 6 --steps 1000 --no-decay --out runs/shallow
ppdgrow grow runs/shallow --pair attention --pairs 3 --out runs/grown
ppdgrow probe runs/grown
ppdgrow train runs/grown --steps 1000 --out runs/grown-trained
ppdgrow train --layers 12 --steps 2000 --out runs/baseline
ppdgrow compare runs/baseline runs/grown-trained
"""


# The commands, in the order of the help: modules with a NAME, an EXAMPLE and a function `run`.
COMMANDS = (train, grow, probe, compare)


def build_app() -> typer.Typer:
    app = new_app(EXAMPLE)
    for module in COMMANDS:
        add_command(app, module.run, name=module.NAME, example=module.EXAMPLE)
    return app


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    sys.exit(run(build_app()))
