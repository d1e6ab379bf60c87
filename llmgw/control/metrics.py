"""Control's metrics, in a registry of their own.

What control counts (commands, the lag of heartbeats) it counts here at once; what it merely knows (nodes, replicas,
requests in flight) is read from its present state when somebody scrapes, so that a gauge can never be left behind.
Routers serve the clients, but they come and go and stand where no scraper may reach them: each sends its counters
with its reports, and control adds them up.
"""

import re
from collections.abc import Callable, Iterator

import attrs
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

log = structlog.get_logger()

SERIES_MAX = 20_000
"""Of counters that routers report: models times codes fits in many times over; a router gone mad does not."""
ROUTERS_MAX = 1000
"""Whose last figures are kept: a router is remembered while it is away, since it goes on counting meanwhile."""
SERIES_LETTERS_MAX = 512
"""Of one series with its labels."""

ROUTER_PREFIX = "llmgw_router_"
COUNTER_SUFFIX = "_total"
"""What a router may count under: no router can write into the figures of control, or bend a gauge."""

LAG_BUCKETS_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""A heartbeat that comes 4 s late at the interval of 2 s was missed once; at 180 s the node is lost."""

HEARTBEAT_JITTER = 0.2
"""Of the interval, by which agents spread their heartbeats."""

_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})?')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@attrs.frozen
class Gauges:
    """What control knows at the moment of a scrape."""

    nodes: dict[str, int] = attrs.field(factory=dict)
    """By state; every state is there, so that an alert on 0 has something to look at."""
    replicas: dict[tuple[str, str], int] = attrs.field(factory=dict)
    """By (model, state)."""
    router_in_flight: dict[tuple[str, str], int] = attrs.field(factory=dict)
    """By (model, endpoint)."""


@attrs.frozen
class Sample:
    """One series of a counter."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """Sorted by name."""


def parse_sample(text: str) -> Sample | None:
    """`name{label="value"}` as a Sample, or None for what Prometheus would not write that way."""
    found = _SAMPLE.fullmatch(text) if len(text) <= SERIES_LETTERS_MAX else None
    if found is None:
        return None
    labels = {name: _unescaped(value) for name, value in _LABEL.findall(found[2] or "")}
    return Sample(found[1], tuple(sorted(labels.items())))


@attrs.define
class RouterCounters:
    """The sum of what routers count, which never falls.

    A router that starts again starts at 0, so what is added up is what each of them has counted since its report
    before, and a figure lower than that one is taken for a fresh start.
    """

    totals: dict[Sample, float] = attrs.field(factory=dict)
    _label_names: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    """By name of the counter: what came first, since one name with several sets of labels is no valid answer."""
    _last: dict[str, dict[Sample, float]] = attrs.field(factory=dict)
    _full_said: bool = False

    def observe(self, router: str, counters: dict[str, float]) -> None:
        """Add one report of `router`."""
        before = self._last.get(router, {})
        now: dict[Sample, float] = {}
        for text, value in counters.items():
            sample = parse_sample(text)
            if sample is None or not 0 <= value < float("inf") or not self._takes(sample):
                continue
            now[sample] = value
            grown = value - before.get(sample, 0.0)
            self.totals[sample] = self.totals.get(sample, 0.0) + (grown if grown >= 0 else value)
        self._last.pop(router, None)
        self._last[router] = now
        if len(self._last) > ROUTERS_MAX:
            del self._last[next(iter(self._last))]

    def _takes(self, sample: Sample) -> bool:
        if sample in self.totals:
            return True
        if not (sample.name.startswith(ROUTER_PREFIX) and sample.name.endswith(COUNTER_SUFFIX)):
            return False
        names = tuple(name for name, _ in sample.labels)
        if self._label_names.get(sample.name, names) != names:
            return False
        if len(self.totals) < SERIES_MAX:
            self._label_names[sample.name] = names
            return True
        if not self._full_said:
            self._full_said = True
            log.warning("routers report more series than fit", series_max=SERIES_MAX, dropped=sample.name)
        return False


@attrs.define
class HeartbeatLag:
    """How late heartbeats are: against the interval that agents are told, with the jitter that they are allowed."""

    observe: Callable[[float], None]
    interval_seconds: Callable[[], float]
    _last: dict[int, float] = attrs.field(factory=dict)
    """By connection."""

    def heartbeat(self, connection: int, now: float) -> None:
        """One was handled. The first of a connection is late for nothing."""
        before = self._last.get(connection)
        self._last[connection] = now
        if before is not None:
            self.observe(now - before - self.interval_seconds() * (1 + HEARTBEAT_JITTER))

    def ended(self, connection: int) -> None:
        """The connection is over."""
        self._last.pop(connection, None)


class ControlMetrics(Collector):
    """Everything under `/metrics`."""

    def __init__(self) -> None:
        self._gauges = Gauges()
        self._registry = CollectorRegistry()
        self.routers = RouterCounters()
        self._commands = Counter(
            "llmgw_commands_total",
            "Commands to agents: accepted, refused, unanswered (its stream ended first) or unsent (not keeping up).",
            ["kind", "result"],
            registry=self._registry,
        )
        self._lag = Histogram(
            "llmgw_heartbeat_lag_seconds",
            "How much later than its interval allows a heartbeat was handled.",
            buckets=LAG_BUCKETS_SECONDS,
            registry=self._registry,
        )
        self._registry.register(self)

    def count_command(self, kind: str, result: str) -> None:
        """A command of `kind` (`start`, `stop`, `drain`) came to its end."""
        self._commands.labels(kind, result).inc()

    def observe_heartbeat(self, lag_seconds: float) -> None:
        """A heartbeat was handled, that much later than expected."""
        self._lag.observe(max(0.0, lag_seconds))

    def text(self, gauges: Gauges) -> bytes:
        """The text format of Prometheus."""
        self._gauges = gauges
        text: bytes = generate_latest(self._registry)
        return text

    def describe(self) -> list[Metric]:
        """Nothing: the registry need not scrape us to learn our names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The gauges, and the routers' counters."""
        gauges = self._gauges
        nodes = GaugeMetricFamily("llmgw_nodes", "Nodes by state.", labels=["state"])
        for state, number in gauges.nodes.items():
            nodes.add_metric([state], number)
        yield nodes
        replicas = GaugeMetricFamily("llmgw_replicas", "Replicas by model and state.", labels=["model", "state"])
        for (model, state), number in gauges.replicas.items():
            replicas.add_metric([model, state], number)
        yield replicas
        in_flight = GaugeMetricFamily(
            "llmgw_router_in_flight", "Requests in flight, over all routers.", labels=["model", "endpoint"]
        )
        for (model, endpoint), number in gauges.router_in_flight.items():
            in_flight.add_metric([model, endpoint], number)
        yield in_flight
        yield from self._router_counters()

    def _router_counters(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily] = {}
        for sample, total in sorted(self.routers.totals.items(), key=lambda item: (item[0].name, item[0].labels)):
            family = families.get(sample.name)
            if family is None:
                names = [name for name, _ in sample.labels]
                family = families[sample.name] = CounterMetricFamily(sample.name, "Counted by routers.", labels=names)
            family.add_metric([value for _, value in sample.labels], total)
        yield from families.values()


def _unescaped(value: str) -> str:
    return re.sub(r'\\["\\n]', lambda found: _ESCAPES[found[0]], value)
