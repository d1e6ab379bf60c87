"""Text, environment and command line -> a configuration, or `ConfigError` with every mistake at once.

Pure: whoever calls has read the file and the environment. A value on the command line beats a variable, a variable
beats the file, and the file beats the default. Relative paths are relative to the directory of the file as it was
named (of the link, where the file is a symbolic link), wherever the value came from.
"""

import copy
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import attrs

from llmgw.config.cluster_rules import Facts, check_cluster
from llmgw.config.environment import FromEnvironment, Override, read_environment
from llmgw.config.findings import Finding
from llmgw.config.in_force import not_in_force
from llmgw.config.lines import key_lines, line_of
from llmgw.config.node_rules import check_node
from llmgw.config.reading import read
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.unknown import named_hint
from llmgw.config.values import BadValueError, path_under
from llmgw.core.catalog import Model
from llmgw.errors import ConfigError, Mistake
from llmgw.strict import Step, dotted

C = TypeVar("C")

_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_MODELS_TABLE = re.compile(r"^\s*\[\s*models\s*\.\s*(?!profile\b|placement\b)(.+?)\s*\]", re.MULTILINE)


@attrs.frozen
class Loaded(Generic[C]):
    """A configuration that is right, and where its values came from."""

    config: C
    origins: dict[str, str]
    """Dotted path -> `FILE:LINE`, a variable or an option. A setting that is not here has its default."""
    notes: tuple[str, ...] = ()
    """What was ignored, and why: to be logged."""


@attrs.frozen
class Source:
    """A configuration file's text, and what its mistakes are called by."""

    name: str
    """As the person named it, or a phrase where there is no file."""
    base: Path
    """Absolute: relative paths are under it."""
    text: str = ""


def load_cluster(
    source: Source, environ: Mapping[str, str], *, engines: tuple[str, ...], state_base: Path | None
) -> Loaded[ClusterConfig]:
    """The configuration of llmgw-control or llmgw-router.

    engines: the names that `profile.engine` may have. state_base: the folder that holds the default `state_dir`;
    None: it must be given.
    """
    merged = _merge(source, read_environment(environ, ClusterConfig), {})
    data = copy.deepcopy(merged.data)
    if state_base is not None:
        data.setdefault("state_dir", str(state_base / "control"))

    def rules(config: ClusterConfig) -> Iterator[Finding]:
        yield from check_cluster(Facts(config, merged.given, engines))
        yield from _key_files(config, source.base)

    config = _read(ClusterConfig, data, merged, rules)
    models = tuple(_finished(model, source.base) for model in config.models)
    return Loaded(attrs.evolve(config, models=models), merged.origins, merged.notes)


def load_node(
    source: Source,
    environ: Mapping[str, str],
    *,
    options: Mapping[str, tuple[str, str]],
    host_name: str,
    state_base: Path | None,
) -> Loaded[NodeConfig]:
    """The configuration of llmgw-agent.

    options: setting -> (option of the command line, value), as `{"control": ("--server", "gpu-head:7070")}`.
    state_base: the folder that holds the default `state_dir` and `models_dir`; None: both must be given.
    """
    merged = _merge(source, read_environment(environ, NodeConfig), options)
    data = copy.deepcopy(merged.data)
    data.setdefault("node_id", host_name)
    if state_base is not None:
        data.setdefault("state_dir", str(state_base / str(data["node_id"]).replace("/", "_")))
        data.setdefault("models_dir", str(state_base / "models"))
    config = _read(NodeConfig, data, merged, check_node)
    return Loaded(config, merged.origins, merged.notes)


# --- from three sources to one --------------------------------------------------------------------------------


@attrs.frozen
class _Merged:
    source: Source
    data: dict[str, Any]
    lines: dict[tuple[Step, ...], int]
    overridden: dict[tuple[Step, ...], str]
    """Path -> the variable or option that set it."""
    findings: tuple[tuple[str, Finding], ...]
    """(variable, what is wrong with it)."""
    notes: tuple[str, ...]

    @property
    def given(self) -> frozenset[tuple[Step, ...]]:
        return frozenset(path for path, _ in _paths(self.data, ()))

    @property
    def origins(self) -> dict[str, str]:
        return {dotted(path): self.origin(path) for path, value in _paths(self.data, ()) if not isinstance(value, dict)}

    def line(self, origin: str, path: tuple[Step, ...]) -> int:
        """Where in the file it is; before all lines what is not from the file."""
        return (line_of(self.lines, path) or 0) if origin.startswith(self.source.name) else 0

    def origin(self, path: tuple[Step, ...]) -> str:
        for length in range(len(path), 0, -1):
            if (name := self.overridden.get(path[:length])) is not None:
                return name
        line = line_of(self.lines, path)
        return self.source.name if line is None else f"{self.source.name}:{line}"


def _merge(source: Source, env: FromEnvironment, options: Mapping[str, tuple[str, str]]) -> _Merged:
    try:
        data = tomllib.loads(source.text)
        lines = key_lines(source.text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError((_not_toml(source, str(error)),)) from None
    except RecursionError:
        raise ConfigError(
            (Mistake(source.name, "", "expected tables and lists within each other, not so deep"),)
        ) from None
    overridden: dict[tuple[Step, ...], str] = {}
    given = [Override((key,), value, option) for key, (option, value) in options.items()]
    for override in (*env.overrides, *given):
        holder: Any = data
        for step in override.path[:-1]:
            holder = holder.setdefault(step, {}) if isinstance(holder, dict) else None
        if isinstance(holder, dict):  # else the file has something else where a table belongs, which is found later
            holder[override.path[-1]] = override.value
            overridden[override.path] = override.variable
    return _Merged(source, data, lines, overridden, env.findings, env.notes)


def _not_toml(source: Source, message: str) -> Mistake:
    origin = source.name
    if match := _AT_LINE.search(message):
        origin, message = f"{source.name}:{match[1]}", f"{message[: match.start()]} (column {match[2]})"
    hint = ""
    if table := _MODELS_TABLE.search(source.text):
        hint = named_hint("models", {table[1].replace('"', "").replace("'", ""): {}})
    return Mistake(origin, "", f"not TOML: {message}", hint=hint)


def _paths(value: Any, above: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Any]]:
    items: Iterable[tuple[Step, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for step, inner in items:
        yield (*above, step), inner
        yield from _paths(inner, (*above, step))


# --- mistakes -------------------------------------------------------------------------------------------------


def _read(cls: type[C], data: dict[str, Any], merged: _Merged, rules: Callable[[C], Iterator[Finding]]) -> C:
    """The configuration, or ConfigError with every mistake in the order of the file."""
    reading = read(cls, data, merged.source.base)
    found: list[tuple[str, Finding]] = list(merged.findings)
    found += [(merged.origin(finding.path), finding) for finding in reading.findings]
    wrong = [finding.path for _, finding in found if finding.path]
    for finding in (*not_in_force(reading.config), *rules(reading.config)):
        if not any(_touches(path, finding) for path in wrong):
            found.append((merged.origin(finding.path), finding))
    if found:
        found.sort(key=lambda item: merged.line(item[0], item[1].path))
        raise ConfigError(tuple(finding.mistake(origin) for origin, finding in found))
    return reading.config


def _touches(wrong: tuple[Step, ...], finding: Finding) -> bool:
    """The finding is about something that is wrong by itself, so that it may be a mere consequence."""
    return any(path[: len(wrong)] == wrong for path in (finding.path, *finding.others))


# --- what is relative to the file -----------------------------------------------------------------------------


def _key_files(config: ClusterConfig, base: Path) -> Iterator[Finding]:
    for number, model in enumerate(config.models):
        for index, endpoint in enumerate(model.endpoints):
            if endpoint.key_file:
                try:
                    path_under(base)(endpoint.key_file)
                except BadValueError as error:
                    path = ("models", number, "endpoints", index, "key_file")
                    yield Finding(path, f"expected {error.flaws[0].expected}", endpoint.key_file, error.hint)


def _finished(model: Model, base: Path) -> Model:
    """Key files absolute, URLs without a slash at the end."""
    endpoints = tuple(
        attrs.evolve(
            endpoint,
            url=endpoint.url.rstrip("/"),
            key_file=str(path_under(base)(endpoint.key_file)) if endpoint.key_file else "",
        )
        for endpoint in model.endpoints
    )
    return attrs.evolve(model, endpoints=endpoints)
