"""The model card of a run folder: what the model is, where it comes from, how to go on with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppdgrow.checkpoint.events import is_kept
from ppdgrow.config.architecture import Architecture
from ppdgrow.config.state import TrainerState
from ppdgrow.console.page import plain
from ppdgrow.nn.cost import count_parameters, flops_per_token, half_steps


def model_card(
    name: str, architecture: Architecture, state: TrainerState, lineage: Sequence[dict[str, Any]], recipe: str
) -> str:
    """Markdown for `RUN/README.md`, the recipe embedded."""
    figures = state.validation
    lines = [
        f"# {name}",
        "",
        f"A {architecture.family} ({architecture.stream} stream, task {architecture.task}) trained with ppdgrow.",
        "",
        "| | |",
        "| --- | --- |",
        f"| layers | {architecture.num_layers} |",
        f"| width | {architecture.width} |",
        f"| parameters | {count_parameters(architecture):,} |",
        f"| FLOPs per token, forward | {flops_per_token(architecture):,} |",
        f"| half-steps | {half_steps(architecture)} |",
        f"| optimizer steps | {state.step:,} |",
        f"| training tokens | {state.ledger.tokens:,} |",
        f"| training FLOPs | {state.ledger.flops:.4g} |",
        f"| data | {state.data.name}, tokenizer {state.data.tokenizer or 'none'} |",
        f"| environment | torch {state.environment.torch}, {state.environment.device}, "
        f"{state.environment.precision}, {state.environment.threads} threads |",
    ]
    if state.ledger.trials.flops:
        lines.append(f"| FLOPs of trials, in addition | {state.ledger.trials.flops:.4g} |")
    if figures is not None:
        lines.append(f"| validation loss | {figures.loss:.6f} nats |")
        lines.append(f"| validation accuracy | {figures.accuracy:.4f} |")
        lines += [
            f"| - of {plain(name)} | {accuracy:.4f} |" for name, accuracy in (figures.class_accuracy or {}).items()
        ]
    lines += ["", "## Lineage", ""]
    told = [text for text in map(describe_event, lineage) if text]
    lines += [f"- {text}" for text in told] or ["- trained from scratch"]
    lines += ["", "## Recipe", "", "```yaml", recipe.rstrip("\n"), "```", ""]
    return "\n".join(lines)


def describe_event(event: dict[str, Any]) -> str | None:
    """One lineage event as a line of text; None for those that another line tells already."""
    step = event.get("step")
    kind = event.get("event")
    if kind in ("check", "twin"):
        return None
    if kind == "diverged":
        return f"step {step}: diverged"
    if kind == "skip":
        return f"step {step}: growth {event.get('growth')} was not tried: {event.get('reason')}"
    if kind == "decision":
        kept = "kept" if event.get("decision") == "accept" else "rejected"
        return (
            f"step {event.get('until')}: trial {event.get('trial')} {kept} by the {event.get('rule')} rule, validation "
            f"loss {event.get('loss_before')} before and {event.get('loss_after')} after"
        )
    if kind == "grow" and not is_kept(event):
        return (
            f"step {step}: trial {event.get('trial')}, {event.get('layers_before')} to {event.get('layers_after')} "
            f"layers by method {event.get('method')}"
        )
    if kind == "grow":
        return (
            f"step {step}: grown from {event.get('layers_before')} to {event.get('layers_after')} layers by method "
            f"{event.get('method')}, blocks {', '.join(map(str, event.get('ids', [])))}, "
            f"validation loss {event.get('loss_before')} before and {event.get('loss_after')} after"
        )
    if kind == "remove":
        return f"step {step}: {', '.join(map(str, event.get('ids', [])))} removed"
    origin = f"from {Path(event['parent']).as_posix()}" if event.get("parent") else "from scratch"
    return f"step {step}: training {origin} for {event.get('steps')} steps, seed {event.get('seed')}"
