"""What the OpenAPI document promises holds for requests that nobody thought of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from tests.integration.process import FREE_PORT, WAIT_SECONDS, Broker

TOPICS: Final = "/v1/tenants/default/namespaces/default/topics"
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES: Final = {GenerationMode.POSITIVE: 20, GenerationMode.NEGATIVE: 8}
"""Of every operation: requests as they should be, and others."""
LONGEST_WAIT_MS: Final = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data: Path = tmp_path_factory.mktemp("data")
    with Broker("--data", str(data), *FREE_PORT) as broker:
        yield broker


def _create(broker: Broker, body: dict[str, Any]) -> None:
    connection = HTTPConnection(broker.host, broker.port, timeout=WAIT_SECONDS)
    headers = {"content-type": "application/json"}
    connection.request("POST", TOPICS, json.dumps(body), headers)
    assert connection.getresponse().status in (201, 409)
    connection.close()


def _aim(case: Any, draw: Any) -> None:
    """Let a request reach what exists, and never wait long: guessed names get nowhere."""
    topic = draw(st.sampled_from(["raw", "typed"]))
    names = {"tenant": "default", "namespace": "default", "topic": topic}
    for name in case.path_parameters or {}:
        case.path_parameters[name] = names.get(name, "raw")
    body = case.body
    if not isinstance(body, dict):
        return
    if "namespace" in body and "/namespaces" not in case.path:
        body["namespace"] = "default/default"
    for key in ("batches", "topics"):
        items = body.get(key)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and "topic" in item:
                item["topic"] = topic
                if draw(st.booleans()):
                    item["data"] = [{"payload": "x"}] if topic == "raw" else [{"n": 1}]


def _bound(case: Any) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("timeout_ms"), int):
        case.body["timeout_ms"] = min(case.body["timeout_ms"], LONGEST_WAIT_MS)


@pytest.mark.feature("F20")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", EXAMPLES)
def test_no_request_is_answered_otherwise_than_the_document_says(
    broker: Broker, mode: GenerationMode
) -> None:
    url = f"http://{broker.host}:{broker.port}"
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations: list[Any] = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    assert len(operations) > 15
    with requests.Session() as session:
        for operation in operations:
            _create(broker, {"topic": "raw"})
            _create(broker, {"topic": "typed", "fields": ["n:int64", "s:string?"]})

            @settings(
                max_examples=EXAMPLES[mode],
                deadline=None,
                database=None,
                phases=[Phase.generate],
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
            def holds(case: Any, data: st.DataObject) -> None:
                if data.draw(st.booleans()):
                    _aim(case, data.draw)
                _bound(case)
                case.call_and_validate(session=session, checks=CHECKS, timeout=WAIT_SECONDS)

            # Some operations take nothing that could be wrong.
            with suppress(Unsatisfiable):
                holds()
