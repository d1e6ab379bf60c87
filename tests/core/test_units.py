import pytest

from llmgw.core.units import format_bytes, format_seconds


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (512 * 1024**2, "512 MiB"),
        (40 * 1024**3, "40 GiB"),
        (int(31.2 * 1024**3), "31.2 GiB"),
        (3 * 1024**5, "3072 TiB"),
        (-2048, "-2 KiB"),
    ],
)
def test_bytes_for_a_person(size: int, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.44, "0.4s"),
        (2.0, "2s"),
        (12.9, "12s"),
        (200.0, "3m20s"),
        (5 * 3600 + 120.0, "5h02m"),
        (3 * 86400 + 4 * 3600.0, "3d04h"),
    ],
)
def test_seconds_for_a_person(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
