import json
from typing import Any

import jsonschema_rs
import pytest

from penstock.formats.api import ARROW_STREAM, JSON
from penstock.protocols.http.routes import METHOD_NOT_ALLOWED
from tests.broker.http import HttpSite


async def _document(server: HttpSite) -> dict[str, Any]:
    answer = await server.ask("GET", "/openapi.json")
    assert answer.status == 200
    document: dict[str, Any] = answer.body
    return document


async def test_every_route_is_in_the_document_with_its_errors(server: HttpSite) -> None:
    paths = (await _document(server))["paths"]
    told = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert told == {f"{route.method} {route.path}" for route in server.app._router.routes}
    for path, methods in paths.items():
        for method, operation in methods.items():
            if path.startswith("/v1"):
                assert "400" in operation["responses"], (method, path)
            assert operation["summary"].endswith(".")
    push, fetch = paths["/v1/push"]["post"], paths["/v1/fetch"]["post"]
    assert set(push["requestBody"]["content"]) == {JSON, ARROW_STREAM}
    assert set(fetch["requestBody"]["content"]) == {JSON}
    assert set(fetch["responses"]["200"]["content"]) == {JSON, ARROW_STREAM}
    assert set(push["responses"]["200"]["content"]) == {JSON}
    names = [item["name"] for item in paths["/v1/tenants/{tenant}"]["get"]["parameters"]]
    assert names == ["tenant"]


async def test_every_operation_has_a_name_of_its_own(server: HttpSite) -> None:
    paths = (await _document(server))["paths"]
    names = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert "get_v1_tenants_tenant" in names


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (("POST", "/v1/push", {"namespace": "default/default", "batches": []}), 400),
        (("GET", "/v1/tenants", None), 200),
        (("GET", "/v1/tenants/nobody", None), 404),
        (("PUT", "/v1/tenants", None), METHOD_NOT_ALLOWED),
    ],
)
async def test_replies_are_as_the_document_says(
    server: HttpSite, request_: tuple[str, str, Any], status: int
) -> None:
    document = await _document(server)
    answer = await server.ask(*request_)
    assert answer.status == status
    path = "/v1/tenants/{tenant}" if "nobody" in request_[1] else request_[1]
    operation = document["paths"][path].get(request_[0].lower())
    if operation is None:
        reference = "#/components/schemas/ErrorReply"
    else:
        reference = operation["responses"][str(status)]["content"][JSON]["schema"]["$ref"]
    schema = {"$ref": reference, "components": document["components"]}
    jsonschema_rs.validate(schema, json.loads(json.dumps(answer.body)))
