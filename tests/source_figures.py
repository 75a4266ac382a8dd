"""Measures the source: size, structure and words; `python -m tests.source_figures` prints it.

tests/test_tidy.py compares what is found here with limits.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src"
PACKAGE: Final = SOURCE / "penstock"
MODULES: Final = sorted(SOURCE.rglob("*.py"))

VAGUE_NAMES: Final = {
    *("told", "kept", "given", "asked", "made", "taken", "wanted", "arrived", "one", "some"),
    *("rest", "doubts", "duty", "births", "thing", "stuff"),
}
"""Names that say when or that something happened, but not what it is."""

VAGUE_MODULES: Final = {
    *("utils", "util", "common", "core", "base", "helpers", "services", "misc"),
    *("doubts", "duty", "terms", "samples", "leftovers", "births", "arrived", "holders"),
    *("under_way", "giving_way", "told", "door", "doors"),
}

UNCLEAR_OPENINGS: Final = re.compile(r"(The same|Of|Those)\b")
"""A docstring that begins so is understood only after its neighbour was read."""

LOOP_TOOLS: Final = PACKAGE / "host" / "tasks.py"
LOOP_CALLS: Final = {"create_task", "call_later", "call_at", "ensure_future"}

LIBRARY_PACKAGES: Final = {"model", "formats", "wire", "ledger", "host", "assembly"}
"""Packages whose modules are public: a module of their own is all that an importer should load."""


class Finding(NamedTuple):
    """Where a rule is not met."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def vague_names() -> list[Finding]:
    """Definitions of variables, parameters, attributes and functions with a banned name."""
    return [
        Finding(path, line, name)
        for path in MODULES
        for line, name in sorted(_defined(tree(path)))
        if name.lstrip("_") in VAGUE_NAMES
    ]


def _defined(module: ast.Module) -> set[tuple[int, str]]:
    found: set[tuple[int, str]] = set()
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add((node.lineno, name))
            case ast.Attribute(attr=name, ctx=ast.Store()):
                found.add((node.lineno, name))
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add((node.lineno, name))
            case ast.alias(asname=str(name)):
                found.add((node.lineno, name))
    return found


def unclear_docstrings() -> list[Finding]:
    """Docstrings, also those of attributes, that begin in a way that needs their neighbour."""
    return [
        Finding(path, node.lineno, node.value.value.splitlines()[0])
        for path in MODULES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and UNCLEAR_OPENINGS.match(node.value.value)
    ]


def callback_slots() -> list[Finding]:
    """Assignments of a function to an attribute of another object."""
    found = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, _CALLABLES):
                continue
            for target in node.targets:
                if isinstance(target, ast.Attribute) and not _is_self(target.value):
                    is_function = (
                        isinstance(node.value, ast.Lambda)
                        or target.attr.startswith(("on_", "before_"))
                        or _is_method(path, node.value)
                    )
                    if is_function:
                        found.append(Finding(path, node.lineno, ast.unparse(node)))
    return found


_CALLABLES: Final = (ast.Lambda, ast.Attribute, ast.Name)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _is_method(path: Path, node: ast.expr) -> bool:
    """Whether an expression is named like a function that some module defines."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    if isinstance(node, ast.Attribute) and _is_self(node.value):
        return name in _functions(path)
    return isinstance(node, ast.Attribute) and name in _all_methods() - _all_properties()


@cache
def _functions(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list
    )


@cache
def _all_methods() -> frozenset[str]:
    return frozenset().union(*map(_functions, MODULES))


@cache
def _all_properties() -> frozenset[str]:
    """Names that are attributes or properties somewhere, and so may hold plain values."""
    names = set()
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                names.add(node.name)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return frozenset(names)


def loop_calls() -> list[Finding]:
    """Tasks and timers made elsewhere than by the loop tools."""
    return [
        Finding(path, node.lineno, node.func.attr)
        for path in MODULES
        if path != LOOP_TOOLS
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOOP_CALLS
        and not _is_task_group(node.func.value)
    ]


def _is_task_group(owner: ast.expr) -> bool:
    """A TaskGroup owns its tasks; by convention its name ends in `group` or `tasks`."""
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    return name.endswith(("group", "tasks"))


def repeated_class_names() -> dict[str, list[str]]:
    """Public class names that two or more modules define."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def methods_of_classes() -> Counter[str]:
    """Methods of every class, properties included."""
    return Counter(
        {
            f"{path.relative_to(SOURCE)}:{node.name}": sum(
                isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) for child in node.body
            )
            for path in MODULES
            for node in ast.walk(tree(path))
            if isinstance(node, ast.ClassDef)
        }
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports() -> tuple[tuple[Path, int, str], ...]:
    """Every import of a module of ours: from where, and which module or package."""
    known = {module_name(path) for path in MODULES}
    found = []
    for path in MODULES:
        for node in ast.walk(tree(path)):
            for line, name in _imported(node):
                found.append((path, line, name if name in known else name.rpartition(".")[0]))
    return tuple((path, line, name) for path, line, name in found if name in known)


def _imported(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            yield node.lineno, f"{node.module}.{alias.name}"
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name


def imported_by_one_module() -> list[str]:
    """Modules that exactly one other module imports, a package's list of names apart."""
    importers: defaultdict[str, set[Path]] = defaultdict(set)
    for path, _, name in imports():
        if path.name != "__init__.py":
            importers[name].add(path)
    return sorted(
        module_name(path)
        for path in MODULES
        if path.name != "__init__.py" and len(importers[module_name(path)]) == 1
    )


def reaching_past_packages() -> list[Finding]:
    """Imports of a module inside another package, instead of the names that package exports."""
    packages = {module_name(path) for path in MODULES if path.name == "__init__.py"}
    return [
        Finding(path, line, name)
        for path, line, name in imports()
        if name not in packages
        and name.count(".") > 1
        and (top := name.split(".")[1]) not in LIBRARY_PACKAGES
        and module_name(path).split(".")[1:2] != [top]
    ]


def main() -> None:
    """Print one line for each figure."""
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES]
    classes = methods_of_classes()
    for name, figure in {
        "lines": sum(lines),
        "files": len(MODULES),
        "files under 60 lines": sum(count < 60 for count in lines),
        "modules imported by one other": len(imported_by_one_module()),
        "class names in two or more modules": len(repeated_class_names()),
        "classes with more than 30 methods": sum(count > 30 for count in classes.values()),
        "callback slots": len(callback_slots()),
        "tasks and timers outside host/tasks.py": len(loop_calls()),
        "imports past a package": len(reaching_past_packages()),
        "vague names": len(vague_names()),
        "unclear docstring openings": len(unclear_docstrings()),
    }.items():
        print(f"{figure:7} {name}")


if __name__ == "__main__":
    main()
