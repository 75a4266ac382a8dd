"""The ASGI application of the HTTP server: the routes of the broker's API and the channel API."""

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.formats.api import ErrorReply
from penstock.model.metrics import Metric
from penstock.protocols.http import channels as channel_api
from penstock.protocols.http import metrics, openapi
from penstock.protocols.http.admin import Administration
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.consumers import ConsumerPages
from penstock.protocols.http.engine_api import EngineApi
from penstock.protocols.http.errors import MISDIRECTED, FetchOnly
from penstock.protocols.http.fetch import Fetches
from penstock.protocols.http.messages import Messages
from penstock.protocols.http.push import Pushes
from penstock.protocols.http.reply import Event, Receive, Reply, Send
from penstock.protocols.http.routes import JsonRenderer, Request, Route, Router

Readiness: TypeAlias = Callable[[], tuple[bool, dict[str, object]]]
"""Returns whether the broker can serve now, and facts for the reply."""

Metrics: TypeAlias = Callable[[], list[Metric]]
"""Returns the current metrics."""


class App:
    """Replies to each request exactly once, unless its client disconnects."""

    def __init__(
        self,
        readiness: Readiness,
        metrics_now: Metrics,
        backend: Backend,
        channels: Router | None = None,
    ) -> None:
        """`channels` serves the channel API, if this node has one."""
        self._readiness, self._metrics_now = readiness, metrics_now
        self._channels = channels
        self._fetches = Fetches(backend)
        routes = [
            *(_no_push() if backend.pusher is None else Pushes(backend, backend.pusher).routes()),
            *self._fetches.routes(),
            *Messages(backend).routes(),
            *Administration(backend).routes(),
            *EngineApi(backend).routes(),
            *ConsumerPages(backend).routes(),
            *self._own_routes(),
        ]
        sections = [openapi.Section(routes)]
        if channels is not None:
            sections.append(channel_api.section(channels.routes))
        self._document = openapi.document(*sections)
        self._router = Router(routes, JsonRenderer())

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        router = self._router
        if self._channels is not None and _root(scope["path"]) in channel_api.ROOTS:
            router = self._channels
        await router(scope, receive, send)

    def drain(self) -> None:
        """Let waiting fetches return with the messages that they have."""
        self._fetches.finish_early()

    def _own_routes(self) -> list[Route]:
        facts = dict[str, Any]
        return [
            Route("GET", "/healthz", self._health, "Whether the process is alive.", {200: facts}),
            Route(
                "GET",
                "/readyz",
                self._ready,
                "Whether the broker is ready for requests.",
                {200: facts, 503: facts},
            ),
            Route("GET", "/metrics", self._metrics, "Metrics for Prometheus.", {200: str}),
            Route("GET", "/openapi.json", self._openapi, "This document.", {200: facts}),
        ]

    async def _health(self, request: Request) -> Reply:
        return Reply(200, {"status": "ok"})

    async def _ready(self, request: Request) -> Reply:
        ready, facts = self._readiness()
        return Reply(200 if ready else 503, {"status": "ready" if ready else "not ready", **facts})

    async def _metrics(self, request: Request) -> Reply:
        return Reply(200, metrics.render(self._metrics_now()), content_type=metrics.CONTENT_TYPE)

    async def _openapi(self, request: Request) -> Reply:
        return Reply(200, self._document)


def _root(path: str) -> str:
    return path[1:].partition("/")[0].lower()


def _no_push() -> list[Route]:
    """The push route of a fetch node: it refuses every request."""

    async def refuse(request: Request) -> Reply:
        raise FetchOnly("this node only fetches; push to a broker")

    replies = {MISDIRECTED: ErrorReply}
    return [Route("POST", "/v1/push", refuse, "Refused by a fetch node.", replies)]
