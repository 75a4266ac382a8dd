"""Reads the source as a strict reviewer would: sizes, docstrings, leftovers, and names."""

import ast
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests import source_figures
from tests.source_figures import MODULES, PACKAGE, ROOT, SOURCE, VAGUE_MODULES, tree

MODULE_LINES_MAX: Final = 600
FUNCTION_LINES_MAX: Final = 60

VAGUE_NAMES_MAX: Final = 0
UNCLEAR_DOCSTRINGS_MAX: Final = 0
REPEATED_CLASS_NAMES_MAX: Final = 0
LARGE_CLASSES_MAX: Final = 0
CALLBACK_SLOTS_MAX: Final = 0
LOOP_CALLS_MAX: Final = 1
IMPORTS_PAST_PACKAGES_MAX: Final = 0
"""How far the source is from rules that it does not meet yet. These limits only fall."""

METHODS_MAX: Final = 30

LEFTOVERS: Final = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
MACHINE: Final = re.compile(
    r"/(?:work|root|opt)/|/(?:home|Users)/[a-z]+/"
    r"|\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|docker\.io|ghcr\.io)\b"
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _text_files() -> Iterator[tuple[Path, str]]:
    """Everything that is or would be committed and is text, but for this file's own patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        with suppress(UnicodeDecodeError, FileNotFoundError):
            if path != Path(__file__):
                yield path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_is_too_long_to_have_one_job(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES_MAX


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_function_is_too_long_to_be_read_at_once(path: Path) -> None:
    long = [
        f"{node.name} has {lines} lines"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_its_job(path: Path) -> None:
    empty_package = path.name == "__init__.py" and not tree(path).body
    assert empty_package or ast.get_docstring(tree(path))


def test_unit_tests_are_grouped_as_the_packages_are() -> None:
    """Within a package tests are grouped by concept, not one file for each module."""
    packages = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_dir()}
    packages.add(".")
    unit_tests = ROOT / "tests/unit"
    folders = {str(path.parent.relative_to(unit_tests)) for path in unit_tests.rglob("test_*.py")}
    assert folders <= packages


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_has_a_name_that_means_nothing(path: Path) -> None:
    assert not VAGUE_MODULES.intersection(path.relative_to(SOURCE).with_suffix("").parts)


def test_names_say_what_they_stand_for() -> None:
    found = source_figures.vague_names()
    assert len(found) <= VAGUE_NAMES_MAX, "\n".join(map(str, found))


def test_docstrings_are_understood_without_their_neighbours() -> None:
    found = source_figures.unclear_docstrings()
    assert len(found) <= UNCLEAR_DOCSTRINGS_MAX, "\n".join(map(str, found))


def test_a_class_name_is_unique_in_the_source() -> None:
    found = source_figures.repeated_class_names()
    assert len(found) <= REPEATED_CLASS_NAMES_MAX, found


def test_a_class_is_one_thing() -> None:
    counts = source_figures.methods_of_classes()
    found = [(count, name) for name, count in counts.items() if count > METHODS_MAX]
    assert len(found) <= LARGE_CLASSES_MAX, sorted(found)


def test_objects_are_complete_when_their_constructors_return() -> None:
    found = source_figures.callback_slots()
    assert len(found) <= CALLBACK_SLOTS_MAX, "\n".join(map(str, found))


def test_tasks_and_timers_are_made_by_the_loop_tools() -> None:
    found = source_figures.loop_calls()
    assert len(found) <= LOOP_CALLS_MAX, "\n".join(map(str, found))


def test_packages_are_used_through_the_names_they_export() -> None:
    found = source_figures.reaching_past_packages()
    assert len(found) <= IMPORTS_PAST_PACKAGES_MAX, "\n".join(map(str, found))


def test_nothing_is_left_over_in_the_code() -> None:
    found = [
        f"{_name(path)}:{number}"
        for path, text in _text_files()
        if path.suffix == ".py"
        for number, line in enumerate(text.splitlines(), 1)
        if LEFTOVERS.search(line)
    ]
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_the_command_line_prints(path: Path) -> None:
    prints = [
        node.lineno
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Name) and node.id == "print"
    ]
    assert not prints or path.is_relative_to(PACKAGE / "cli")


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path, text in _text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert not found


def test_readme_and_makefile_name_the_same_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    rules = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", readme, re.MULTILINE))
    assert rules == set(phony[1].split())
    assert rules == {first or second for first, second in named}


def test_the_makefile_fits_on_one_screen() -> None:
    assert len((ROOT / "Makefile").read_text(encoding="utf-8").splitlines()) <= 50
