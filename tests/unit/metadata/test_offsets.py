"""The implementations of OffsetRegistry take and give what it says."""

import inspect

import pytest

from penstock.metadata.offsets import AtOwner, InObject, OffsetRegistry
from penstock.metadata.remote_offsets import RemoteOffsets
from penstock.topics.registry import LocalRegistry

CALLS = [name for name in vars(OffsetRegistry) if not name.startswith("_")]


@pytest.mark.parametrize("implementation", [LocalRegistry, RemoteOffsets])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_has_the_signature_of_the_protocol(implementation: type, call: str) -> None:
    wanted = inspect.signature(getattr(OffsetRegistry, call))
    assert inspect.signature(getattr(implementation, call)) == wanted


def test_both_places_begin_with_the_same_facts() -> None:
    assert AtOwner._fields[:3] == InObject._fields[:3] == ("partition", "first", "next")
