"""Files and names on the documentation pages exist; the layers are those of the contract."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.source_figures import PACKAGE, ROOT, tree

ARCHITECTURE: Final = ROOT / "docs/architecture.md"
PAGES: Final = [
    ARCHITECTURE,
    ROOT / "docs/glossary.md",
    ROOT / "CONTRIBUTING.md",
]
FLOWS: Final = ("Publish", "Pull", "Upload", "Recovery")
STEPS_MIN: Final = 5

STEP: Final = re.compile(r"`([a-z_0-9/]+\.py)` `([A-Za-z_0-9.]+)`")
"""A file below the package, then a name in it."""
FILE: Final = re.compile(r"`([a-z_0-9/]+\.py)`")
FOLDER: Final = re.compile(r"`([a-z_0-9]+(?:/[a-z_0-9]+)*/)`")
OUTSIDE_PACKAGE: Final = ("src/", "tests/", "bench/", "demo/", "docs/", "data/")


def _name(path: Path) -> str:
    return path.name


def _text(page: Path) -> str:
    """The page with lines joined, so that a file and its name may stand on two lines."""
    return " ".join(page.read_text(encoding="utf-8").split())


def _section(heading: str) -> str:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/architecture.md has no section {heading!r}"
    return " ".join(match[1].split())


def _path(name: str) -> Path:
    return (ROOT if name.startswith(OUTSIDE_PACKAGE) else PACKAGE) / name


@cache
def _names(path: Path) -> frozenset[str]:
    """Top-level names of a module, and members of its classes as `Class.member`."""
    found = set()
    for node in tree(path).body:
        names = _bound(node)
        found.update(names)
        if isinstance(node, ast.ClassDef):
            members = [name for inner in node.body for name in _bound(inner)]
            found.update(f"{node.name}.{member}" for member in members)
    return frozenset(found)


def _bound(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_name_on_a_page_exists_in_its_file(page: Path) -> None:
    missing = [
        f"{file} {name}"
        for file, name in STEP.findall(_text(page))
        if not _path(file).is_file() or name not in _names(_path(file))
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_file_and_folder_on_a_page_exists(page: Path) -> None:
    text = _text(page)
    assert not [file for file in FILE.findall(text) if not _path(file).is_file()]
    assert not [folder for folder in FOLDER.findall(text) if not _path(folder).is_dir()]


@pytest.mark.parametrize("heading", FLOWS)
def test_a_flow_names_the_file_and_the_function_of_its_steps(heading: str) -> None:
    assert len(STEP.findall(_section(heading))) >= STEPS_MIN


def test_the_layers_on_the_page_are_those_of_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each.get("containers") == ["penstock"])
    layers = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    rows = re.findall(r"^\| ([a-z, ]+) \|", _table("Layers"), re.MULTILINE)
    assert [sorted(row.split(", ")) for row in rows] == [sorted(layer) for layer in layers]


def _table(heading: str) -> str:
    return (
        ARCHITECTURE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].split("\n## ")[0]
    )


def test_every_module_that_creates_a_lock_of_the_loop_is_in_the_lock_order() -> None:
    creates = re.compile(
        r"asyncio\.Lock\(\)|default_factory=asyncio\.Lock\b|KeyedLocks\(|KeyedLocks\[.*\]\("
    )
    modules = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name != "tasks.py" and creates.search(path.read_text(encoding="utf-8"))
    }
    assert modules <= set(FILE.findall(_section("Locks")))
