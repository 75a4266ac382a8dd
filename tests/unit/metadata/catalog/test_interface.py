"""The implementations of Admin and OffsetRegistry have the calls of these interfaces."""

import inspect

import pytest

from penstock.metadata.catalog.interface import (
    PAGE_SIZE_DEFAULT,
    PAGE_SIZE_MAX,
    Admin,
    AtOwner,
    InObject,
    OffsetRegistry,
    PageQuery,
)
from penstock.metadata.remote.admin import RemoteAdmin
from penstock.metadata.remote.offsets import RemoteOffsets
from penstock.topics import LocalAdmin, LocalOffsets

IMPLEMENTATIONS = {Admin: (LocalAdmin, RemoteAdmin), OffsetRegistry: (LocalOffsets, RemoteOffsets)}
CASES = [
    (interface, implementation, call)
    for interface, implementations in IMPLEMENTATIONS.items()
    for implementation in implementations
    for call in vars(interface)
    if not call.startswith("_")
]


@pytest.mark.feature("F27")
@pytest.mark.parametrize(("interface", "implementation", "call"), CASES)
def test_every_call_has_the_signature_of_the_interface(
    interface: type, implementation: type, call: str
) -> None:
    signature = inspect.signature(getattr(interface, call))
    assert inspect.signature(getattr(implementation, call)) == signature


def test_the_default_page_request_is_for_the_first_page() -> None:
    assert PageQuery() == (PAGE_SIZE_DEFAULT, "")
    assert PAGE_SIZE_DEFAULT <= PAGE_SIZE_MAX


def test_both_kinds_of_location_begin_with_the_same_fields() -> None:
    assert AtOwner._fields[:3] == InObject._fields[:3] == ("partition", "first", "next")
