"""Whether a path stands for a folder of Transformers, and for which, without reading what is in it."""

from __future__ import annotations

from pathlib import Path

from ppdgrow.checkpoint import RunFolder, locate_checkpoint
from ppdgrow.checkpoint.format import MANIFEST, STEP_NAME
from ppdgrow.checkpoint.safe_read import MAX_JSON_BYTES, PLAIN_NAME
from ppdgrow.checkpoint.shards import INDEX, SINGLE
from ppdgrow.pretrained.refusals import ADAPTER, CONFIG


def is_pretrained(path: Path) -> bool:
    """Whether a folder is meant for Transformers, also one that `read_folder` refuses: an adapter, a GGUF file."""
    path = snapshot(path)
    if (path / ADAPTER).is_file() or any(path.glob("*.gguf")):
        return True
    if in_run(path):
        return False
    if (path / MANIFEST).exists():  # a copy of a checkpoint, which for Transformers is a folder of its own
        return _names_model_type(path)
    if (path / SINGLE).exists() or (path / INDEX).exists():
        return True  # whatever its config.json says
    return _names_model_type(path)


def in_run(path: Path) -> bool:
    """Whether a folder is a checkpoint in a run folder."""
    path = path.resolve()
    return path.parent.name == "checkpoints" and STEP_NAME.fullmatch(path.name) is not None


def _names_model_type(path: Path) -> bool:
    try:
        return b'"model_type"' in (path / CONFIG).read_bytes()[:MAX_JSON_BYTES]
    except OSError:
        return False


def pretrained_folder(path: Path) -> Path | None:
    """The folder of Transformers that a path stands for: itself, or of a run that trained one its newest checkpoint.

    Raises:
        InvalidInputError: no checkpoint of such a run is whole.
    """
    if is_pretrained(path):
        return path
    try:
        found = any(map(_names_model_type, RunFolder(path).checkpoints() or [path]))
    except OSError:
        return None
    return locate_checkpoint(path)[1] if found else None


def snapshot(path: Path) -> Path:
    """The snapshot that a repository's folder in a hub cache stands for, that of `main`; else the path itself."""
    main = path / "refs" / "main"
    try:
        revision = main.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return path
    found = path / "snapshots" / revision
    return found if PLAIN_NAME.fullmatch(revision) and found.is_dir() else path
