"""Types for values with a unit. In TOML they are written with it (`"180s"`, `"40GiB"`); inside they are plain numbers."""

from typing import NewType

Duration = NewType("Duration", float)
"""Seconds."""

Size = NewType("Size", int)
"""Bytes."""


def format_bytes(size: int) -> str:
    """`40 GiB`, `31.2 GiB`, `512 MiB`: what a person compares, at most one decimal."""
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):  # noqa: B007
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def format_seconds(seconds: float) -> str:
    """`0.4s`, `12s`, `3m20s`, `5h02m`, `3d04h`: an age or a delay for a person."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
