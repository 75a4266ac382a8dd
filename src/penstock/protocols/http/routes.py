"""Routes and the router: finds the handler of a request, and renders replies and errors.

A route is a row: method, path template, handler, and its description for the OpenAPI document. A
name in braces in a template matches one segment of a path. Segments are percent-decoded separately,
so a segment may contain a slash.

The server has two APIs, each with a router of its own. They differ in their renderer: JSON for
everything below /v1 and for monitoring, plain text for the channel API.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

from penstock.model.errors import PenstockError
from penstock.protocols.http.body import ClientGone
from penstock.protocols.http.errors import NOT_FOUND, BadRequest, failed
from penstock.protocols.http.reply import Event, Receive, Reply, Send, answer, error

METHOD_NOT_ALLOWED: Final = 405
FIELDS_MAX: Final = 100
"""Limit of the number of query parameters, and of form fields."""

Segments: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class Request:
    """A request and the names in its path, as its handler receives them."""

    scope: Event
    receive: Receive
    path: dict[str, str]
    """The segments that matched the names of the path template."""

    def query(self, *known: str) -> dict[str, str]:
        """The query parameters; raises BadRequest for unknown or repeated ones."""
        try:
            text = self.scope.get("query_string", b"").decode("ascii")
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX
            )
        except ValueError:
            raise BadRequest("the query is not percent-encoded UTF-8") from None
        parameters: dict[str, str] = {}
        for key, value in pairs:
            if key not in known:
                names = ", ".join(known) or "none"
                raise BadRequest(f"unknown query parameter {key[:200]!r}; known: {names}")
            if key in parameters:
                raise BadRequest(f"query parameter {key!r} is repeated")
            parameters[key] = value
        return parameters

    def values(self, parameter: str) -> list[str]:
        """All values of a query parameter; other parameters are ignored."""
        return parse_fields(self.scope.get("query_string", b"")).get(parameter, [])

    def value(self, parameter: str) -> str | None:
        """The first value of a query parameter, None if it is absent."""
        return next(iter(self.values(parameter)), None)

    def header(self, name: bytes) -> str | None:
        """The first value of a header, None if it is absent; `name` is in lower case."""
        for key, value in self.scope["headers"]:
            if key == name:
                return header_text(value)
        return None


Handler: TypeAlias = Callable[[Request], Awaitable[Reply]]


class Parameter(NamedTuple):
    """A query parameter or a header, as described in the OpenAPI document."""

    name: str
    meaning: str = ""
    schema: Mapping[str, Any] = {"type": "string"}
    required: bool = False
    location: str = "query"


class Route(NamedTuple):
    """A method of a path, its handler, and its description."""

    method: str
    path: str
    handler: Handler
    summary: str
    replies: Mapping[int, Any]
    """The type of the reply's body by status; None if it has no schema or no body."""
    request: Any = None
    """Type of the JSON body."""
    parameters: tuple[Parameter, ...] = ()
    arrow: bool = False
    """Whether requests and replies may be Arrow streams instead of JSON."""
    form: tuple[str, ...] = ()
    """The fields of a body that is a form."""
    content_type: str = ""
    """The media type of a body that is neither a form nor described by `request`."""


@dataclass(slots=True)
class PathTemplate:
    """The segments of a template, and the routes of its methods."""

    segments: Segments
    routes: dict[str, Route] = field(default_factory=dict)

    def match(self, segments: Segments) -> dict[str, str] | None:
        """The segments that match names, or None if the path does not match."""
        if len(segments) != len(self.segments):
            return None
        path: dict[str, str] = {}
        for expected, segment in zip(self.segments, segments, strict=True):
            if expected.startswith("{"):
                path[expected[1:-1]] = segment
            elif expected != segment:
                return None
        return path


class Renderer(Protocol):
    """The conventions of an API: its replies to unknown paths and methods, and its errors."""

    head_as_get: bool
    """Whether a HEAD request is served by the handler of GET."""
    empty_names: bool
    """Whether an empty segment matches a name of a template."""

    def unknown_path(
        self, scope: Event, segments: Segments, templates: Sequence[PathTemplate]
    ) -> Reply:
        """The reply to a path that matches none of the templates."""

    def other_method(self, scope: Event, methods: Collection[str]) -> Reply:
        """The reply to a method other than those of the path."""

    def failure(self, scope: Event, error: PenstockError) -> Reply:
        """The reply to a request whose handler raised an error."""

    async def send(self, scope: Event, send: Send, reply: Reply) -> None:
        """Send a reply."""


class Router:
    """Serves the requests of one API; replies exactly once unless the client disconnects."""

    def __init__(
        self,
        routes: Iterable[Route],
        renderer: Renderer,
        authenticate: Callable[[Event, Receive], Awaitable[Receive]] | None = None,
    ) -> None:
        """`authenticate` checks requests before they are routed, and may replace `receive`."""
        self.routes = list(routes)
        self._renderer, self._authenticate = renderer, authenticate
        by_path: dict[str, PathTemplate] = {}
        for route in self.routes:
            template = by_path.setdefault(route.path, PathTemplate(tuple(route.path.split("/"))))
            template.routes[route.method] = route
        self._fixed = {path: template for path, template in by_path.items() if "{" not in path}
        self._templates = list(by_path.values())

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request, as an ASGI application."""
        try:
            reply = await self.handle(scope, receive)
        except PenstockError as error:
            reply = self._renderer.failure(scope, error)
        except ClientGone:
            return
        await self._renderer.send(scope, send, reply)

    async def handle(self, scope: Event, receive: Receive) -> Reply:
        """Return the handler's reply; raises what the handler raises."""
        if self._authenticate is not None:
            receive = await self._authenticate(scope, receive)
        template, names = self._fixed.get(scope["path"]), dict[str, str]()
        if template is None:
            segments = path_segments(scope)
            for candidate in self._templates:
                match = candidate.match(segments)
                if match is not None and (self._renderer.empty_names or all(match.values())):
                    template, names = candidate, match
                    break
            else:
                return self._renderer.unknown_path(scope, segments, self._templates)
        method = scope["method"]
        if method == "HEAD" and self._renderer.head_as_get:
            method = "GET"
        route = template.routes.get(method)
        if route is None:
            return self._renderer.other_method(scope, template.routes)
        return await route.handler(Request(scope, receive, names))


class JsonRenderer:
    """Errors as JSON with a message and a code. HEAD is served like GET."""

    head_as_get = True
    empty_names = True

    def unknown_path(
        self, scope: Event, segments: Segments, templates: Sequence[PathTemplate]
    ) -> Reply:
        return error(NOT_FOUND, f"there is no resource at {scope['path']}")

    def other_method(self, scope: Event, methods: Collection[str]) -> Reply:
        names = [name for route in methods for name in (route, "HEAD")[: 1 + (route == "GET")]]
        allow = ", ".join(names)
        refusal = f"{scope['path']} allows {allow}, not {scope['method']}"
        return error(METHOD_NOT_ALLOWED, refusal)._replace(headers=((b"allow", allow.encode()),))

    def failure(self, scope: Event, error: PenstockError) -> Reply:
        return failed(error)

    async def send(self, scope: Event, send: Send, reply: Reply) -> None:
        await answer(scope, send, reply)


def path_segments(scope: Event) -> Segments:
    """The segments of the path, percent-decoded separately; raises BadRequest.

    The first segment is empty, since a path begins with a slash.
    """
    raw = (scope.get("raw_path") or scope["path"].encode()).partition(b"?")[0]
    try:
        return tuple(unquote(part, errors="strict") for part in raw.decode("ascii").split("/"))
    except UnicodeDecodeError:
        raise BadRequest("the path is not percent-encoded UTF-8") from None


def parse_fields(data: bytes) -> dict[str, list[str]]:
    """All values of each field of a form or a query; raises BadRequest."""
    fields: dict[str, list[str]] = {}
    try:
        text = data.decode("ascii")
        for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX):
            fields.setdefault(name, []).append(value)
    except ValueError:
        raise BadRequest("fields are not percent-encoded, or there are too many") from None
    return fields


def header_text(value: bytes) -> str:
    """A header's value as text: UTF-8 if it is valid UTF-8, else Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
