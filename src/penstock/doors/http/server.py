"""The HTTP door: uvicorn inside our loop, on our socket, with our signals and our words."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Final

import httptools
import msgspec
import structlog
import uvicorn

from penstock.doors.http.intake import Connection
from penstock.doors.http.reply import Application, Event, Receive, Send, answer, error

CUT_SECONDS: Final = 1.0
"""How long a request that was cancelled at the end of the drain may take to say so."""

_events = structlog.get_logger()


class HttpDoor:
    """Serves an ASGI application on a listening socket until it is drained."""

    def __init__(self, app: Application, sock: socket.socket, drain_seconds: int) -> None:
        self._sock = sock
        self._server = _Server(
            uvicorn.Config(
                _guarded(app),
                http=_Connection,
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=drain_seconds,
            )
        )

    async def serve(self) -> None:
        """Answer requests until drained; when it returns, the socket and connections are closed.

        Requests in hand at the drain may finish within its seconds and are cancelled after them.
        """
        await self._server.serve(sockets=[self._sock])
        state = self._server.server_state
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=CUT_SECONDS)
        for connection in list(state.connections):
            connection.transport.abort()

    async def ready(self) -> None:
        """Return once requests are answered."""
        await self._server.accepting.wait()

    def drain(self) -> None:
        """Stop accepting; `serve` returns when the requests in hand are done."""
        self._server.should_exit = True


def _guarded(app: Application) -> Application:
    """The same application, with a JSON error where it fails or is cut off before it answered."""

    async def guarded(scope: Event, receive: Receive, send: Send) -> None:
        answered = False

        async def watched(event: Event) -> None:
            nonlocal answered
            answered = True
            await send(event)

        try:
            await app(scope, receive, watched)
        except asyncio.CancelledError:
            if answered:
                raise
            await answer(scope, send, error(503, "the broker is shutting down; try again later"))
        except Exception:
            if answered:
                raise
            _events.exception("request failed", method=scope["method"], path=scope["path"])
            await answer(scope, send, error(500, "the broker failed on this; its log says why"))

    return guarded


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The broker owns the signals: it drains every door, then closes what lies below them.
        yield


class _Connection(Connection):
    """Tells errors in JSON, and takes no offer of another protocol.

    Clients that would like to speak HTTP/2 offer that with a request, and httptools takes all
    behind the head of such a request for the other protocol: so it is parsed again without that.
    """

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self._offered():
                return
            head = self._without_offer()
            self.parse_anew()
            self.data_received(head + data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        if not self._offered():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._offered():
            super().on_message_complete()

    def _offered(self) -> bool:
        # A CONNECT is an offer whatever its headers are, and has no body.
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _without_offer(self) -> bytes:
        lines = [
            b"%b %b HTTP/%b"
            % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode({"message": msg})
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()
