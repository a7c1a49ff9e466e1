# Sourced by the other scripts: a virtual environment with ppdgrow in it, made once. Not run by itself; takes the
# time that pip needs for PyTorch, a few minutes on a fresh machine.
PYTHON="${PYTHON:-python3}"
VENV="${PPDGROW_VENV:-.venv}"
EXTRAS="${PPDGROW_EXTRAS:-}"
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "error: ppdgrow needs Python 3.11 or newer, found $("$PYTHON" --version 2>&1): set PYTHON" >&2
    exit 2
fi
if [ ! -e "$VENV/installed$EXTRAS" ] || [ pyproject.toml -nt "$VENV/installed$EXTRAS" ]; then
    echo "installing ppdgrow into $VENV" >&2
    "$PYTHON" -m venv "$VENV"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".$EXTRAS"
    touch "$VENV/installed$EXTRAS"
fi
PATH="$VENV/bin:$PATH"
case "$VENV" in /*) ;; *) PATH="$PWD/$PATH" ;; esac
export PATH
