"""The console script, and `python -m ppdgrow`: signals are handled before anything heavy is imported."""

from __future__ import annotations

from typing import NoReturn

from ppdgrow.signals import end_at_signals


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    end_at_signals()
    from ppdgrow.cli import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
