"""The HTTP door's application, as raw ASGI: which routes there are, and errors as replies."""

from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.doors.http import metrics, openapi
from penstock.doors.http.admin import Administration
from penstock.doors.http.backend import Backend
from penstock.doors.http.body import ClientGone
from penstock.doors.http.channels import openapi as channel_openapi
from penstock.doors.http.channels.app import ROOTS, ChannelApp
from penstock.doors.http.compact import Compacting
from penstock.doors.http.consumers import ConsumerPages
from penstock.doors.http.errors import MISDIRECTED, Refused, failed
from penstock.doors.http.fetch import Fetches
from penstock.doors.http.link import Linking
from penstock.doors.http.messages import Messages
from penstock.doors.http.plan import Planning
from penstock.doors.http.push import Pushes
from penstock.doors.http.reply import Event, Receive, Reply, Send, answer
from penstock.doors.http.routes import Request, Route, Router
from penstock.formats.api import ErrorReply
from penstock.model.errors import PenstockError
from penstock.model.metrics import Metric

Readiness: TypeAlias = Callable[[], tuple[bool, dict[str, object]]]
"""Whether the broker can serve now, and the facts to tell with it."""

Figures: TypeAlias = Callable[[], list[Metric]]
"""What there is to measure, now."""


class App:
    """Answers every request with exactly one reply, unless the client is gone."""

    def __init__(
        self,
        readiness: Readiness,
        figures: Figures,
        backend: Backend,
        channels: ChannelApp | None = None,
    ) -> None:
        """`channels` serves the channel API, where there is one."""
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
        further = None if channels is None else channel_openapi.paths()
        self._document = openapi.document(routes, further)
        self._router = Router(routes)

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if self._channels is not None and _root(scope["path"]) in ROOTS:
            await self._channels(scope, receive, send)
            return
        try:
            reply = await self._router.handle(scope, receive)
        except PenstockError as error:
            reply = failed(error)
        except ClientGone:
            return
        await answer(scope, send, reply)

    def drain(self) -> None:
        """Let fetches that wait for messages return with what they have."""
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
    """What stands in the place of push on a node that only fetches."""

    async def refuse(request: Request) -> Reply:
        raise Refused(MISDIRECTED, "this node only fetches; push to a broker")

    replies = {MISDIRECTED: ErrorReply}
    return [Route("POST", "/v1/push", refuse, "Refused here.", replies)]
