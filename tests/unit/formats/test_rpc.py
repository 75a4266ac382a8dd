"""The calls of the gRPC services, and their messages."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError

from penstock.formats import rpc


def test_a_request_is_named_after_its_call() -> None:
    assert {name: method.request.DESCRIPTOR.name for name, method in rpc.METHODS.items()} == {
        name: f"{name}Request" for name in rpc.METHODS
    }


def test_a_call_has_the_path_of_its_service() -> None:
    assert rpc.METHODS["OffsetLocation"].path == "/penstock.v1.OffsetRegistry/OffsetLocation"
    assert rpc.METHODS["DeleteTopic"].path == "/penstock.v1.Admin/DeleteTopic"
    assert rpc.METHODS["DeleteTopic"].response is rpc.MESSAGES["google.protobuf.Empty"]


def test_a_message_is_read_back_and_other_bytes_are_refused() -> None:
    facts = rpc.message("ErrorFacts", error="Overloaded", facts=["a", "b"])
    assert rpc.parse("ErrorFacts", facts.SerializeToString()) == facts
    with pytest.raises(DecodeError):
        rpc.parse("ErrorFacts", b"\xff")
