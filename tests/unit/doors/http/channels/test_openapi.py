"""The document names every call of the channel API, and no other."""

from unittest.mock import MagicMock

from penstock.doors.http.channels.app import _places
from penstock.doors.http.channels.openapi import ABOUT, paths


def test_the_document_and_the_router_know_the_same_calls() -> None:
    served = {
        (path, method)
        for path, methods in _places(MagicMock(), MagicMock(), True).items()
        for method in methods
    }
    assert {(path, method) for path, calls in ABOUT.items() for method in calls} == served


def test_operations_have_names_of_their_own_and_tell_their_tokens() -> None:
    operations = [operation for calls in paths().values() for operation in calls.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    claim = paths()["/channel/{channel}/consumer/{consumer}/claim"]["post"]
    assert [parameter["name"] for parameter in claim["parameters"]] == [
        "channel",
        "consumer",
        "X-Broker-Channel-Token",
        "X-Broker-Consumer-Token",
        "limit",
        "timeout",
    ]
