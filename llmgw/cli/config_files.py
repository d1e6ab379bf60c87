"""What `llmgw config` does with files: reads them as the daemons do, and finds words for what it has read.

Apart from `cli.config`, so that the other commands start without all that a configuration needs.
"""

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from llmgw.commandline import read_cluster, read_control, read_node, read_text
from llmgw.config.changes import Changes, as_lines, compare, compare_nodes
from llmgw.config.kind import kind_of
from llmgw.config.load import Loaded
from llmgw.config.schema import ClusterConfig, NodeConfig
from llmgw.config.show import as_json, as_toml, rows
from llmgw.errors import ConfigError, Mistake, RefusedError

Kind = type[ClusterConfig] | type[NodeConfig]

NAMES: dict[Kind, str] = {ClusterConfig: "cluster.toml", NodeConfig: "node.toml"}
DAEMONS: dict[Kind, str] = {ClusterConfig: "llmgw-control", NodeConfig: "llmgw-agent"}


@attrs.frozen
class Checked:
    """What a daemon would say of one file."""

    file: str
    kind: Kind
    mistakes: tuple[Mistake, ...] = ()
    notes: tuple[str, ...] = ()


def kind_of_file(file: str, given: Kind | None) -> Kind:
    """Which of the two it is: as given, else by what is in it, else by its name. ConfigError: it cannot be read."""
    if given is not None:
        return given
    return kind_of(read_text(file)) or (NodeConfig if "node" in Path(file).name else ClusterConfig)


def show(file: str, given: Kind | None, environ: Mapping[str, str], *, json_wanted: bool) -> str:
    """Every value that is in force, with its origin. ConfigError."""
    kind = kind_of_file(file, given)
    loaded = _read(file, kind, environ)
    if json_wanted:
        settings = [as_json(row) for row in rows(loaded)]
        return _json({"file": file, "kind": NAMES[kind], "settings": settings, "notes": list(loaded.notes)})
    title = f"# {file} as {NAMES[kind]}, with the LLMGW_ variables of this shell\n"
    notes = "".join(f"# {note}\n" for note in loaded.notes)
    return f"{title}{notes}\n{as_toml(rows(loaded))}"


def check(file: str, given: Kind | None, environ: Mapping[str, str]) -> Checked:
    """As the daemon's `--check`."""
    kind: Kind = given or ClusterConfig
    try:
        kind = kind_of_file(file, given)
        loaded = read_control(file, environ, {}) if kind is ClusterConfig else read_node(file, environ)
    except ConfigError as error:
        return Checked(file, kind, error.mistakes)
    return Checked(file, kind, notes=loaded.notes)


def checks_as_json(checked: list[Checked]) -> str:
    """`{"files": [{"file", "kind", "ok", "mistakes": [{"origin", "path", "expected", "value", "hint"}], "notes"}]}`."""
    files = [
        {
            "file": one.file,
            "kind": NAMES[one.kind],
            "ok": not one.mistakes,
            "mistakes": [attrs.asdict(mistake) for mistake in one.mistakes],
            "notes": list(one.notes),
        }
        for one in checked
    ]
    return _json({"files": files})


def diff(old: str, new: str, given: Kind | None, environ: Mapping[str, str], *, json_wanted: bool) -> str:
    """What the new file would do in the place of the old one. ConfigError: of either; RefusedError: not of one kind.

    Relative paths of both are under the folder of the old one, since that is where the new one is to be put.
    """
    kinds: list[Kind] = []
    loaded: list[Loaded[Any]] = []
    mistakes: list[Mistake] = []
    for file in (old, new):
        try:
            kinds.append(kind_of_file(file, given))
            loaded.append(_read(file, kinds[-1], environ, base=Path(old).absolute().parent))
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(tuple(mistakes))
    kind, other = kinds
    if kind is not other:
        raise RefusedError(f"{old} is a {NAMES[kind]} and {new} a {NAMES[other]}: say which with --cluster or --node")
    before, after = loaded[0].config, loaded[1].config
    changes = compare(before, after) if kind is ClusterConfig else compare_nodes(before, after)
    if json_wanted:
        return _json(changes_as_data(changes, kind))
    return "\n".join(as_lines(changes, DAEMONS[kind])) + "\n"


def changes_as_data(changes: Changes, kind: Kind) -> dict[str, Any]:
    """`Changes` under the names of its attributes, with the kind of file."""

    def plain(_: Any, __: Any, value: Any) -> Any:
        return value.value if isinstance(value, Enum) else value

    return {"kind": NAMES[kind], **attrs.asdict(changes, value_serializer=plain)}


def _read(file: str, kind: Kind, environ: Mapping[str, str], *, base: Path | None = None) -> Loaded[Any]:
    return read_cluster(file, environ, base=base) if kind is ClusterConfig else read_node(file, environ, base=base)


def _json(data: Any) -> str:
    """ASCII only: nothing in a file steers the terminal."""
    return json.dumps(data, indent=2) + "\n"
