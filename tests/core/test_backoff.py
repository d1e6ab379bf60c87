"""Delays between retries."""

import random
from collections import Counter

import pytest

from llmgw.core import backoff
from llmgw.core.backoff import CAP_SECONDS, Backoff, delay_seconds, nominal_seconds, retry_after_seconds

DRAWS = 10_000


def test_nominal_doubles_up_to_the_cap() -> None:
    assert [nominal_seconds(attempt) for attempt in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_attempts_beyond_any_float_stay_at_the_cap() -> None:
    assert nominal_seconds(10**9) == CAP_SECONDS


@pytest.mark.parametrize("attempt", [0, 1, 4, 5, 6, 1000])
def test_a05_delays_spread_at_every_attempt_the_cap_included(attempt: int) -> None:
    """A05 (the unit half): they spread over at least half of the nominal delay, and at the cap no 100 ms bin holds more
    than 2 % of the draws. The fleet that reconnects after an outage is tested with the dialler."""
    rng = random.Random(5)
    draws = [delay_seconds(attempt, rng) for _ in range(DRAWS)]
    nominal = nominal_seconds(attempt)
    assert min(draws) > 0
    assert max(draws) <= nominal
    assert max(draws) - min(draws) >= nominal / 2
    if nominal == CAP_SECONDS:
        assert max(Counter(int(draw * 10) for draw in draws).values()) <= 0.02 * DRAWS


def test_another_base_and_cap() -> None:
    assert [nominal_seconds(attempt, base=10, cap=300) for attempt in range(7)] == [10, 20, 40, 80, 160, 300, 300]


def test_a_time_to_come_back_at_is_obeyed_and_spread() -> None:
    draws = [retry_after_seconds(30, random.Random(seed)) for seed in range(1000)]
    assert min(draws) >= 30
    assert max(draws) <= 45
    assert max(draws) - min(draws) > 14


@pytest.mark.parametrize(("asked", "least", "most"), [(0, 0, 0), (-5, 0, 0), (1e9, 300, 450)])
def test_a_senseless_time_to_come_back_at_is_bounded(asked: float, least: float, most: float) -> None:
    assert least <= retry_after_seconds(asked, random.Random(1)) <= most


def test_backoff_grows_until_reset() -> None:
    delays = Backoff(random.Random(2))
    for attempt in range(8):
        nominal = nominal_seconds(attempt)
        assert backoff.LEAST_SHARE * nominal <= delays.next_seconds() <= nominal
    assert delays.attempt == 8
    delays.reset()
    assert delays.next_seconds() <= 1
