"""What the tree promises of itself: short modules, a test file for each, nothing that nobody uses."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llmgw"
TESTS = ROOT / "tests"

MODULE_LINES_MAX = 500

OF_NO_MODULE = ("e2e", "fuzz")
"""Folders of tests that are about several modules at once."""

OF_THE_TREE = {"test_layers.py", "test_tidy.py", "test_conf.py", "test_scripts.py", "test_units.py"}
"""Tests that are about the tree, not about a module."""

OF_A_CASE = re.compile(r"test_([a-g][0-9]{2}|field_cases)\.py")
"""Tests of one trouble, which are called by its id, or of several."""


def modules() -> list[Path]:
    """Every module with something in it."""
    return sorted(path for path in PACKAGE.rglob("*.py") if path.read_text().strip())


def with_code() -> list[Path]:
    """Every module that does more than gather names."""
    return [path for path in modules() if path.name != "__init__.py"]


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", modules(), ids=shown)
def test_module_is_short(path: Path) -> None:
    """A reader can hold it; a longer one has two subjects."""
    assert len(path.read_text().splitlines()) <= MODULE_LINES_MAX


def test_modules_have_their_test_file() -> None:
    """What a module promises is found in one place."""
    mirrors = {path: TESTS / path.relative_to(PACKAGE).parent / f"test_{path.name}" for path in with_code()}
    missing = [shown(mirror) for mirror in mirrors.values() if not mirror.exists()]
    assert not missing


def test_test_files_mirror_modules() -> None:
    """A test file is found by the name of what it tests."""
    strays = []
    for path in sorted(TESTS.rglob("test_*.py")):
        inside = path.relative_to(TESTS)
        if inside.parts[0] in OF_NO_MODULE or str(inside) in OF_THE_TREE or OF_A_CASE.fullmatch(inside.name):
            continue
        name = inside.name.removeprefix("test_")
        is_package = (PACKAGE / inside.parent / name.removesuffix(".py") / "__init__.py").exists()
        if not is_package and not (PACKAGE / inside.parent / name).exists():
            strays.append(shown(path))
    assert not strays


def test_no_module_is_dead() -> None:
    """Each is imported by another, is a command, or is started by its name."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    sources = {path: path.read_text() for path in modules()}
    sources |= {path: path.read_text() for path in sorted((ROOT / "scripts").iterdir()) if path.is_file()}
    dead = []
    for path in with_code():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        package, _, last = name.rpartition(".")
        used = re.compile(
            rf"\b{re.escape(name)}\b|from {re.escape(package)} import [^\n]*\b{last}\b|[\"'/]{re.escape(last)}\.py\b"
        )
        is_command = any(target.split(":")[0] == name for target in scripts.values())
        if not is_command and not any(used.search(text) for other, text in sources.items() if other != path):
            dead.append(shown(path))
    assert not dead


def catches_everything(source: str) -> list[int]:
    """Lines of `except:`, `except Exception` and `except BaseException`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = [kind.id for kind in kinds if isinstance(kind, ast.Name)]
            if node.type is None or {"Exception", "BaseException"} & set(names):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "wire").glob("*.py")), ids=shown)
def test_wire_catches_nothing_wholesale(path: Path) -> None:
    """Whatever bytes give is a message or a PeerError because each place says which, not because all is swallowed."""
    assert not catches_everything(path.read_text())


def test_wholesale_catching_is_found() -> None:
    source = "try:\n    f()\nexcept (OSError, Exception):\n    g()\ntry:\n    f()\nexcept:\n    g()\n"
    assert catches_everything(source) == [3, 7]


@pytest.mark.parametrize("path", sorted([*(ROOT / "scripts").iterdir(), ROOT / ".ci/run"]), ids=shown)
def test_scripts_can_be_run(path: Path) -> None:
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env ")
