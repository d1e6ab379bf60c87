"""What must be true between the settings of a `cluster.toml`, and within values that a type cannot judge.

An ordered list of small rules. Each takes the configuration and what was really given (a default that clashes with
a given value is the given value's fault), and yields findings.
"""

import re
import string
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import attrs

from llmgw.config.engine_options import check_fractions
from llmgw.config.findings import Finding
from llmgw.config.schema import ClusterConfig
from llmgw.config.unknown import nearest
from llmgw.core.address import Address, is_loopback
from llmgw.core.catalog import Model, Profile, Secret
from llmgw.strict import Step

Path = tuple[Step, ...]


@attrs.frozen
class Facts:
    """What a rule looks at."""

    config: ClusterConfig
    given: frozenset[Path]
    """Every path that the file or the environment set, tables included."""
    engines: tuple[str, ...]
    """The engines that this version has."""


Rule = Callable[[Facts], Iterator[Finding]]

MISSED_SLACK = 1.2
"""A heartbeat counts as missed after 1.2 intervals without a frame."""

HEARTBEAT_SECONDS_MAX = 60.0
"""Each direction of a stream carries something every 30 s anyway, and an agent that hears nothing for 90 s redials."""

START_DEADLINE_SECONDS_MIN = 1.0
"""An engine is asked several times a second whether it is ready: a deadline below that could not be kept by any."""

OF_PROFILES = ("replicas", "replace_after", "drain_deadline", "update", "ready_min", "placement")
"""What a model has only where we run it."""

NAME_CHARS_MAX = 200
"""Of a model's or a key's name: it is in every log line, route and metric."""

WORKERS_MAX = 256
REPLICAS_MAX = 10_000
GPUS_MAX = 64
"""Per shard. The three are far above any use, and low enough that a slip is noticed."""

PROBES = ("chat", "completion", "embedding", "rerank")
PROBE_URL = "url:/"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_cluster(facts: Facts) -> Iterator[Finding]:
    """Every finding of every rule, in their order."""
    for rule in CLUSTER_RULES:
        yield from rule(facts)


def at_least(path: Path, value: float, least: float, most: float, written: str = "") -> Iterator[Finding]:
    """A finding unless the number is within both limits."""
    if not least <= value <= most:
        yield Finding(path, f"expected {least} to {most}", written or value)


def more_than_nothing(facts: Facts) -> Iterator[Finding]:
    """A timer of 0 fires before anything can happen."""
    control, router = facts.config.control, facts.config.router
    timers: list[tuple[Path, float]] = [
        (("control", "heartbeat"), control.heartbeat),
        (("control", "lost_after"), control.lost_after),
        (("router", "connect_timeout"), router.connect_timeout),
        (("router", "first_byte_timeout"), router.first_byte_timeout),
        (("router", "idle_timeout"), router.idle_timeout),
    ]
    for path, model in _models(facts):
        if model.profile is not None:
            timers.append(((*path, "profile", "start_deadline"), model.profile.start_deadline))
    for path, seconds in timers:
        if seconds <= 0:
            yield Finding(path, "expected a duration of more than 0", _seconds(seconds))
    if router.body_max <= 0:
        yield Finding(("router", "body_max"), "expected a size of more than 0", router.body_max)


def timers_make_sense(facts: Facts) -> Iterator[Finding]:
    """A slip of the unit: `"5000s"` where milliseconds were meant, `"20ms"` where minutes were."""
    heartbeat = facts.config.control.heartbeat
    if heartbeat > HEARTBEAT_SECONDS_MAX:
        expected, hint = f"expected at most {_seconds(HEARTBEAT_SECONDS_MAX)}", "control stretches it with the fleet"
        yield Finding(("control", "heartbeat"), expected, _seconds(heartbeat), hint)
    for path, model in _models(facts):
        if model.profile is not None and 0 < model.profile.start_deadline < START_DEADLINE_SECONDS_MIN:
            expected = f"expected at least {_seconds(START_DEADLINE_SECONDS_MIN)}, more than between two probes"
            yield Finding((*path, "profile", "start_deadline"), expected, _seconds(model.profile.start_deadline))


def counts_within_limits(facts: Facts) -> Iterator[Finding]:
    """Negative or absurd counts."""
    yield from at_least(("router", "workers"), facts.config.router.workers, 1, WORKERS_MAX)
    yield from at_least(("control", "unreachable_after_missed"), facts.config.control.unreachable_after_missed, 1, 1000)
    for path, model in _models(facts):
        yield from at_least((*path, "replicas"), model.replicas, 0, REPLICAS_MAX)
        if model.ready_min is not None:
            yield from at_least((*path, "ready_min"), model.ready_min, 0, max(model.replicas, 0))
        if (profile := model.profile) is not None:
            yield from at_least((*path, "profile", "gpus"), profile.gpus, 0, GPUS_MAX)
            yield from at_least((*path, "profile", "nodes"), profile.nodes, 1, REPLICAS_MAX)
            if profile.port is not None:
                yield from at_least((*path, "profile", "port"), profile.port, 1, 65535)


def unreachable_before_lost(facts: Facts) -> Iterator[Finding]:
    """A node that is lost before it is unreachable would be replaced without a warning."""
    control = facts.config.control
    unreachable = control.heartbeat * MISSED_SLACK * control.unreachable_after_missed
    formula = f"heartbeat x {MISSED_SLACK} x unreachable_after_missed"
    numbers = f"{_seconds(control.heartbeat)} x {MISSED_SLACK} x {control.unreachable_after_missed}"
    if unreachable >= control.lost_after:
        yield Finding(
            ("control", "lost_after"),
            f"expected more than {formula} = {numbers} = {_seconds(unreachable)}",
            _seconds(control.lost_after),
            others=(("control", "heartbeat"), ("control", "unreachable_after_missed")),
        )


def replace_not_before_lost(facts: Facts) -> Iterator[Finding]:
    """Only what somebody wrote: the default simply waits until the node is lost."""
    lost_after = facts.config.control.lost_after
    for path, model in _models(facts):
        key = (*path, "replace_after")
        if key in facts.given and model.replace_after is not None and model.replace_after < lost_after:
            yield Finding(
                key,
                f"expected at least [control] lost_after = {_seconds(lost_after)}",
                _seconds(model.replace_after),
                others=(("control", "lost_after"),),
            )


def grace_within_drain(facts: Facts) -> Iterator[Finding]:
    """An engine that may take longer to stop than its drain may last, where both were written."""
    for path, model in _models(facts):
        grace, drain = (*path, "profile", "stop_grace"), (*path, "drain_deadline")
        if model.profile is None or grace not in facts.given or drain not in facts.given:
            continue
        if model.profile.stop_grace > model.drain_deadline:
            yield Finding(
                grace,
                f"expected at most drain_deadline = {_seconds(model.drain_deadline)}",
                _seconds(model.profile.stop_grace),
                others=(drain,),
            )


def connect_before_first_byte(facts: Facts) -> Iterator[Finding]:
    """The first byte comes after the connection."""
    router = facts.config.router
    if router.connect_timeout > router.first_byte_timeout:
        yield Finding(
            ("router", "connect_timeout"),
            f"expected at most first_byte_timeout = {_seconds(router.first_byte_timeout)}",
            _seconds(router.connect_timeout),
            others=(("router", "first_byte_timeout"),),
        )


def plaintext_stays_home(facts: Facts) -> Iterator[Finding]:
    """The agent port can start processes and the admin address can stop them."""
    tables = (("control", facts.config.control), ("admin", facts.config.admin))
    for name, table in tables:
        if table.listen is None or table.insecure or table.tls is not None or is_loopback(table.listen.host):
            continue
        yield Finding(
            (name, "listen"),
            "expected a loopback address, since what passes here is not encrypted",
            str(table.listen),
            f"if this network is trusted, set [{name}] insecure = true",
            others=((name, "insecure"),),
        )


def addresses_differ(facts: Facts) -> Iterator[Finding]:
    """Two listeners on one address: the second could not start."""
    config = facts.config
    seen: dict[Address, str] = {}
    for name, listen in (
        ("control", config.control.listen),
        ("admin", config.admin.listen),
        ("router", config.router.listen),
    ):
        if listen is None or listen.port == 0:
            continue
        if listen in seen:
            hint = f"[{seen[listen]}] listen is the same"
            yield Finding((name, "listen"), "expected an address of its own", str(listen), hint)
        seen.setdefault(listen, name)


def profiles_need_agents(facts: Facts) -> Iterator[Finding]:
    """Nothing can run a profile when no agent can register."""
    if facts.config.control.listen is not None or facts.config.router.control is not None:
        return
    for path, model in _models(facts):
        if model.profile is not None:
            yield Finding(
                (*path, "profile"),
                "a profile is run by agents, and no address is open for them",
                hint=f"set [control] listen, as {Address('127.0.0.1', 7070)}",
                others=(("control", "listen"), ("router", "control")),
            )


def names_are_unique(facts: Facts) -> Iterator[Finding]:
    """A name or an alias names one model."""
    seen: dict[str, str] = {}
    for path, model in _models(facts):
        names: list[tuple[Path, str]] = [((*path, "name"), model.name)]
        names += [((*path, "aliases", index), alias) for index, alias in enumerate(model.aliases)]
        for where, name in names:
            if reason := _bad_name(name):
                yield Finding(where, reason, name)
            elif name in seen:
                yield Finding(where, "expected a name that no other model has", name, f"it is {seen[name]}")
            else:
                seen[name] = f"models[{path[1]}].{where[2]}"


def profile_or_endpoints(facts: Facts) -> Iterator[Finding]:
    """A model is run by us, or it is somebody else's."""
    for path, model in _models(facts):
        if model.profile is None and not model.endpoints:
            expected = "expected a [models.profile] (engine and model) or endpoints"
            others = ((*path, "profile"), (*path, "endpoints"))
            yield Finding(path, expected, model.name, others=others)
        if model.profile is not None and model.endpoints:
            yield Finding((*path, "endpoints"), "expected either endpoints or a [models.profile], not both")
        if model.profile is None and model.endpoints:
            for key in OF_PROFILES:
                if (*path, key) in facts.given:
                    hint = "its endpoints are run by somebody else"
                    yield Finding((*path, key), "only a model with a [models.profile] has this", hint=hint)


def profiles_make_sense(facts: Facts) -> Iterator[Finding]:
    """Everything about one profile that control can know without the node."""
    for path, model in _models(facts):
        if model.profile is not None:
            yield from _profile((*path, "profile"), model.profile, model, facts)


def endpoints_are_urls(facts: Facts) -> Iterator[Finding]:
    """`http://host:port`, as it can be put before `/v1/...`."""
    for path, model in _models(facts):
        for index, endpoint in enumerate(model.endpoints):
            if reason := _bad_url(endpoint.url):
                # The value may hold a password, which is one of the reasons.
                value = "***" if "@" in endpoint.url else endpoint.url
                yield Finding((*path, "endpoints", index, "url"), reason, value)
        urls = [endpoint.url for endpoint in model.endpoints]
        for index, url in enumerate(urls):
            if url in urls[:index]:
                yield Finding((*path, "endpoints", index, "url"), "expected a URL that is listed once", url)


def keys_are_hashes(facts: Facts) -> Iterator[Finding]:
    """A key is known by the SHA-256 of its text; its models are in the catalog."""
    catalog = [model.name for model in facts.config.models]
    names: list[str] = []
    hashes: list[str] = []
    for index, key in enumerate(facts.config.keys):
        path: Path = ("keys", index)
        if reason := _bad_name(key.name):
            yield Finding((*path, "name"), reason, key.name)
        elif key.name in names:
            yield Finding((*path, "name"), "expected a name that no other key has", key.name)
        if not _SHA256.fullmatch(key.sha256):
            # Not shown: it may be the key itself.
            hint = "printf %s KEY | sha256sum"
            if len(key.sha256) == 64 and set(key.sha256) <= set(string.hexdigits):  # noqa: PLR2004
                hint = "write its letters in lower case"
            yield Finding((*path, "sha256"), "expected the SHA-256 of the key, 64 hex digits", "***", hint)
        elif key.sha256 in hashes:
            yield Finding((*path, "sha256"), "expected a hash that no other key has", "***")
        names.append(key.name)
        hashes.append(key.sha256)
        for position, name in enumerate(key.models):
            if name not in catalog:
                yield Finding((*path, "models", position), "expected the name of a model", name, _which(name, facts))


CLUSTER_RULES: tuple[Rule, ...] = (
    more_than_nothing,
    timers_make_sense,
    counts_within_limits,
    unreachable_before_lost,
    replace_not_before_lost,
    grace_within_drain,
    connect_before_first_byte,
    plaintext_stays_home,
    addresses_differ,
    profiles_need_agents,
    names_are_unique,
    profile_or_endpoints,
    profiles_make_sense,
    endpoints_are_urls,
    keys_are_hashes,
)


def _seconds(duration: float) -> str:
    """As it can be written in the file."""
    return f"{duration:.15g}s"


def _models(facts: Facts) -> Iterator[tuple[Path, Model]]:
    for index, model in enumerate(facts.config.models):
        yield ("models", index), model


def _which(name: str, facts: Facts) -> str:
    for model in facts.config.models:
        if name in model.aliases:
            return f'"{name}" is an alias of "{model.name}": write that'
    found = nearest(name, [model.name for model in facts.config.models])
    return f'did you mean "{found}"?' if found else ""


def _bad_name(name: str) -> str:
    if not name or name != name.strip() or not name.isprintable():
        return "expected a name of printable characters without blanks around it"
    if len(name) > NAME_CHARS_MAX:
        return f"expected a name of at most {NAME_CHARS_MAX} characters"
    if name.startswith("/") or name.endswith("/"):
        return "expected a name that neither begins nor ends with a slash"
    return ""


def _profile(path: Path, profile: Profile, model: Model, facts: Facts) -> Iterator[Finding]:
    if profile.engine not in facts.engines:
        found = nearest(profile.engine, facts.engines)
        known = ", ".join(facts.engines)
        hint = f'did you mean "{found}"?' if found else ""
        yield Finding((*path, "engine"), f"expected an engine of this version: {known}", profile.engine, hint)
    if not profile.model and profile.engine != "command":
        yield Finding((*path, "model"), "required, and missing: expected a path or a name on the node")
    if profile.engine == "command" and not profile.args:
        yield Finding((*path, "args"), "required, and missing: the program and its arguments")
    for index, argument in enumerate(profile.args):
        if "\0" in argument:
            yield Finding((*path, "args", index), "expected an argument without a NUL character", argument)
    yield from check_fractions((*path, "args"), profile.args)
    for name, value in profile.env.items():
        if not _VARIABLE.fullmatch(name):
            yield Finding((*path, "env", name), "expected the name of a variable: letters, digits and _")
        if isinstance(value, Secret) and not value.file.startswith("/"):
            hint = "the file is on the node, so it is relative to nothing here"
            yield Finding((*path, "env", name, "file"), "expected an absolute path", hint=hint)
        if isinstance(value, str) and "\0" in value:
            yield Finding((*path, "env", name), "expected a value without a NUL character")
    if profile.gpu_memory is not None:
        if profile.gpus < 1:
            others = ((*path, "gpus"),)
            yield Finding((*path, "gpu_memory"), "is per GPU, and gpus = 0", hint="set gpus", others=others)
        if profile.gpu_memory <= 0:
            yield Finding((*path, "gpu_memory"), "expected a size of more than 0", profile.gpu_memory)
    if profile.probe not in PROBES and not profile.probe.startswith(PROBE_URL):
        yield Finding((*path, "probe"), f"expected one of {', '.join(PROBES)} or {PROBE_URL}PATH", profile.probe)
    if profile.nodes > 1 and not model.placement.fabric:
        hint = "set [models.placement] fabric to the network that its nodes share"
        others = ((*path[:-1], "placement", "fabric"),)
        yield Finding((*path, "nodes"), "several nodes need placement.fabric", profile.nodes, hint, others=others)


def _bad_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "expected http://HOST:PORT"
    if parts.scheme == "https":
        return "expected http://HOST:PORT; endpoints over TLS are not in force in this version"
    if parts.scheme != "http" or not parts.hostname or port == 0:
        return "expected http://HOST:PORT"
    if "@" in parts.netloc:
        return "expected http://HOST:PORT without a user or password; a key belongs into key_file"
    if parts.query or parts.fragment or not url.isprintable() or " " in url:
        return "expected http://HOST:PORT without a query"
    if parts.path.rstrip("/").endswith("/v1"):
        return "expected http://HOST:PORT without /v1: it is put there"
    return ""
