"""The OpenAPI document, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.doors.http.routes import Route
from penstock.formats.api import ARROW_STREAM, JSON

_NAMES: Final = re.compile(r"\{(\w+)\}")
_REFERENCE: Final = "#/components/schemas/{name}"
_MEANINGS: Final = {
    200: "Done.",
    201: "Made.",
    204: "Deleted.",
    400: "The request is not valid; nothing was done.",
    404: "There is no such thing.",
    409: "It is there already, or still in use.",
    413: "The body is too large.",
    415: "The body is of a type that is not taken.",
    421: "Another broker serves this topic.",
    429: "A limit on what runs at the same time is reached; retry later.",
    503: "Not possible now; retry later.",
}


def document(routes: Iterable[Route], further: Mapping[str, Any] | None = None) -> bytes:
    """The whole document as JSON; `further` are paths that tell themselves."""
    listed = list(routes)
    kinds = list({kind: None for route in listed for kind in _kinds(route)})
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in listed:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Penstock", "version": __version__},
            "paths": paths | dict(further or {}),
            "components": {"schemas": components},
        }
    )


def _kinds(route: Route) -> list[Any]:
    kinds = [route.request, *route.replies.values()]
    return [kind for kind in kinds if kind not in (None, str)]


def _operation(route: Route, known: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _identity(route),
        "responses": {
            str(status): _response(route, status, kind, known)
            for status, kind in route.replies.items()
        },
    }
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _NAMES.findall(route.path)
    ]
    asked = [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.required,
            "description": parameter.meaning,
            "schema": parameter.schema,
        }
        for parameter in route.parameters
    ]
    if named or asked:
        operation["parameters"] = [*named, *asked]
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.request, known)}
        if route.arrow and route.parameters:
            operation["requestBody"]["content"][ARROW_STREAM] = {}
    return operation


def _response(route: Route, status: int, kind: Any, known: dict[Any, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": _MEANINGS[status]}
    if kind is str:
        response["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif kind is not None:
        response["content"] = _content(kind, known)
        if route.arrow and not route.parameters and status == min(route.replies):
            response["content"][ARROW_STREAM] = {}
    return response


def _content(kind: Any, known: dict[Any, Any]) -> dict[str, Any]:
    return {JSON: {"schema": known[kind]}}


def _identity(route: Route) -> str:
    """Such as get_v1_tenants_tenant."""
    return "_".join([route.method.lower(), *re.findall(r"\w+", route.path.replace(".", "_"))])
