"""Figures with their units, in three significant digits."""

from __future__ import annotations

from collections.abc import Sequence

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def format_count(count: float) -> str:
    """999, 1.5 k, 2.3 M, 70 B."""
    return _scaled(count, ("", " k", " M", " B", " T"))


def format_bytes(size: float) -> str:
    """999 B, 12.3 MB, 860 GB."""
    return _scaled(size, [f" {prefix}B" for prefix in _PREFIXES])


def format_flops(flops: float) -> str:
    """13.9 MFLOP."""
    return _scaled(flops, [f" {prefix}FLOP" for prefix in (*_PREFIXES, "Z")])


def _scaled(value: float, units: Sequence[str]) -> str:
    size = 0
    while abs(value) >= 999.5 and size < len(units) - 1:
        value, size = value / 1000, size + 1
    return f"{value:.3g}{units[size]}" if abs(value) < 999.5 else f"{value:.0f}{units[size]}"


def format_seconds(seconds: float) -> str:
    """`8.4 s`, `41 s`, `1 m 51 s`, `2 h 3 m 5 s`, `1 d 4 h 0 m`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h {minutes} m"
    if hours:
        return f"{hours} h {minutes} m {rest} s"
    return f"{minutes} m {rest} s" if minutes else f"{rest} s"
