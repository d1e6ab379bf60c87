"""Settings that exist and do nothing yet: refused, since a limit that is accepted and not kept is worse than none.

Whoever builds what a row names deletes the row.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from llmgw.config.findings import Finding
from llmgw.strict import Step

NOT_IN_FORCE: dict[str, str] = {
    "control.tls": "connections of agents and routers are not encrypted yet",
    "admin.tls": "the admin address speaks plain HTTP only",
    "router.tls": "the router speaks plain HTTP only",
    "metrics.listen": "only control serves metrics so far, on its admin address",
    "models[].exact_usage": "the router does not ask engines for usage yet",
    "models[].profile.nodes": "a replica runs on one node so far",
    "models[].placement.fabric": "a replica runs on one node so far, and one node needs no fabric",
}
"""Path -> why it is refused when it is anything but its default."""


def not_in_force(config: Any) -> Iterator[Finding]:
    """A finding for each setting of the table that differs from its default."""
    for row, reason in NOT_IN_FORCE.items():
        for path, value, default in _values_at(config, row.split("."), ()):
            if value != default:
                written = "a table" if attrs.has(type(value)) else value
                yield Finding(path, "not in force in this version", written, reason)


def _values_at(holder: Any, parts: list[str], above: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Any, Any]]:
    """(path, value, default) of each place that `parts` leads to; none where the configuration has no such setting."""
    name = parts[0].removesuffix("[]")
    field = next((field for field in attrs.fields(type(holder)) if field.name == name), None)
    if field is None:
        return
    value = getattr(holder, name)
    path = (*above, name)
    if parts[0] != name:
        for index, item in enumerate(value):
            yield from _values_at(item, parts[1:], (*path, index))
    elif len(parts) == 1:
        yield path, value, field.default
    elif value is not None:
        yield from _values_at(value, parts[1:], path)
