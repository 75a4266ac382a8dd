"""Which handler a request goes to: path templates and methods, and what is known of each.

The same table makes the OpenAPI document. A name in braces stands for one segment of a path, which
is percent-decoded by itself, so that it may hold a slash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote

from penstock.doors.http.errors import NOT_FOUND, BadRequest
from penstock.doors.http.reply import Event, Receive, Reply, error

METHOD_NOT_ALLOWED: Final = 405


@dataclass(slots=True)
class Request:
    """One request, on its way to its handler."""

    scope: Event
    receive: Receive
    path: dict[str, str]
    """What stands in the place of the template's names."""

    def query(self, *known: str) -> dict[str, str]:
        """The parameters behind the path; raises BadRequest for unknown or repeated ones."""
        try:
            text = self.scope.get("query_string", b"").decode("ascii")
            pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
        except ValueError:
            raise BadRequest("the query is not percent-encoded UTF-8") from None
        given: dict[str, str] = {}
        for key, value in pairs:
            if key not in known:
                taken = ", ".join(known) or "none"
                raise BadRequest(f"unknown query parameter {key[:200]!r}; known: {taken}")
            if key in given:
                raise BadRequest(f"query parameter {key!r} is there twice")
            given[key] = value
        return given


Handler: TypeAlias = Callable[[Request], Awaitable[Reply]]


class Parameter(NamedTuple):
    """A query parameter as the OpenAPI document tells it."""

    name: str
    meaning: str
    schema: Mapping[str, Any] = {"type": "string"}
    required: bool = False


class Route(NamedTuple):
    """A method of a path, and what is known of it."""

    method: str
    path: str
    handler: Handler
    summary: str
    replies: Mapping[int, Any]
    """What comes back by status: a type, or None for nothing."""
    request: Any = None
    """Type of the JSON body."""
    parameters: tuple[Parameter, ...] = ()
    arrow: bool = False
    """Whether an Arrow stream does as well as JSON, both ways."""


@dataclass(slots=True)
class _Place:
    segments: tuple[str, ...]
    routes: dict[str, Route] = field(default_factory=dict)

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        if len(segments) != len(self.segments):
            return None
        path: dict[str, str] = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted.startswith("{"):
                path[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return path


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        places: dict[str, _Place] = {}
        for route in self.routes:
            place = places.setdefault(route.path, _Place(tuple(route.path.split("/"))))
            place.routes[route.method] = route
        self._fixed = {path: place for path, place in places.items() if "{" not in path}
        self._templates = [place for path, place in places.items() if "{" in path]

    async def handle(self, scope: Event, receive: Receive) -> Reply:
        """The reply of the handler; raises what that raises."""
        path = scope["path"]
        place, names = self._fixed.get(path), dict[str, str]()
        if place is None:
            segments = _segments(scope)
            for candidate in self._templates:
                matched = candidate.match(segments)
                if matched is not None:
                    place, names = candidate, matched
                    break
        if place is None:
            return error(NOT_FOUND, f"there is nothing at {path}")
        method = scope["method"]
        route = place.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            return _not_allowed(path, method, place)
        return await route.handler(Request(scope, receive, names))


def _segments(scope: Event) -> tuple[str, ...]:
    raw = scope.get("raw_path") or scope["path"].encode()
    try:
        return tuple(unquote(part, errors="strict") for part in raw.decode("ascii").split("/"))
    except UnicodeDecodeError:
        raise BadRequest("the path is not percent-encoded UTF-8") from None


def _not_allowed(path: str, method: str, place: _Place) -> Reply:
    methods = [name for route in place.routes for name in (route, "HEAD")[: 1 + (route == "GET")]]
    allow = ", ".join(methods)
    refused = error(METHOD_NOT_ALLOWED, f"{path} takes {allow}, not {method}")
    return refused._replace(headers=((b"allow", allow.encode()),))
