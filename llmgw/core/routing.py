"""What a router may send to, and which of it is chosen. Shared by control, which publishes, and the router, which obeys."""

import enum

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
