#!/bin/sh
# All checks: lint, format, types, tests. Makes its own virtual environment (.venv in the project, or PPDGROW_VENV).
# Run: sh tests/run.sh [pytest options]
set -eu
cd "$(dirname "$0")/.."
PPDGROW_EXTRAS="[dev]"
. recipes/environment.sh

ruff check .
ruff format --check .
mypy
exec python -m pytest --numprocesses 2 "$@"
