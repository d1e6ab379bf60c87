"""What routers are told: the table that follows from the catalog, the fleet and the replicas.

1. Of each replica at most one launch is in a table (`standing.routed` chooses).
2. A state that this version does not know is not routed to; what is lost, stopping or not ready is not in the table.
3. A silent node makes its endpoints suspect, not gone: its engines may serve on, and the router finds out.
4. A model without an endpoint that can be chosen says why: `loading`, `failed` or `pending`.
5. While control is recovering the table is not complete: routers add and change, and never remove.

No age is in any text, so that a table changes only when something happens.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs

from llmgw.core.catalog import Catalog, Model
from llmgw.core.explain import Explanation
from llmgw.core.nodes import FleetView
from llmgw.core.replicas import Replica, Replicas, ReplicaState
from llmgw.core.routing import Endpoint, EndpointState, RoutedModel, Unavailable
from llmgw.core.standing import UP_SOON, Presence, Standing, read, routed, unreadable_state

RETRY_LOADING_SECONDS = 5.0
RETRY_FAILED_SECONDS = 10.0
RETRY_PENDING_SECONDS = 30.0
"""What a client is told to wait: a load may end any moment, a restart comes after ten seconds, room takes longer."""

_CHOOSABLE = frozenset({EndpointState.READY.value, EndpointState.WARMING.value, EndpointState.SUSPECT.value})
"""States in which a router may send something new."""

T = TypeVar("T")


@attrs.frozen
class Table:
    """Without revision and keys, which the publisher adds."""

    complete: bool = True
    """False while control is recovering: routers add and change, and never remove."""
    models: tuple[RoutedModel, ...] = ()
    """Sorted by name."""
    endpoints: tuple[Endpoint, ...] = ()
    """Sorted by model, then number; at most one epoch of a replica."""


@attrs.frozen
class Change:
    """The step from one table to the next."""

    models: tuple[RoutedModel, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    models_removed: tuple[str, ...] = ()
    endpoints_removed: tuple[str, ...] = ()


def table(
    catalog: Catalog,
    fleet: FleetView,
    replicas: Replicas,
    explanations: Mapping[str, Explanation],
    *,
    static_keys: Mapping[tuple[str, str], str],
    created: Mapping[str, int],
) -> Table:
    """The table now. `static_keys`: (model, url) -> the key of that static endpoint. `created`: model -> unix time."""
    by_model: dict[str, list[tuple[Replica, list[Standing]]]] = {}
    for replica in replicas.by_id.values():
        standings = [read(replica, launch, fleet) for launch in replica.launches]
        by_model.setdefault(replica.model, []).append((replica, standings))
    models: list[RoutedModel] = []
    endpoints: list[Endpoint] = []
    for name in sorted({**catalog.models, **by_model}):
        model, own = catalog.models.get(name), by_model.get(name, [])
        of_model = _endpoints(own, fleet)
        if model is None:
            # Removed: what still serves is finished, and nothing new is sent to it.
            endpoints += [one for one in of_model if one.state not in _CHOOSABLE]
            continue
        of_model += [_static(model, url, upstream, static_keys) for url, upstream in _urls(model)]
        endpoints += of_model
        usable = any(one.state in _CHOOSABLE for one in of_model)
        models.append(
            RoutedModel(
                name=name,
                aliases=model.aliases,
                created=created.get(name, 0),
                exact_usage=model.exact_usage,
                unavailable=None if usable else _unavailable(model, own, explanations.get(name)),
            )
        )
    return Table(complete=fleet.recovery is None, models=tuple(models), endpoints=tuple(endpoints))


def change(old: Table, new: Table) -> Change | None:
    """What a holder of `old` needs to have `new`; None: nothing (not even `complete` differs)."""
    if old == new:
        return None
    models_old = {model.name: model for model in old.models}
    endpoints_old = {endpoint.id: endpoint for endpoint in old.endpoints}
    models_new = {model.name: model for model in new.models}
    endpoints_new = {endpoint.id: endpoint for endpoint in new.endpoints}
    return Change(
        models=tuple(_differing(models_old, models_new)),
        endpoints=tuple(_differing(endpoints_old, endpoints_new)),
        models_removed=tuple(name for name in models_old if name not in models_new),
        endpoints_removed=tuple(id_ for id_ in endpoints_old if id_ not in endpoints_new),
    )


def withdrawn(
    before: Mapping[tuple[str, int], int], replicas: Replicas, published: Table, revision: int
) -> dict[tuple[str, int], int]:
    """(replica id, epoch) of every launch that `published` does not offer -> the first revision of which that is true.

    Offered is what a router may send something new to. Call it with the result of the last time whenever a table is
    published, and whenever the replicas change. `revision` is that of `published`.
    """
    offered = {(one.id, one.epoch) for one in published.endpoints if one.state in _CHOOSABLE}  # only asked
    return {
        (replica.id, launch.epoch): before.get((replica.id, launch.epoch), revision)
        for replica in replicas.by_id.values()
        for launch in replica.launches
        if (replica.id, launch.epoch) not in offered
    }


def _endpoints(own: Iterable[tuple[Replica, list[Standing]]], fleet: FleetView) -> list[Endpoint]:
    found = []
    for replica, standings in own:
        standing = routed(standings)
        if standing is None:
            endpoint = _out(replica, standings, fleet)
        else:
            state, reason = _state(standing, fleet)
            endpoint = _endpoint(replica, standing, fleet, state, reason)
        if endpoint is not None:
            found.append(endpoint)
    return found


def _state(standing: Standing, fleet: FleetView) -> tuple[EndpointState, str]:
    if standing.launch.ending or standing.state is ReplicaState.DRAINING:
        drain = standing.launch.drain
        return EndpointState.DRAINING, standing.launch.stop or (drain.reason if drain is not None else "")
    if standing.presence is Presence.SILENT:
        return EndpointState.SUSPECT, f"{standing.node} is {fleet.nodes[standing.node].state}"
    return EndpointState.READY, ""


def _out(replica: Replica, standings: list[Standing], fleet: FleetView) -> Endpoint | None:
    """Shown, and not chosen: its agent is newer than this control and says something that this one cannot judge."""
    for standing in standings:
        raw = unreadable_state(standing, fleet)
        if raw and standing.presence <= Presence.SILENT:
            return _endpoint(replica, standing, fleet, EndpointState.OUT, f"unknown state {raw!r}")
    return None


def _endpoint(
    replica: Replica, standing: Standing, fleet: FleetView, state: EndpointState, reason: str
) -> Endpoint | None:
    node = fleet.nodes.get(standing.launch.members[0].node)
    if node is None or standing.port is None:
        return None
    host = f"[{node.address}]" if ":" in node.address else node.address
    return Endpoint(
        id=replica.id,
        model=replica.model,
        address=f"http://{host}:{standing.port}",
        epoch=standing.launch.epoch,
        state=state.value,
        reason=reason,
        upstream_model=standing.launch.served_name,
    )


def _urls(model: Model) -> list[tuple[str, str]]:
    return [(endpoint.url, endpoint.model) for endpoint in model.endpoints]


def _static(model: Model, url: str, upstream: str, keys: Mapping[tuple[str, str], str]) -> Endpoint:
    return Endpoint(
        id=f"{model.name}@{url}",
        model=model.name,
        address=url.rstrip("/"),
        upstream_model=upstream or model.name,
        key=keys.get((model.name, url), ""),
    )


def _unavailable(
    model: Model, own: list[tuple[Replica, list[Standing]]], explanation: Explanation | None
) -> Unavailable:
    standings = [standing for _, of_replica in own for standing in of_replica]
    coming = [one for one in standings if one.state in UP_SOON and one.presence is Presence.HERE]
    if coming:
        where = f"{coming[0].replica} is {coming[0].state} on {coming[0].node}"
        return Unavailable(f"loading: {where}", RETRY_LOADING_SECONDS)
    failures = [failure for replica, _ in own for failure in replica.failures]
    if failures and (explanation is None or not explanation.reasons):
        last = max(failures, key=lambda failure: failure.at)
        return Unavailable(f"failed: {last.error}", RETRY_FAILED_SECONDS)
    if explanation is not None:
        return Unavailable(f"pending: {explanation.summary}", RETRY_PENDING_SECONDS)
    # Reports come before decisions: for a moment a failure is known that nobody has drawn a conclusion from.
    failed = next((one for one in standings if one.state is ReplicaState.FAILED), None)
    if failed is not None:
        return Unavailable(f"failed: {failed.error}", RETRY_FAILED_SECONDS)
    wanted = "it is not placed yet" if model.replicas else "no replica is wanted"
    return Unavailable(f"pending: {wanted}", RETRY_PENDING_SECONDS)


def _differing(old: Mapping[str, T], new: Mapping[str, T]) -> Iterable[T]:
    return (entry for key, entry in new.items() if old.get(key) != entry)
