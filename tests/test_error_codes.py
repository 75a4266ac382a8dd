"""Every error has a code of its own, which programs may rely on."""

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import penstock
from penstock.model.errors import PenstockError, ResourceExists, ResourceInUse, ResourceUnknown


def _subclasses(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in kind.__subclasses__():
        yield child
        yield from _subclasses(child)


def _errors() -> list[type[PenstockError]]:
    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return [kind for kind in _subclasses(PenstockError) if kind.__module__.startswith("penstock.")]


def test_every_error_class_has_a_code_that_no_other_class_has() -> None:
    codes: dict[str, type[PenstockError]] = {PenstockError.code: PenstockError}
    for kind in _errors():
        code = vars(kind).get("code")
        assert isinstance(code, str), f"{kind.__qualname__} has no code of its own"
        assert re.fullmatch("[a-z][a-z0-9_]*", code), code
        assert codes.setdefault(code, kind) is kind, f"{kind} and {codes[code]} share {code}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ResourceUnknown("topic", "t"), "topic_not_found"),
        (ResourceUnknown("object store", "s"), "object_store_not_found"),
        (ResourceExists("tenant", "t"), "tenant_exists"),
        (ResourceInUse("namespace", "n", "has topics"), "namespace_in_use"),
    ],
)
def test_an_error_about_a_resource_has_a_code_for_the_kind_of_resource(
    error: PenstockError, code: str
) -> None:
    assert error.code == code
