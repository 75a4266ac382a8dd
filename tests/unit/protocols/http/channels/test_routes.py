"""Routes of the channel API, and their part of the OpenAPI document."""

import json
from typing import Any
from unittest.mock import MagicMock

from penstock.protocols.http import openapi
from penstock.protocols.http.channels.routes import ROOTS, channel_router, section


def _operations() -> dict[str, dict[str, Any]]:
    routes = channel_router(MagicMock(), MagicMock()).routes
    paths: dict[str, dict[str, Any]] = json.loads(openapi.document(section(routes)))["paths"]
    return paths


def test_the_roots_are_the_first_segments_of_all_paths() -> None:
    assert {path.split("/")[1] for path in _operations()} == ROOTS


def test_operations_have_unique_names_and_list_their_tokens() -> None:
    operations = [operation for calls in _operations().values() for operation in calls.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))
    claim = _operations()["/channel/{channel}/consumer/{consumer}/claim"]["post"]
    assert [parameter["name"] for parameter in claim["parameters"]] == [
        "channel",
        "consumer",
        "X-Broker-Channel-Token",
        "X-Broker-Consumer-Token",
        "limit",
        "timeout",
    ]
