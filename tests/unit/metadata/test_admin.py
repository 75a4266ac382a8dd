"""The implementations of Admin take and give what it says."""

import inspect

import pytest

from penstock.metadata.admin import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, Admin, PageRequest
from penstock.metadata.remote_admin import RemoteAdmin
from penstock.topics.topics import Topics

CALLS = [name for name in vars(Admin) if not name.startswith("_")]


@pytest.mark.feature("F27")
@pytest.mark.parametrize("implementation", [Topics, RemoteAdmin])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_has_the_signature_of_the_protocol(implementation: type, call: str) -> None:
    wanted = inspect.signature(getattr(Admin, call))
    assert inspect.signature(getattr(implementation, call)) == wanted


def test_a_page_is_the_first_one_unless_told_otherwise() -> None:
    assert PageRequest() == (PAGE_SIZE_DEFAULT, "")
    assert PAGE_SIZE_DEFAULT <= PAGE_SIZE_MAX
