"""The HTTP server: uvicorn inside our loop, on our socket, with our signals and our words."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Final, cast

import structlog
import uvicorn

from penstock.metadata.ownership import Ownership
from penstock.model.metrics import Metric
from penstock.protocols.http.confirming import Confirming
from penstock.protocols.http.connection import Connection
from penstock.protocols.http.connections import Connections, HttpLimits
from penstock.protocols.http.reply import Application, Event, Receive, Send, answer, error
from penstock.protocols.listen import Listener

CUT_SECONDS: Final = 1.0
"""How long a request that was cancelled at the end of the drain may take to say so."""

CHECKED_PER_TURN: Final = 1000
"""Connections whose timeouts are checked in one turn of the event loop."""

_events = structlog.get_logger()


class HttpServer:
    """Serves an ASGI application on listening sockets until it is drained."""

    def __init__(
        self,
        app: Application,
        listener: Listener,
        drain_seconds: int,
        lease: Ownership | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        """Replies that confirm something are sent only while `lease`, if there is one, is valid."""
        self._sockets = listener.sockets
        self._connections = Connections(limits or HttpLimits())
        self._server = _Server(
            uvicorn.Config(
                _guarded(app, lease),
                http=cast(type[asyncio.Protocol], partial(Connection, self._connections)),
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=drain_seconds,
            ),
            self._connections,
        )

    async def serve(self) -> None:
        """Answer requests until drained; when it returns, sockets and connections are closed.

        Requests in hand at the drain may finish within its seconds and are cancelled after them.
        """
        await self._server.serve(sockets=self._sockets)
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=CUT_SECONDS)
        for connection in list(state.connections):
            connection.transport.abort()

    async def ready(self) -> None:
        """Return once requests are answered."""
        await self._server.accepting.wait()

    def figures(self) -> list[Metric]:
        """The figures of the listener."""
        return self._connections.figures(len(self._server.server_state.connections))

    def drain(self) -> None:
        """Stop accepting; `serve` returns when the requests in hand are done."""
        self._server.should_exit = True


def _guarded(app: Application, lease: Ownership | None) -> Application:
    """The same application, with a JSON error where it fails or is cut off before it answered."""

    async def guarded(scope: Event, receive: Receive, send: Send) -> None:
        answered = False
        if lease is not None:
            send = Confirming(scope, send, lease)

        async def watched(event: Event) -> None:
            nonlocal answered
            answered = True
            await send(event)

        try:
            await app(scope, receive, watched)
        except asyncio.CancelledError:
            if answered:
                raise
            sentence = "the broker is shutting down; try again later"
            await answer(scope, send, error(503, sentence, "shutting_down"))
        except Exception:
            if answered:
                raise
            _events.exception("request failed", method=scope["method"], path=scope["path"])
            await answer(scope, send, error(500, "the broker failed on this; its log says why"))

    return guarded


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self._connections = connections
        self._seconds = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % 10 == 0:
            await self.check_timeouts()
        return await super().on_tick(counter)

    async def check_timeouts(self) -> None:
        """Let a second pass for every connection.

        Time in which the event loop is stalled is not counted: no client can use it.
        """
        self._seconds += 1
        self._connections.log_refused(self._seconds)
        for number, connection in enumerate(list(self.server_state.connections), 1):
            assert isinstance(connection, Connection)
            connection.check_timeout(self._seconds)
            if number % CHECKED_PER_TURN == 0:
                await asyncio.sleep(0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The broker owns the signals: it drains every protocol, then closes what lies below them.
        yield
