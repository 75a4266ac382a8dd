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
    200: "Done.",
    201: "Made.",
    204: "Deleted.",
    400: "The request is not valid; nothing was done.",
    403: "The topic takes signed broadcasts only.",
    404: "There is no such thing.",
    409: "It is there already, or still in use.",
    413: "The body is too large.",
    415: "The body is of a type that is not taken.",
    421: "Another broker serves this topic.",
    429: "A limit on what runs at the same time is reached; retry later.",
    503: "Not possible now; retry later.",
}


class Section(NamedTuple):
    """The routes of one API."""

    routes: Sequence[Route]
    meanings: Mapping[int, str] = MEANINGS
    """Descriptions of the statuses."""
    tags: tuple[str, ...] = ()


def document(*sections: Section) -> bytes:
    """The document of these APIs as JSON."""
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
