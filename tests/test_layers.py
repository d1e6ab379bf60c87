"""The two rules of the tree: imports go one way, and what decides does no I/O.

main -> app -> actors -> net -> wire, engines, config -> core. Control, agent and router never import each other.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llmgw"

SHARED = {"errors", "latest", "strict", "logs", ""}
"""Top-level modules that every part but core may use (`""`: the version in llmgw itself)."""

PURE_SHARED = {"errors", "strict"}

MAY_IMPORT: dict[str, set[str]] = {
    "core": {"errors"},
    "wire": PURE_SHARED | {"core"},
    "config": PURE_SHARED | {"core"},
    "engines": PURE_SHARED | {"core"},
    "net": SHARED | {"core", "wire", "config", "engines"},
    "control": SHARED | {"core", "wire", "config", "engines", "net"},
    "agent": SHARED | {"core", "wire", "config", "engines", "net"},
    "router": SHARED | {"core", "wire", "config", "engines", "net"},
    "cli": SHARED | {"core", "config"},
    "launchers": {"errors", "core"},
    "demo": SHARED | {"core", "config", "net"},
}
"""Part -> what it may import besides itself. Siblings are not in each other's rows, and actors import no actor."""

MAIN_ONLY = {"commandline", "keyfiles"}
"""Top-level modules that only a `main` may use: they read what the operator wrote, and a mistake ends the process."""

MAINS = MAIN_ONLY | {"cli"}
"""Parts that are main's own: they may use those modules too."""

PROCESSES = ("main", "worker")
"""Modules that are processes: the commands, and what a router's parent starts."""

ACTORS = ("control", "agent", "router")
PURE = ("core", "wire", "config", "engines")

IMPURE = {
    *("trio", "time", "random", "os", "logging", "subprocess", "structlog", "socket", "threading", "asyncio"),
    *("multiprocessing", "select", "selectors", "secrets", "uuid", "tempfile", "shutil", "ssl", "sqlite3"),
}
"""A clock, randomness, a file, a process or a connection: the pure packages take what these give as arguments."""

AGENT_DOES_WITHOUT = {"starlette", "hypercorn", "prometheus_client", "click", "rich"}
"""One agent runs on every node: it stays small."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`core` of `llmgw.core.fleet`, `errors` of `llmgw.errors`, empty for `llmgw`."""
    return [*module.split("."), ""][1]


def imports_of(source: str) -> Iterator[str]:
    """Every module that the source imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").exists()
                is_package = (ROOT / inner.replace(".", "/")).is_dir()
                yield inner if module.startswith("llmgw") and (is_module or is_package) else module


def against_direction(module: str, imported: str) -> str:
    """Why the module may not import that one of ours; empty: it may."""
    mine, theirs = part_of(module), part_of(imported)
    last = module.rsplit(".", 1)[-1]
    imported_last = imported.rsplit(".", 1)[-1]
    if imported_last == "main" and mine != "":
        return "nothing imports a main"
    if imported_last == "app" and last not in PROCESSES:
        return "only a main imports an app"
    if theirs == mine:
        return ""
    if theirs in MAIN_ONLY:
        return "" if last == "main" or mine in MAINS else "only a main imports it"
    if mine in MAY_IMPORT and theirs not in MAY_IMPORT[mine]:
        return f"{mine} may import {', '.join(sorted(MAY_IMPORT[mine]))}"
    return ""


def test_every_part_has_its_row() -> None:
    """A new folder says what it may import before it imports anything."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(MAY_IMPORT)


def test_actors_are_strangers() -> None:
    """The table itself keeps control, agent and router apart."""
    for actor in ACTORS:
        assert not MAY_IMPORT[actor] & set(ACTORS)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("llmgw.control.nodes", "llmgw.agent.link"),
        ("llmgw.core.fleet", "llmgw.wire.messages"),
        ("llmgw.wire.codec", "llmgw.config.schema"),
        ("llmgw.core.fleet", "llmgw.strict"),
        ("llmgw.router.http", "llmgw.router.app"),
        ("llmgw.control.nodes", "llmgw.commandline"),
        ("llmgw.net.dial", "llmgw.control.nodes"),
    ],
)
def test_the_direction_rule_can_refuse(module: str, imported: str) -> None:
    assert against_direction(module, imported)


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_one_way(path: Path) -> None:
    module = name_of(path)
    wrong = {
        imported: reason
        for imported in imports_of(path.read_text())
        if imported.split(".")[0] == "llmgw" and (reason := against_direction(module, imported))
    }
    assert not wrong, f"{module} imports against the direction: {wrong}"


@pytest.mark.parametrize("path", [path for path in modules() if part_of(name_of(path)) in PURE], ids=name_of)
def test_pure_packages_do_no_io(path: Path) -> None:
    used = {imported.split(".")[0] for imported in imports_of(path.read_text())} & IMPURE
    assert not used, f"{name_of(path)} imports {sorted(used)}; take what they give as arguments"


def test_the_pure_rule_can_refuse() -> None:
    source = "def f():\n    from os import path\n    import trio.testing\n"
    assert {name.split(".")[0] for name in imports_of(source)} & IMPURE == {"os", "trio"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "core").rglob("*.py")), ids=name_of)
def test_core_needs_only_attrs(path: Path) -> None:
    for imported in imports_of(path.read_text()):
        top = imported.split(".")[0]
        known = top in sys.stdlib_module_names or top in {"attrs", "llmgw"}
        assert known, f"{name_of(path)} imports {imported}: core is the standard library and attrs"


@pytest.mark.parametrize("path", sorted((PACKAGE / "agent").rglob("*.py")), ids=name_of)
def test_the_agent_does_without_the_admin_libraries(path: Path) -> None:
    used = {imported.split(".")[0] for imported in imports_of(path.read_text())} & AGENT_DOES_WITHOUT
    assert not used


def test_the_shim_needs_only_the_standard_library() -> None:
    """It runs without site-packages, for months, beside agents of other versions; so does all that it imports."""
    left = [PACKAGE / "agent/shim.py"]
    seen: set[Path] = set()
    while left:
        path = left.pop()
        seen.add(path)
        for imported in imports_of(path.read_text()):
            if imported.startswith("llmgw"):
                left += {(ROOT / imported.replace(".", "/")).with_suffix(".py")} - seen
            else:
                assert imported.split(".")[0] in sys.stdlib_module_names, f"{name_of(path)} imports {imported}"
