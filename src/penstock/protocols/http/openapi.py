"""Generates the OpenAPI document from the routes of all APIs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock import __version__
from penstock.formats.api import ARROW_STREAM, FORM, JSON
from penstock.protocols.http.routes import Parameter, Route

_NAMES: Final = re.compile(r"\{(\w+)\}")
_REFERENCE: Final = "#/components/schemas/{name}"
_SEGMENT: Final = {"type": "string", "minLength": 1}
MEANINGS: Final = {
    200: "The request succeeded.",
    201: "The resource was created.",
    204: "The resource was deleted.",
    400: "The request is not valid; it changed nothing.",
    403: "The topic accepts only signed broadcasts.",
    404: "The resource does not exist.",
    409: "The resource exists already, or is still in use.",
    413: "The body is too large.",
    415: "The content type or encoding of the body is not supported.",
    421: "Another broker owns this topic.",
    429: "Too many requests are in progress; retry later.",
    503: "The broker cannot serve this request at the moment; retry later.",
}


class Section(NamedTuple):
    """The routes of one API."""

    routes: Sequence[Route]
    meanings: Mapping[int, str] = MEANINGS
    """Descriptions of the statuses."""
    tags: tuple[str, ...] = ()


def document(*sections: Section) -> bytes:
    """The OpenAPI document of these sections, as JSON."""
    routes = [route for section in sections for route in section.routes]
    kinds = list({kind: None for route in routes for kind in _kinds(route)})
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    known = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for section in sections:
        for route in section.routes:
            operation = _operation(route, section, known)
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Penstock", "version": __version__},
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _kinds(route: Route) -> list[Any]:
    kinds = [route.request, *route.replies.values()]
    return [kind for kind in kinds if kind not in (None, str)]


def _operation(route: Route, section: Section, known: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _identity(route),
        "responses": {
            str(status): _response(route, section, status, known) for status in route.replies
        },
    }
    if section.tags:
        operation["tags"] = section.tags
    names = _NAMES.findall(route.path)
    in_path = [Parameter(name, "", _SEGMENT, required=True, location="path") for name in names]
    if parameters := [*in_path, *route.parameters]:
        operation["parameters"] = list(map(_parameter, parameters))
    if body := _body(route, known):
        operation["requestBody"] = body
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described = {"description": parameter.meaning} if parameter.meaning else {}
    return {
        "name": parameter.name,
        "in": parameter.location,
        "required": parameter.required,
        **described,
        "schema": parameter.schema,
    }


def _body(route: Route, known: dict[Any, Any]) -> dict[str, Any] | None:
    if route.form:
        fields = {"type": "object", "properties": {name: {"type": "string"} for name in route.form}}
        return {"content": {FORM: {"schema": fields}}}
    if route.content_type:
        return {"content": {route.content_type: {}}}
    if route.request is None:
        return None
    content = _content(route.request, known)
    if route.arrow and route.parameters:
        content[ARROW_STREAM] = {}
    return {"required": True, "content": content}


def _response(route: Route, section: Section, status: int, known: dict[Any, Any]) -> dict[str, Any]:
    kind = route.replies[status]
    response: dict[str, Any] = {"description": section.meanings[status]}
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
    """A unique identifier of the operation, such as get_v1_tenants_tenant."""
    return "_".join([route.method.lower(), *re.findall(r"\w+", route.path.replace(".", "_"))])
