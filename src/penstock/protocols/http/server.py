"""The HTTP server: uvicorn on the broker's event loop and sockets.

The broker handles signals, and unexpected errors become JSON replies.
"""

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
from penstock.protocols.http.connection import Connection
from penstock.protocols.http.connections import Connections, HttpLimits
from penstock.protocols.http.lease_check import LeaseCheckedSend
from penstock.protocols.http.reply import Application, Event, Receive, Send, answer, error
from penstock.protocols.listener import Listener

CANCEL_SECONDS: Final = 1.0
"""Time for requests that are cancelled at the end of the drain to send their last reply."""

CHECKED_PER_TURN: Final = 1000
"""Number of connections whose timeouts are checked in one turn of the event loop."""

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
        """Replies that confirm a change are sent only while `lease` is valid, if it is given."""
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
        """Serve requests until drained. On return all sockets and connections are closed.

        A drain gives requests in progress `drain_seconds` to complete, then cancels them.
        """
        await self._server.serve(sockets=self._sockets)
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=CANCEL_SECONDS)
        for connection in list(state.connections):
            connection.transport.abort()

    async def ready(self) -> None:
        """Wait until connections are accepted."""
        await self._server.accepting.wait()

    def metrics(self) -> list[Metric]:
        """The metrics of the listener."""
        return self._connections.metrics(len(self._server.server_state.connections))

    def drain(self) -> None:
        """Accept no more connections; `serve` returns when the requests in progress are done."""
        self._server.should_exit = True


def _guarded(app: Application, lease: Ownership | None) -> Application:
    """Wrap an application: it replies with a JSON error if it fails or is cancelled without one."""

    async def guarded(scope: Event, receive: Receive, send: Send) -> None:
        replied = False
        if lease is not None:
            send = LeaseCheckedSend(scope, send, lease)

        async def note_reply(event: Event) -> None:
            nonlocal replied
            replied = True
            await send(event)

        try:
            await app(scope, receive, note_reply)
        except asyncio.CancelledError:
            if replied:
                raise
            message = "the broker is shutting down; retry later"
            await answer(scope, send, error(503, message, "shutting_down"))
        except Exception:
            if replied:
                raise
            _events.exception("request failed", method=scope["method"], path=scope["path"])
            message = "an internal error occurred; the broker's log has the details"
            await answer(scope, send, error(500, message))

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
        """Advance the timeouts of every connection by a second.

        Time in which the event loop was stalled does not count, since no client could use it.
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
        # The broker handles signals: it drains every protocol, then closes the layers below.
        yield
