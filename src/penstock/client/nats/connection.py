"""A connection to a NATS server: subscriptions, requests and pull conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.client.nats.errors import NatsError, NatsStatus, NatsTimeout, NatsUnreachable
from penstock.client.nats.protocol import (
    Arrival,
    ControlEvent,
    ErrorEvent,
    Inbox,
    InfoEvent,
    ServerEvent,
    ServerParser,
    publish,
    subscribe,
    unsubscribe,
)
from penstock.client.nats.pulling import Await, AwaitResult, PullConversation, status_of

DEFAULT_PORT: Final = 4222
CONNECT_SECONDS: Final = 5.0
WAITING_MAX: Final = 65_536
"""Limit of unread messages of one subscription; beyond it the connection is closed."""

_T = TypeVar("_T")


class NatsConnection(asyncio.Protocol):
    """A connection that does not reconnect: it lasts until `close`, or until the server ends it."""

    def __init__(self, url: str, unique: Callable[[], str]) -> None:
        self.url, self._unique = url, unique
        self._parser = ServerParser()
        self._transport: asyncio.Transport | None = None
        self._reason = "it was never made"
        self._waiting: dict[bytes, asyncio.Queue[Arrival | None]] = {}
        self._info: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pongs: list[asyncio.Future[None]] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._last_sid = 0

    @classmethod
    async def open(cls, url: str, unique: Callable[[], str]) -> NatsConnection:
        """Connect and log in; raises NatsUnreachable, also if the server refuses the client."""
        parts, host, port = _server_of(url)
        shown = f"[{host}]" if ":" in host else host
        self = cls(f"nats://{shown}:{port}", unique)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.create_connection(lambda: self, host, port)
                await asyncio.shield(self._info)
                await self.write(b"CONNECT %b\r\n" % _options(parts))
                await self.flush()
        except (OSError, TimeoutError) as error:
            await self.close()
            raise NatsUnreachable(self.url, str(error) or "no answer in time") from None
        return self

    # -- used by the client

    async def write(self, data: bytes) -> None:
        """Send bytes, and wait while the server reads too slowly; raises NatsUnreachable."""
        await self._writable.wait()
        if self._transport is None:
            raise NatsUnreachable(self.url, self._reason)
        self._transport.write(data)

    async def flush(self) -> None:
        """Wait until the server has received everything that was written before."""
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        await self.write(b"PING\r\n")
        await pong

    def inbox(self, subject: bytes = b"") -> Inbox:
        """A new subscription id with a subject; from now on its messages are queued."""
        self._last_sid += 1
        inbox = Inbox(subject or self.unique_subject(), b"%d" % self._last_sid)
        self._waiting[inbox.sid] = asyncio.Queue()
        return inbox

    def unique_subject(self) -> bytes:
        return b"_INBOX." + self._unique().encode()

    def forget(self, inbox: Inbox) -> None:
        """Drop queued and later messages of the inbox."""
        self._waiting.pop(inbox.sid, None)

    async def request(
        self, subject: bytes, payload: bytes, seconds: float, headers: bytes = b""
    ) -> Arrival:
        """Send a request and return its first reply.

        Raises NatsTimeout, NatsStatus and NatsUnreachable.
        """
        inbox = self.inbox()
        command = publish(subject, inbox.subject, payload, headers)
        try:
            await self.write(subscribe(inbox) + unsubscribe(inbox.sid, 1) + command)
            awaited = await self._next(inbox.sid, asyncio.get_running_loop().time() + seconds)
            if awaited.arrival is None:
                await self.write(unsubscribe(inbox.sid))
                raise NatsTimeout(f"no answer came from {subject.decode()}", seconds)
        finally:
            self.forget(inbox)
        status = status_of(awaited.arrival)
        if status is not None:
            raise NatsStatus(*status)
        return awaited.arrival

    async def converse(self, conversation: PullConversation[_T], seconds: float) -> _T:
        """Carry out a conversation and return its result."""
        deadline = asyncio.get_running_loop().time() + seconds
        result: AwaitResult | None = None
        try:
            while True:
                step = conversation.send(result)
                result = None
                if isinstance(step, Await):
                    result = await self._next(step.sid, deadline)
                else:
                    await self.write(step.data)
        except StopIteration as stop:
            value: _T = stop.value
            return value

    async def close(self) -> None:
        """Close the connection after sending what was written."""
        if self._transport is not None:
            self._transport.close()
            self._end("it was closed")
        if self._info.done():
            self._info.exception()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._parser.receive(data):
                self._handle(event)
        except NatsError as error:
            self._abort(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the server closed the connection")

    def _handle(self, event: ServerEvent) -> None:
        if isinstance(event, Arrival):
            waiting = self._waiting.get(event.sid)
            if waiting is not None:
                waiting.put_nowait(event)
                if waiting.qsize() > WAITING_MAX:
                    self._abort(f"more than {WAITING_MAX} messages of a subscription are unread")
        elif isinstance(event, InfoEvent):
            if not self._info.done():
                self._info.set_result(json.loads(event.document))
        elif isinstance(event, ErrorEvent):
            self._reason = event.text
        elif event is ControlEvent.PING and self._transport is not None:
            self._transport.write(b"PONG\r\n")
        elif event is ControlEvent.PONG and self._pongs:
            self._pongs.pop(0).set_result(None)

    def _abort(self, reason: str) -> None:
        transport = self._transport
        self._end(reason)
        if transport is not None:
            transport.abort()

    def _end(self, reason: str) -> None:
        """End every wait with NatsUnreachable, which shows the first reason."""
        if self._transport is not None and self._reason == "it was never made":
            self._reason = reason
        self._transport = None
        self._writable.set()
        for waiting in self._waiting.values():
            waiting.put_nowait(None)
        lost = NatsUnreachable(self.url, self._reason)
        if not self._info.done():
            self._info.set_exception(lost)
        for pong in self._pongs:
            if not pong.done():
                pong.set_exception(lost)
        self._pongs = []

    async def _next(self, sid: bytes, deadline: float) -> AwaitResult:
        """What arrives for a subscription until the deadline; raises NatsUnreachable."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting[sid]
        arrival: Arrival | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                arrival = await waiting.get()
                if arrival is None:
                    raise NatsUnreachable(self.url, self._reason)
        return AwaitResult(arrival, max(deadline - loop.time(), 0.0))


def _server_of(url: str) -> tuple[SplitResult, str, int]:
    """The parts of the URL, the host and the port; raises NatsUnreachable."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or DEFAULT_PORT
    except ValueError:
        # The brackets of an IPv6 address or the port are malformed.
        host = None
    if not host or parts.scheme != "nats":
        raise NatsUnreachable(url, "it must be written nats://HOST:PORT or nats://[IPv6]:PORT")
    return parts, host, port


def _options(parts: SplitResult) -> bytes:
    options: dict[str, object] = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "protocol": 1,
        "lang": "python-penstock",
    }
    if parts.password is not None:
        options |= {"user": unquote(parts.username or ""), "pass": unquote(parts.password)}
    elif parts.username:
        options["auth_token"] = unquote(parts.username)
    return json.dumps(options).encode()
