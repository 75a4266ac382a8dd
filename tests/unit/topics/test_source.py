"""The implementations of Source take and give what it says."""

import inspect

import pytest

from penstock.topics.local import LocalSource
from penstock.topics.remote import RemoteSource
from penstock.topics.source import Source

CALLS = [name for name in vars(Source) if not name.startswith("_")]


@pytest.mark.parametrize("implementation", [LocalSource, RemoteSource])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_takes_what_the_protocol_says(implementation: type, call: str) -> None:
    wanted = inspect.signature(getattr(Source, call)).parameters
    assert inspect.signature(getattr(implementation, call)).parameters == wanted
