"""The model card of a grown folder: what it was made of, and how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdgrow.config.architecture import OWN_KEY
from ppdgrow.console.page import plain
from ppdgrow.pretrained.folder import PretrainedFolder
from ppdgrow.pretrained.recognition import in_run
from ppdgrow.pretrained.write import PARENT_CARD, Grown
from ppdgrow.provenance import provenance


def parent_name(path: Path) -> str:
    """A folder as people call it: `owner/name` from a hub cache, of a checkpoint `RUN/step-N`, else its own name."""
    path = path.resolve()
    if in_run(path):
        return f"{path.parent.parent.name}/{path.name}"
    if path.parent.name == "snapshots" and path.parent.parent.name.startswith("models--"):
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name


def model_card(folder: PretrainedFolder, grown: Grown, config: Mapping[str, Any]) -> str:
    """Markdown for README.md, below the front matter of the parent's card."""
    made = provenance()
    lineage = config.get(OWN_KEY, {}).get("lineage", [])
    function = "the parent's, identical to the bit" if grown.preserves else "not the parent's: train it on"
    card = f"The parent's card is {PARENT_CARD}." if (folder.path / "README.md").is_file() else ""
    return "\n".join(
        [
            f"# {plain(grown.out.name)}",
            "",
            f"{plain(parent_name(folder.path))}, made deeper with ppdgrow {made['ppdgrow']}. {card}".rstrip(),
            "",
            "| | |",
            "| --- | --- |",
            f"| model type | {plain(folder.model_type)} |",
            f"| layers | {grown.layers_before} -> {grown.layers_after} |",
            f"| parameters | {grown.parameters_before:,} -> {grown.parameters_after:,} |",
            f"| method | {grown.method} |",
            f"| after layers of the parent | {', '.join(map(str, grown.positions))} |",
            f"| new | {', '.join(map(plain, grown.ids))} |",
            f"| their first weights | {grown.theta_0} |",
            f"| function at growth | {function} |",
            "",
            "## Lineage",
            "",
            *(f"- {plain(json.dumps(entry, ensure_ascii=False))}" for entry in lineage),
            "",
            "## Command",
            "",
            f"    {made['command']}",
            "",
        ]
    )
