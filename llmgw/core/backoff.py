"""How long to wait before the next try. Shared by whoever tries again: agent, router, reconciler.

Delays double up to a cap and are drawn **after** the cap is applied: jitter that is added before it vanishes there,
and after an outage everybody would dial in the same second.
"""

from typing import Protocol

import attrs

BASE_SECONDS = 1.0
"""Nominal delay before the first retry."""

CAP_SECONDS = 30.0
"""Nominal delay from the sixth retry on: short enough that a fleet is back a minute after control is."""

LEAST_SHARE = 0.1
"""Of the nominal delay: never a retry at once, and nine tenths of it to spread over."""

RETRY_AFTER_SECONDS_MAX = 300.0
"""The longest that a peer can send us away; a larger number is more likely a mistake than a plan."""

RETRY_AFTER_SPREAD = 1.5
"""A time to come back at is stretched by up to this factor, so that all who were sent away do not return as one."""

DOUBLINGS_MAX = 64
"""Enough for any cap; keeps the power of two a finite float."""


class Uniform(Protocol):
    """The one thing that is asked of a random number generator (`random.Random` is one)."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between a and b."""
        ...


def nominal_seconds(attempt: int, *, base: float = BASE_SECONDS, cap: float = CAP_SECONDS) -> float:
    """The longest delay before retry number `attempt`, counted from 0."""
    return float(min(cap, base * 2.0 ** min(attempt, DOUBLINGS_MAX)))


def delay_seconds(attempt: int, rng: Uniform, *, base: float = BASE_SECONDS, cap: float = CAP_SECONDS) -> float:
    """The delay before retry number `attempt`, counted from 0: between a tenth of the nominal one and the whole."""
    nominal = nominal_seconds(attempt, base=base, cap=cap)
    return rng.uniform(LEAST_SHARE * nominal, nominal)


def retry_after_seconds(asked: float, rng: Uniform) -> float:
    """The delay that obeys a peer's "come back after": at least that long, at most half as long again."""
    at_least = min(max(asked, 0.0), RETRY_AFTER_SECONDS_MAX)
    return rng.uniform(at_least, RETRY_AFTER_SPREAD * at_least)


@attrs.define
class Backoff:
    """The delays of one thing that is tried for ever. `next_seconds` draws one; `reset` starts again at the base."""

    rng: Uniform
    base: float = BASE_SECONDS
    cap: float = CAP_SECONDS
    attempt: int = 0
    """Tries since the last success."""

    def next_seconds(self) -> float:
        """The delay before the next try, which is then counted."""
        delay = delay_seconds(self.attempt, self.rng, base=self.base, cap=self.cap)
        self.attempt += 1
        return delay

    def reset(self) -> None:
        """It worked."""
        self.attempt = 0
