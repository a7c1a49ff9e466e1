"""Checkpoints that are changed behind the back of the program."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint import RunFolder, read_checkpoint, write_checkpoint


def seal(folder: Path) -> None:
    """Write the manifest anew, so that what is wrong inside has to be found by looking inside."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        entry |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def damage(run: Path, change: Any) -> None:
    """Rewrite a run's checkpoint, manifest and all, with other weights."""
    folder = RunFolder(run).newest_valid()
    assert folder is not None
    checkpoint = read_checkpoint(folder)
    write_checkpoint(folder, dataclasses.replace(checkpoint, tensors=change(checkpoint.tensors)))
