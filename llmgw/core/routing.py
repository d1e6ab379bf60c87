"""What a router may send to, and which of it is chosen. Control publishes by it, routers obey it."""

import enum
from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

import attrs


class EndpointState(enum.StrEnum):
    """What control (or the router itself) thinks of an endpoint."""

    READY = "ready"
    WARMING = "warming"
    """Ready, and without a completion since: one request at a time."""
    SUSPECT = "suspect"
    """Chosen only where nothing better is ready."""
    DRAINING = "draining"
    """Nothing new; what is in flight is finished."""
    OUT = "out"
    """Not chosen; the reason is shown."""


@attrs.frozen
class Endpoint:
    """One address that serves one model, as control publishes it. At most one epoch of a replica is in a table."""

    id: str
    """The replica id; for a static endpoint `<model>@<url>`."""
    model: str
    """Catalog name."""
    address: str
    """Base URL without a trailing slash or `/v1`: `http://127.0.0.1:20000`, `http://[::1]:9000`."""
    epoch: int = 0
    """0 for a static endpoint."""
    state: str = EndpointState.READY.value
    """A name of `EndpointState`; an unknown one counts as `out`."""
    reason: str = ""
    """Why it is in that state, for a person."""
    upstream_model: str = ""
    """The name the engine knows the model by, put into the request; empty: left as the client wrote it."""
    key: str = ""
    """The engine's own key, sent as `Authorization: Bearer`; empty: none. Secret."""


@attrs.frozen
class Unavailable:
    """Why a model has no endpoint now, and when asking again makes sense."""

    reason: str
    """`loading: ...` or `failed: ...` or `pending: ...`: told to the client in the 503."""
    retry_after_seconds: float = 5.0


@attrs.frozen
class RoutedModel:
    """What a router knows of a model besides its endpoints."""

    name: str
    aliases: tuple[str, ...] = ()
    created: int = 0
    """Unix seconds, for `/v1/models`."""
    exact_usage: bool = False
    unavailable: Unavailable | None = None
    """Set while control knows no usable endpoint."""


@attrs.frozen
class ClientKey:
    """A client's key: only its hash travels and is kept."""

    name: str
    sha256: str
    """64 hex digits of the SHA-256 of the key."""
    models: tuple[str, ...] = ()
    """Catalog names it may use; empty: all."""


@attrs.define(eq=False)
class Load:
    """What one router has seen of one launch of an endpoint. It outlives the endpoint's place in a table."""

    in_flight: int = 0
    """Requests from their being sent until their last byte."""
    completed_at: float | None = None
    """When an answer last ended well, by the router's clock; None: never yet."""
    suspect_until: float = 0.0
    """Until then it is chosen only where nothing better is ready."""
    trouble: str = ""
    """Why, for a person."""
    watched: bool = False
    """Somebody waits for it to become idle: it drains, or is in no table any more."""


@attrs.define(eq=False)
class Target:
    """An endpoint of the table, with its load."""

    endpoint: Endpoint
    load: Load


@attrs.frozen
class Refusal:
    """Why none can be chosen, for a person; empty where there is none to choose from."""

    reason: str = ""


T = TypeVar("T")


class Draw(Protocol):
    """What is used of a `random.Random`."""

    def random(self) -> float:
        """A number from 0 up to and without 1."""

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """`k` different members."""


SCANNED_MAX = 64
"""Of more endpoints than that, so many drawn ones are compared: the least of 64 is as good, and never costs more."""

REASONS_MAX = 5
"""Endpoints that a refusal names."""

_BUSY = 1
_SUSPECT = 2
_WARMING = EndpointState.WARMING.value
_RANKS = {EndpointState.READY.value: 0, _WARMING: 0, EndpointState.SUSPECT.value: _SUSPECT}


def choose(targets: Sequence[Target], now: float, rng: Draw, tried: Collection[str] = ()) -> Target | Refusal:
    """The target for a request: of the best there are, one with the least in flight; ties at random.

    Best are ready ones, and warming ones without a request (they get one at a time); next warming ones with one;
    last suspect ones, whether control says so or this router saw it. Draining ones, those that are out, and states
    that this version does not know are never chosen, nor are those whose ids are in `tried`.
    """
    scanned = targets if len(targets) <= SCANNED_MAX else rng.sample(targets, SCANNED_MAX)
    best = _best(scanned, now, tried)
    if not best and scanned is not targets:
        best = _best(targets, now, tried)
    if not best:
        return _refusal(targets, tried)
    return best[0] if len(best) == 1 else best[int(rng.random() * len(best))]


def _best(targets: Sequence[Target], now: float, tried: Collection[str]) -> list[Target]:
    best: list[Target] = []
    least = (_SUSPECT + 1, 0)
    for target in targets:
        load = target.load
        rank = _RANKS.get(target.endpoint.state)
        if rank is None or target.endpoint.id in tried:
            continue
        if load.suspect_until > now:
            rank = _SUSPECT
        elif rank == 0 and load.in_flight and target.endpoint.state == _WARMING:
            rank = _BUSY
        cost = (rank, load.in_flight)
        if cost < least:
            best, least = [target], cost
        elif cost == least:
            best.append(target)
    return best


def _refusal(targets: Sequence[Target], tried: Collection[str]) -> Refusal:
    reasons = []
    for target in targets:
        endpoint = target.endpoint
        if endpoint.id in tried:
            reasons.append(f"{endpoint.id}: {target.load.trouble or 'unreachable'}")
        else:
            reasons.append(f"{endpoint.id}: {endpoint.state}" + (f" ({endpoint.reason})" if endpoint.reason else ""))
    more = len(reasons) - REASONS_MAX
    return Refusal("; ".join(reasons[:REASONS_MAX]) + (f"; and {more} more" if more > 0 else ""))
