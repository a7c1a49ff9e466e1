"""`python -m ppdgrow` is the same as `ppdgrow`."""

from ppdgrow.cli import main

main()
