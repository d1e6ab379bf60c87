"""Types for values with a unit: written with it in TOML (`"180s"`, `"40GiB"`), plain numbers inside."""

from typing import NewType

Duration = NewType("Duration", float)
"""Seconds."""

Size = NewType("Size", int)
"""Bytes."""

KIBI = 1024
MINUTE, HOUR, DAY = 60, 3600, 86400
SHORT_SECONDS = 10
"""Below it a tenth of a second matters to a person."""


def format_bytes(size: int) -> str:
    """`40 GiB`, `31.2 GiB`, `512 MiB`: what a person compares, at most one decimal."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < KIBI:
            return f"{value:.1f}".removesuffix(".0") + f" {unit}"
        value /= KIBI
    return f"{value:.1f}".removesuffix(".0") + " TiB"


def format_seconds(seconds: float) -> str:
    """`0.4s`, `12s`, `3m20s`, `5h02m`, `3d04h`: an age or a delay for a person."""
    if seconds < SHORT_SECONDS:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(seconds)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02d}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02d}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02d}h"
