"""Control's metrics: what is counted here, what is read at the scrape, and what routers count."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmgw.control.metrics import (
    ROUTERS_MAX,
    SERIES_MAX,
    ControlMetrics,
    Gauges,
    HeartbeatLag,
    RouterCounters,
    Sample,
    parse_sample,
)

REQUESTS = 'llmgw_router_requests_total{model="m",code="200"}'
SAMPLE = Sample("llmgw_router_requests_total", (("code", "200"), ("model", "m")))


def scraped(subject: ControlMetrics, gauges: Gauges) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of an answer that a Prometheus can parse."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(subject.text(gauges).decode())
        for sample in family.samples
    }


def test_the_names_of_the_first_hour() -> None:
    subject = ControlMetrics()
    subject.count_command("start", "accepted")
    subject.count_command("start", "accepted")
    subject.observe_heartbeat(0.3)
    subject.observe_heartbeat(-1.0)
    subject.routers.observe("r", {REQUESTS: 5.0})
    found = scraped(subject, Gauges({"healthy": 2, "lost": 0}, {("m", "ready"): 3}, {("m", "m/0"): 4}))
    assert found["llmgw_nodes", (("state", "healthy"),)] == 2
    assert found["llmgw_nodes", (("state", "lost"),)] == 0
    assert found["llmgw_replicas", (("model", "m"), ("state", "ready"))] == 3
    assert found["llmgw_router_in_flight", (("endpoint", "m/0"), ("model", "m"))] == 4
    assert found["llmgw_commands_total", (("kind", "start"), ("result", "accepted"))] == 2
    assert found["llmgw_heartbeat_lag_seconds_count", ()] == 2
    assert found["llmgw_heartbeat_lag_seconds_sum", ()] == pytest.approx(0.3)
    assert found["llmgw_router_requests_total", (("code", "200"), ("model", "m"))] == 5


def test_a_gauge_is_what_it_is_at_the_scrape() -> None:
    subject = ControlMetrics()
    assert scraped(subject, Gauges({"healthy": 1}))["llmgw_nodes", (("state", "healthy"),)] == 1
    assert scraped(subject, Gauges({"healthy": 7}))["llmgw_nodes", (("state", "healthy"),)] == 7
    assert ("llmgw_nodes", (("state", "healthy"),)) not in scraped(subject, Gauges())


def test_names_from_anywhere_are_escaped() -> None:
    name = 'a"b\\c\nd'
    found = scraped(ControlMetrics(), Gauges(replicas={(name, "ready"): 1}))
    assert found["llmgw_replicas", (("model", name), ("state", "ready"))] == 1


def test_the_lag_of_heartbeats_is_beyond_the_interval_and_its_jitter() -> None:
    seen: list[float] = []
    lag = HeartbeatLag(seen.append, lambda: 2.0)
    for now in (10.0, 12.0, 15.4):
        lag.heartbeat(1, now)
    lag.heartbeat(2, 99.0)
    lag.ended(1)
    lag.ended(7)
    lag.heartbeat(1, 100.0)
    assert seen == pytest.approx([-0.4, 1.0])


def test_counters_of_routers_are_summed() -> None:
    counters = RouterCounters()
    counters.observe("a", {REQUESTS: 5.0})
    counters.observe("b", {REQUESTS: 7.0})
    counters.observe("a", {REQUESTS: 6.0})
    assert counters.totals == {SAMPLE: 13.0}


def test_a_router_that_starts_again_or_goes_never_makes_a_sum_fall() -> None:
    counters = RouterCounters()
    counters.observe("a", {REQUESTS: 5.0})
    counters.observe("a", {REQUESTS: 2.0})
    assert counters.totals == {SAMPLE: 7.0}
    counters.observe("a", {})
    assert counters.totals == {SAMPLE: 7.0}


def test_the_routers_that_are_remembered_are_bounded() -> None:
    counters = RouterCounters()
    for number in range(ROUTERS_MAX + 1):
        counters.observe(f"r{number}", {REQUESTS: 1.0})
    counters.observe("r1", {REQUESTS: 1.0})
    assert counters.totals == {SAMPLE: ROUTERS_MAX + 1}
    counters.observe("r0", {REQUESTS: 1.0})  # the oldest was forgotten, and counts as new
    assert counters.totals == {SAMPLE: ROUTERS_MAX + 2}


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("x_total", Sample("x_total", ())),
        ("x_total{}", Sample("x_total", ())),
        ('x_total{b="2",a="1"}', Sample("x_total", (("a", "1"), ("b", "2")))),
        ('x_total{a="1",}', Sample("x_total", (("a", "1"),))),
        (r'x_total{a="q\"b\\s\nn,}"}', Sample("x_total", (("a", 'q"b\\s\nn,}'),))),
        ("x total", None),
        ('x_total{a="1" b="2"}', None),
        ('x_total{a="1"', None),
        (r'x_total{a="\x"}', None),
        ("", None),
        ("x" * 513, None),
    ],
)
def test_parse_sample(text: str, sample: Sample | None) -> None:
    assert parse_sample(text) == sample


@pytest.mark.parametrize(
    "bad",
    [
        "llmgw_nodes",
        "llmgw_commands_total",
        "llmgw_router_in_flight",
        'llmgw_router_requests_total{model="m"}',
        "nonsense{",
    ],
)
def test_what_a_router_may_not_count_is_left_out(bad: str) -> None:
    counters = RouterCounters()
    counters.observe("a", {REQUESTS: 1.0, bad: 1.0})
    assert counters.totals == {SAMPLE: 1.0}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_what_is_no_count_is_left_out(value: float) -> None:
    counters = RouterCounters()
    counters.observe("a", {REQUESTS: value})
    assert counters.totals == {}


def test_series_are_bounded() -> None:
    counters = RouterCounters()
    series = {f'llmgw_router_x_total{{a="{number}"}}': 1.0 for number in range(SERIES_MAX + 10)}
    counters.observe("a", series)
    counters.observe("b", series)
    assert len(counters.totals) == SERIES_MAX
    assert max(counters.totals.values()) == 2.0
