"""docs/api.md lists the public names of the Python packages."""

import ast
import re
from typing import Final

import pytest

from penstock.client import Client, SyncClient
from tests.source_figures import PACKAGE, ROOT, tree

PAGE: Final = (ROOT / "docs/api.md").read_text(encoding="utf-8")
MODULES: Final = {
    "penstock": "__init__.py",
    "penstock.nats": "nats.py",
    "penstock.spark": "spark/__init__.py",
    "penstock.spark.pipelines": "spark/pipelines/__init__.py",
}


def _section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def _exported(module: str) -> set[str]:
    """The names in `__all__`, without importing what a module imports."""
    for node in tree(PACKAGE / MODULES[module]).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no __all__")


@pytest.mark.parametrize("module", MODULES)
def test_every_exported_name_is_on_the_page(module: str) -> None:
    named = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", _section(module)))
    assert _exported(module) <= named


@pytest.mark.parametrize("client", [Client, SyncClient])
def test_every_method_of_a_client_is_on_the_page(client: type) -> None:
    methods = {name for name in dir(client) if not name.startswith("_")}
    assert methods <= set(re.findall(r"`(\w+)\([^`]*\)`", _section("penstock")))
