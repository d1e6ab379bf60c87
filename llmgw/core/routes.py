"""What routers are told: the table that follows from the catalog, the fleet and the replicas."""

from collections.abc import Mapping

import attrs

from llmgw.core.catalog import Catalog
from llmgw.core.explain import Explanation
from llmgw.core.fleet import FleetView
from llmgw.core.replicas import Replicas
from llmgw.core.routing import Endpoint, RoutedModel


@attrs.frozen
class Table:
    """Without revision and keys, which the publisher adds."""

    complete: bool = True
    """False while control is recovering: routers add and change, and never remove."""
    models: tuple[RoutedModel, ...] = ()
    """Sorted by name."""
    endpoints: tuple[Endpoint, ...] = ()
    """Sorted by id; at most one epoch of a replica."""


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
    """The table now. `static_keys`: (model, url) -> the key of that static endpoint. `created`: model -> unix seconds."""
    raise AssertionError


def change(old: Table, new: Table) -> Change | None:
    """What a holder of `old` needs to have `new`; None: nothing (not even `complete` differs)."""
    raise AssertionError


def withdrawn(
    before: Mapping[tuple[str, int], int], replicas: Replicas, published: Table, revision: int
) -> dict[tuple[str, int], int]:
    """(replica id, epoch) of every launch that `published` does not offer -> the first revision of which that is true.

    Call it with the result of the last time whenever a table is published, and whenever the replicas change.
    """
    raise AssertionError
