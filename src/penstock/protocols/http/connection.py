"""One HTTP connection: uvicorn's protocol class with limits on size and time.

This is the only module that uses undocumented attributes of uvicorn (`cycle`, `flow`, `parser`,
`pipeline`, `scope`). Its rules:

- The parser is fed pieces of at most PIECE_BYTES, and never more of a request head, or of the
  trailers and chunk extensions of a body, than `HttpLimits.head_bytes`.
- While a request is in progress, pipelined requests are not parsed.
- A refused request is answered after the requests before it. Then nothing more is parsed, and the
  connection is closed once the client has had time to read the reply.
- `check_timeout` detects timeouts. The server calls it once a second for every connection, so a
  request needs no timer.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.formats.api import ErrorReply
from penstock.protocols.http.body_intake import EXTENSION, BodyIntake, CountReceived
from penstock.protocols.http.connections import Connections, Wait
from penstock.protocols.http.reply import STATUS_CODES, Event

PIECE_BYTES: Final = 8 << 10
"""Limits how many pipelined requests are parsed at once, since each needs kilobytes of memory."""
FRAMING_BYTES_PER_BODY_BYTE: Final = 16
"""Chunk sizes and extensions may be this many times as large as the body that they frame."""
BODY_PROGRESS_BYTES: Final = 1 << 10
"""A body has stalled if fewer bytes than this arrive within `HttpLimits.stall_seconds`."""

_VERSIONS: Final = ("1.1", "1.0")


class _Phase(Enum):
    """Which part of a request the parser expects next."""

    START = "start"
    HEAD = "head"
    BODY = "body"


_START, _HEAD, _BODY = _Phase


class _Refusal(Exception):
    """Stops the parser at a request that is refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class Connection(HttpToolsProtocol):
    """An HTTP/1.1 connection that can also read the body of a request into a given buffer."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared, self._limits = connections, connections.limits
        self._piece_bytes = min(PIECE_BYTES, self._limits.head_bytes)
        self._phase = _START
        self._framing_bytes = 0
        """Bytes received of the head, or of the framing of the body."""
        self._body_bytes = 0
        self._content_left = 0
        """Bytes of a body of known length that the parser has not received yet."""
        self._unparsed = bytearray()
        """Bytes received after the request in progress."""
        self._current: RequestResponseCycle | None = None
        """The request in progress, or the last one."""
        self._intake: BodyIntake | None = None
        self._refusal = b""
        self._lingering = False
        # The last progress that `check_timeout` noticed, and when it did.
        self._progress: tuple[Wait | None, int] = None, 0
        self._progress_scope: Any = None
        self._progress_seconds = 0

    # -- called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self._shared.admit(len(self.connections)):
            limit = self._limits.connections
            self.transport = transport
            self._refusal = _response(503, f"the limit http.max_connections is {limit}")
            transport.write(self._refusal)
            transport.close()
            return
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unparsed.clear()
        self.pipeline.clear()
        if self._current is not None:
            _disconnect(self._current)
        if self.scope is not None:
            # Break the reference cycle between scope and connection, which would keep both alive
            # until the next garbage collection.
            self.scope["extensions"] = {}

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        if self._phase is not _START or len(data) > self._piece_bytes:
            self._parse(data)
        elif self._current is None or self._current.response_complete:
            self._feed(data)
        else:
            self._hold(data)

    def shutdown(self) -> None:
        if self._lingering:
            self.transport.close()
        else:
            super().shutdown()

    # -- called by the parser

    def on_message_begin(self) -> None:
        self._phase, self._framing_bytes = _HEAD, 0
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"fill": self.fill, "transport": self.transport}}

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refusal(501, "CONNECT is not supported")
            return
        self._check_head()
        super().on_headers_complete()
        self._phase, self._framing_bytes, self._body_bytes = _BODY, 0, 0
        # The parser appends trailers to this list; they are not headers, and nothing reads them.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._content_left -= size
        self._framing_bytes -= (1 + FRAMING_BYTES_PER_BODY_BYTE) * size
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self._phase = _START

    # -- called by the server

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Start the next request. Unlike uvicorn's method, this sets no keep-alive timer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal:
            self._send_refusal()
        elif self._unparsed:
            data, self._unparsed = self._unparsed, bytearray()
            self._parse(data)

    def check_timeout(self, now_seconds: int) -> None:
        """Close the connection if its client has made no progress for too long."""
        progress = wait, _ = self._client_progress()
        same = progress == self._progress and self.scope is self._progress_scope
        if wait is None or not same:
            self._progress, self._progress_scope = progress, self.scope
            self._progress_seconds = now_seconds
        elif now_seconds - self._progress_seconds >= self._limits.seconds(wait):
            self._shared.count_timeout(wait)
            self._time_out(wait)

    # -- bodies that are read in place

    async def fill(self, scope: Event, memory: memoryview, count_received: CountReceived) -> bool:
        """Read the whole body of a request into `memory`, whose size is that of the body.

        Calls `count_received` with the number of bytes of each read; it may raise to end the
        reading. Returns False if the caller must receive the body by ASGI events, because the
        client disconnected or has already sent more than this request.
        """
        cycle = self.cycle
        received = len(cycle.body)
        if cycle.scope is not scope or self.transport.is_closing() or self._refusal:
            return False
        if not cycle.more_body and received < len(memory):
            return False
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        count_received(received)
        memory[:received] = cycle.body
        if received < len(memory) and not await self._fill(memory[received:], count_received):
            return False
        cycle.body, cycle.more_body = bytearray(), False
        return True

    async def _fill(self, memory: memoryview, count_received: CountReceived) -> bool:
        intake = self._intake = BodyIntake(self, memory, count_received, self._resume)
        self._hand_to(intake)
        try:
            return await intake.filled
        except BaseException:
            intake.discard()
            raise

    def _resume(self) -> None:
        """Become the transport's protocol again, after a body that bypassed the parser."""
        self._intake = None
        self._renew_parser()
        self._phase = _START
        self._hand_to(self)

    def _hand_to(self, protocol: asyncio.BaseProtocol) -> None:
        # A transport chooses how to call its protocol when it starts to read.
        self.flow.pause_reading()
        self.transport.set_protocol(protocol)
        self.flow.resume_reading()

    # -- parsing

    def _parse(self, data: bytes | bytearray) -> None:
        """Parse up to the end of the request in progress, and hold the remaining bytes."""
        view, start = memoryview(data), 0
        while start < len(view) and not self._refusal:
            current, size = self._current, self._piece_bytes
            if self._phase is _BODY:
                size = max(size, self._content_left)
                self._body_bytes += min(size, len(view) - start)
            elif self._phase is _HEAD:
                size = min(size, self._limits.head_bytes - self._framing_bytes)
            elif current is not None and not current.response_complete:
                self._hold(view[start:])
                return
            self._feed(view[start : start + size])
            start += size

    def _hold(self, data: bytes | memoryview) -> None:
        self._unparsed += data
        if len(self._unparsed) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _feed(self, piece: bytes | memoryview) -> None:
        size = len(piece)
        while True:
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser leaves everything after this head to the other protocol, which is not
                # supported here: parse the request again without its Upgrade header.
                piece = b"".join([self._head_without_upgrade(), piece[upgrade.args[0] :]])
                self._renew_parser()
                continue
            except httptools.HttpParserError as error:
                cause = error.__context__
                if isinstance(cause, _Refusal):
                    self.refuse(cause.status, cause.message)
                else:
                    self.refuse(400, "Invalid HTTP request received.")
                return
            break
        self._framing_bytes = max(0, self._framing_bytes + size)
        if self._framing_bytes >= self._limits.head_bytes:
            self._check_framing()

    def _check_framing(self) -> None:
        limit = f"the limit http.max_head_bytes is {self._limits.head_bytes}"
        if self._phase is not _HEAD:
            if self._framing_bytes > self._limits.head_bytes:
                self.refuse(400, f"the framing or trailers of the body are too large: {limit}")
        elif 2 * len(self.url) > self._limits.head_bytes:
            self.refuse(414, f"the URL is too long: {limit}")
        else:
            self.refuse(431, f"the headers are too large: {limit}")

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            raise _Refusal(505, f"HTTP {version} is not supported")
        self._content_left = 0
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                self._content_left = int(value)
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                raise _Refusal(501, "the only transfer-encoding that is supported is chunked")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise _Refusal(400, f"the request must have exactly one Host header, not {hosts}")

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _renew_parser(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    # -- refusing

    def refuse(self, status: int, message: str) -> None:
        """Reply with an error after the replies to earlier requests, then close the connection."""
        self._shared.count_refusal(status)
        self._refusal = _response(status, message)
        self._unparsed.clear()
        if self._intake is not None:
            self._intake.abandon()
        refused, current = self.cycle, self._current
        if self._phase is _BODY and not refused.response_complete:
            _disconnect(refused)
            if refused is not current:
                self.pipeline.popleft()
            elif refused.response_started:
                self.transport.close()
                return
            else:
                current = None
        if current is None or current.response_complete:
            self._send_refusal()

    def _send_refusal(self) -> None:
        self._lingering = True
        self.transport.write(self._refusal)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            # Closing with unread bytes would reset the connection before the client has the reply.
            self.transport.write_eof()
        else:
            self.transport.close()

    # -- timeouts

    def _client_progress(self) -> tuple[Wait | None, int]:
        """What the client must do next, if anything, and a number that changes as it does it."""
        cycle = self.cycle
        closing = self._lingering or self.transport.is_closing()
        if closing or self.flow.write_paused:
            unsent = self.transport.get_write_buffer_size()
            return (Wait.READ, unsent) if unsent else (Wait.CLOSE, 0)
        if self._phase is _HEAD:
            return Wait.HEAD, 0
        if self._phase is _BODY:
            if self.flow.read_paused or cycle.waiting_for_100_continue:
                return None, 0
            in_place = 0 if self._intake is None else self._intake.received_bytes
            return Wait.BODY, (self._body_bytes + in_place) // BODY_PROGRESS_BYTES
        if self._current is None:
            return Wait.FIRST_REQUEST, 0
        return (Wait.REQUEST if cycle.response_complete else None), 0

    def _time_out(self, wait: Wait) -> None:
        if wait in (Wait.READ, Wait.CLOSE):
            self.transport.abort()
        elif wait is Wait.HEAD or (wait is Wait.BODY and not self.cycle.response_complete):
            self.refuse(408, f"the {wait.value} of the request did not arrive in time")
        else:
            self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the application of a request that its client has disconnected."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def _response(status: int, message: str) -> bytes:
    body = msgspec.json.encode(ErrorReply(message, STATUS_CODES[status]))
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b"
        % (status, HTTPStatus(status).phrase.encode(), len(body), body)
    )
