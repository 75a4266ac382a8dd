"""The application of the HTTP server, as raw ASGI: the routes of both APIs."""

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.formats.api import ErrorReply
from penstock.model.metrics import Metric
from penstock.protocols.http import channels as channel_api
from penstock.protocols.http import metrics, openapi
from penstock.protocols.http.admin import Administration
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.compact import Compacting
from penstock.protocols.http.consumers import ConsumerPages
from penstock.protocols.http.errors import MISDIRECTED, FetchOnly
from penstock.protocols.http.fetch import Fetches
from penstock.protocols.http.link import Linking
from penstock.protocols.http.messages import Messages
from penstock.protocols.http.plan import Planning
from penstock.protocols.http.push import Pushes
from penstock.protocols.http.reply import Event, Receive, Reply, Send
from penstock.protocols.http.routes import JsonRenderer, Request, Route, Router

Readiness: TypeAlias = Callable[[], tuple[bool, dict[str, object]]]
"""Whether the broker can serve now, and the facts to tell with it."""

Figures: TypeAlias = Callable[[], list[Metric]]
"""The current metrics."""


class App:
    """Replies to every request exactly once, unless its client disconnected."""

    def __init__(
        self,
        readiness: Readiness,
        figures: Figures,
        backend: Backend,
        channels: Router | None = None,
    ) -> None:
        """`channels` serves the channel API, if this node has one."""
        self._readiness, self._figures = readiness, figures
        self._channels = channels
        self._fetches = Fetches(backend)
        routes = [
            *(_no_push() if backend.pusher is None else Pushes(backend, backend.pusher).routes()),
            *self._fetches.routes(),
            *Messages(backend).routes(),
            *Administration(backend).routes(),
            *Planning(backend).routes(),
            *Linking(backend).routes(),
            *Compacting(backend).routes(),
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
        """Let waiting fetches return with the messages they have."""
        self._fetches.hurry()

    def _own_routes(self) -> list[Route]:
        facts = dict[str, Any]
        return [
            Route("GET", "/healthz", self._health, "Whether the process lives.", {200: facts}),
            Route(
                "GET",
                "/readyz",
                self._ready,
                "Whether requests are served in full.",
                {200: facts, 503: facts},
            ),
            Route("GET", "/metrics", self._metrics, "Figures for Prometheus.", {200: str}),
            Route("GET", "/openapi.json", self._openapi, "This document.", {200: facts}),
        ]

    async def _health(self, request: Request) -> Reply:
        return Reply(200, {"status": "ok"})

    async def _ready(self, request: Request) -> Reply:
        ready, facts = self._readiness()
        return Reply(200 if ready else 503, {"status": "ready" if ready else "not ready", **facts})

    async def _metrics(self, request: Request) -> Reply:
        return Reply(200, metrics.render(self._figures()), content_type=metrics.CONTENT_TYPE)

    async def _openapi(self, request: Request) -> Reply:
        return Reply(200, self._document)


def _root(path: str) -> str:
    return path[1:].partition("/")[0].lower()


def _no_push() -> list[Route]:
    """The route of push on a fetch node, which refuses every request."""

    async def refuse(request: Request) -> Reply:
        raise FetchOnly("this node only fetches; push to a broker")

    replies = {MISDIRECTED: ErrorReply}
    return [Route("POST", "/v1/push", refuse, "Refused here.", replies)]
