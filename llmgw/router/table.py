"""The routing table in use: assembled from what control sends, looked up by every request.

Rules of this file. A table in parts is applied when all parts of one revision are in, and not before. Revisions
compare only within one incarnation of control: the same number of another one is another table. A change applies
only to the revision right before it; whoever sees a gap follows anew. While control is recovering (`complete` is
false) entries are added and replaced, never removed: what it does not know yet may well be alive. Keys come from
control's configuration, which it knows from its first moment, so they are replaced in any case.

What a launch of an endpoint carries at this moment (its load) is kept apart from the table, by id and epoch: it
survives the endpoint's removal and return, and is forgotten when it is idle and in no table.
"""

from collections.abc import Callable, Iterable, Iterator

import attrs

from llmgw.core.routing import ClientKey, Endpoint, EndpointState, Load, RoutedModel, Target
from llmgw.errors import LlmgwError
from llmgw.router.limits import Keys
from llmgw.wire.messages import EndpointReport, RouteChange, RouteTable

PARTS_MAX = 4096
"""Of one table: at 2 MiB each more than fits into any machine."""

ENTRIES_PER_PART = 2000
"""When a table is written or passed on: less than 1 MiB."""

COMPLETION_TOLD_SECONDS = 120.0
"""An endpoint without requests is in the reports for so long after its last completion."""


class GapError(LlmgwError):
    """What came does not follow on what is held: the whole table is needed."""


@attrs.define
class Route:
    """A model with the endpoints that serve it."""

    model: RoutedModel
    targets: tuple[Target, ...] = ()


class Table:
    """The table and the loads of its endpoints. `released` and the lookups are on the path of every request."""

    def __init__(self, on_idle: Callable[[], None] = lambda: None) -> None:
        self.incarnation = ""
        self.revision = 0
        self.known = False
        """Whether there is a table at all; without one nothing can be told from an unknown model."""
        self.stale = False
        """It is the last one of an earlier time; nobody has confirmed it yet."""
        self.complete = False
        self.client_keys: tuple[ClientKey, ...] = ()
        self.keys = Keys(())
        self._on_idle = on_idle
        self._routes: dict[str, Route] = {}
        self._aliases: dict[str, str] = {}
        self._targets: dict[str, Target] = {}
        self._by_model: dict[str, dict[str, Target]] = {}
        self._loads: dict[tuple[str, int], Load] = {}
        self._gathering: dict[int, RouteTable] = {}

    def route(self, name: str) -> Route | None:
        """The model of that name or alias. Compared exactly: case and blanks matter."""
        found = self._routes.get(name)
        return found if found is not None else self._routes.get(self._aliases.get(name, ""))

    def models(self) -> list[RoutedModel]:
        """All of them, in the order of their names."""
        return [self._routes[name].model for name in sorted(self._routes)]

    def endpoints(self) -> Iterator[Endpoint]:
        """All of them."""
        return (target.endpoint for target in self._targets.values())

    def load_of(self, endpoint: Endpoint) -> Load:
        """The load of that launch."""
        return self._loads.setdefault((endpoint.id, endpoint.epoch), Load())

    def released(self, load: Load) -> None:
        """One request of `load` has ended."""
        load.in_flight -= 1
        assert load.in_flight >= 0
        if load.in_flight == 0 and load.watched:
            self._on_idle()

    def is_leaving(self, endpoint: Endpoint) -> bool:
        """Whether that launch is draining or in no table any more."""
        return self.load_of(endpoint).watched

    # --- what control sends ---

    def put(self, part: RouteTable, *, stale: bool = False) -> bool:
        """Take one part of a table; True when with it a whole table came into use. Raises GapError for nonsense."""
        if not 0 <= part.part < part.parts <= PARTS_MAX:
            raise GapError(f"part {part.part} of {part.parts}")
        if any(_of(held) != _of(part) for held in self._gathering.values()):
            self._gathering.clear()
        self._gathering[part.part] = part
        if len(self._gathering) < part.parts:
            return False
        parts = [self._gathering[number] for number in range(part.parts)]
        self._gathering.clear()
        self._use(part, stale=stale)
        self.client_keys = tuple(key for held in parts for key in held.keys)
        self.keys = Keys(self.client_keys)
        models = [model for held in parts for model in held.models]
        endpoints = [endpoint for held in parts for endpoint in held.endpoints]
        if part.complete:
            names, ids = {model.name for model in models}, {endpoint.id for endpoint in endpoints}
            self._remove(
                [name for name in self._routes if name not in names],
                [held for held in self._targets if held not in ids],
            )
        self._set(models, endpoints)
        return True

    def change(self, step: RouteChange) -> None:
        """Take one step. Raises GapError where it does not follow on the revision in use."""
        if step.incarnation != self.incarnation or step.revision != self.revision + 1:
            raise GapError(
                f"a change to revision {step.revision} of {step.incarnation}, "
                f"holding revision {self.revision} of {self.incarnation or 'nobody'}"
            )
        self._use(step, stale=False)
        if step.complete:
            self._remove(step.removed.models, step.removed.endpoints)
        self._set(step.set.models, step.set.endpoints)

    def _use(self, message: RouteTable | RouteChange, *, stale: bool) -> None:
        self.incarnation, self.revision, self.complete = message.incarnation, message.revision, message.complete
        self.known, self.stale = True, stale

    def _set(self, models: Iterable[RoutedModel], endpoints: Iterable[Endpoint]) -> None:
        touched: dict[str, None] = {}
        for model in models:
            self._routes[model.name] = Route(model)
            touched[model.name] = None
        for endpoint in endpoints:
            self._take_out(endpoint.id, touched)
            load = self.load_of(endpoint)
            load.watched = endpoint.state == EndpointState.DRAINING.value
            target = self._targets[endpoint.id] = Target(endpoint, load)
            self._by_model.setdefault(endpoint.model, {})[endpoint.id] = target
            touched[endpoint.model] = None
        self._regroup(touched)

    def _remove(self, models: Iterable[str], endpoints: Iterable[str]) -> None:
        touched: dict[str, None] = {}
        for name in endpoints:
            self._take_out(name, touched)
        for name in models:
            self._routes.pop(name, None)
        self._regroup(touched)

    def _take_out(self, name: str, touched: dict[str, None]) -> None:
        gone = self._targets.pop(name, None)
        if gone is not None:
            gone.load.watched = True
            group = self._by_model[gone.endpoint.model]
            del group[name]
            if not group:
                del self._by_model[gone.endpoint.model]
            touched[gone.endpoint.model] = None

    def _regroup(self, touched: Iterable[str]) -> None:
        """Only the models that a step touched: a fleet that comes up is thousands of steps."""
        for name in touched:
            route = self._routes.get(name)
            if route is not None:
                route.targets = tuple(self._by_model.get(name, {}).values())
        self._aliases = {alias: name for name, route in self._routes.items() for alias in route.model.aliases}

    # --- what is told ---

    def parts(self) -> list[RouteTable]:
        """The table in use, as messages."""
        models, endpoints, keys = self.models(), list(self.endpoints()), self.client_keys
        size = ENTRIES_PER_PART
        count = max(1, -(-max(len(models), len(endpoints), len(keys)) // size))
        shares = [slice(number * size, (number + 1) * size) for number in range(count)]
        return [
            RouteTable(
                self.incarnation,
                self.revision,
                number,
                count,
                self.complete,
                models=tuple(models[share]),
                endpoints=tuple(endpoints[share]),
                keys=keys[share],
            )
            for number, share in enumerate(shares)
        ]

    def reports(self, now: float) -> tuple[EndpointReport, ...]:
        """What was seen of each launch that has something to tell; forgets those that are idle and in no table."""
        told, gone = [], []
        for (name, epoch), load in self._loads.items():
            target = self._targets.get(name)
            present = target is not None and target.endpoint.epoch == epoch
            age = None if load.completed_at is None else max(0.0, now - load.completed_at)
            recent = age is not None and age < COMPLETION_TOLD_SECONDS
            suspect = load.suspect_until > now
            if load.in_flight or recent or suspect or load.watched:
                state = "unreachable" if suspect else ""
                told.append(EndpointReport(name, epoch, load.in_flight, age, state, load.trouble if suspect else ""))
            if not present and load.in_flight == 0 and not recent:
                gone.append((name, epoch))
        for key in gone:
            del self._loads[key]
        return tuple(told)

    def in_flight(self) -> int:
        """All requests at engines."""
        return sum(load.in_flight for load in self._loads.values())


def _of(part: RouteTable) -> tuple[str, int, int]:
    return part.incarnation, part.revision, part.parts
