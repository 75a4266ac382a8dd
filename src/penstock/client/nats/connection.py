"""One connection to a NATS server on an event loop: subscriptions, requests, conversations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.client.nats.errors import NatsError, NatsStatus, NatsTimeout, NatsUnreachable
from penstock.client.nats.incoming import Arrival, Event, Incoming, Info, Refusal, Sign
from penstock.client.nats.outgoing import Inbox, publish, subscribe, unsubscribe
from penstock.client.nats.pulling import Await, Awaited, Conversation, status_of

DEFAULT_PORT: Final = 4222
CONNECT_SECONDS: Final = 5.0
WAITING_MAX: Final = 65_536
"""Arrivals that may wait for one subscription; more are dropped by ending the connection."""

_T = TypeVar("_T")


class Connection(asyncio.Protocol):
    """A connection that is open until `close`, or until the server goes; it does not come back."""

    def __init__(self, url: str, unique: Callable[[], str]) -> None:
        self.url, self._unique = url, unique
        self._incoming = Incoming()
        self._transport: asyncio.Transport | None = None
        self._reason = "it was never made"
        self._waiting: dict[bytes, asyncio.Queue[Arrival | None]] = {}
        self._info: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pongs: list[asyncio.Future[None]] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._last_sid = 0

    @classmethod
    async def open(cls, url: str, unique: Callable[[], str]) -> Connection:
        """Raises NatsUnreachable, also for a server that lets nobody in."""
        parts = urlsplit(url)
        if parts.scheme != "nats" or not parts.hostname:
            raise NatsUnreachable(url, "it must be written nats://HOST:PORT")
        self = cls(f"nats://{parts.hostname}:{parts.port or DEFAULT_PORT}", unique)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.create_connection(
                    lambda: self, parts.hostname, parts.port or DEFAULT_PORT
                )
                await asyncio.shield(self._info)
                await self.write(b"CONNECT %b\r\n" % _options(parts))
                await self.flush()
        except (OSError, TimeoutError) as error:
            await self.close()
            raise NatsUnreachable(self.url, str(error) or "no answer in time") from None
        return self

    # -- what a client does

    async def write(self, data: bytes) -> None:
        """Raises NatsUnreachable; waits while the server reads too slowly."""
        await self._writable.wait()
        if self._transport is None:
            raise NatsUnreachable(self.url, self._reason)
        self._transport.write(data)

    async def flush(self) -> None:
        """Everything written before has reached the server."""
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        await self.write(b"PING\r\n")
        await pong

    def inbox(self, subject: bytes = b"") -> Inbox:
        """A subject and an id that nobody has; arrivals are kept from here on."""
        self._last_sid += 1
        inbox = Inbox(subject or self.unique_subject(), b"%d" % self._last_sid)
        self._waiting[inbox.sid] = asyncio.Queue()
        return inbox

    def unique_subject(self) -> bytes:
        return b"_INBOX." + self._unique().encode()

    def forget(self, inbox: Inbox) -> None:
        """What still arrives for it is dropped."""
        self._waiting.pop(inbox.sid, None)

    async def request(
        self, subject: bytes, payload: bytes, seconds: float, headers: bytes = b""
    ) -> Arrival:
        """The first answer; raises NatsTimeout, NatsStatus and NatsUnreachable."""
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

    async def converse(self, conversation: Conversation[_T], seconds: float) -> _T:
        """Drive a conversation to its end."""
        deadline = asyncio.get_running_loop().time() + seconds
        answer: Awaited | None = None
        try:
            while True:
                step = conversation.send(answer)
                answer = None
                if isinstance(step, Await):
                    answer = await self._next(step.sid, deadline)
                else:
                    await self.write(step.data)
        except StopIteration as stop:
            result: _T = stop.value
            return result

    async def close(self) -> None:
        """What was written is sent first."""
        if self._transport is not None:
            self._transport.close()
            self._end("it was closed")
        if self._info.done():
            self._info.exception()

    # -- what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._incoming.receive(data):
                self._handle(event)
        except NatsError as error:
            self._abort(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the server closed the connection")

    def _handle(self, event: Event) -> None:
        if isinstance(event, Arrival):
            waiting = self._waiting.get(event.sid)
            if waiting is not None:
                waiting.put_nowait(event)
                if waiting.qsize() > WAITING_MAX:
                    self._abort(f"more than {WAITING_MAX} messages wait to be taken")
        elif isinstance(event, Info):
            if not self._info.done():
                self._info.set_result(json.loads(event.document))
        elif isinstance(event, Refusal):
            self._reason = event.text
        elif event is Sign.PING and self._transport is not None:
            self._transport.write(b"PONG\r\n")
        elif event is Sign.PONG and self._pongs:
            self._pongs.pop(0).set_result(None)

    def _abort(self, reason: str) -> None:
        transport = self._transport
        self._end(reason)
        if transport is not None:
            transport.abort()

    def _end(self, reason: str) -> None:
        """Whoever waits is told; the first reason stands."""
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

    async def _next(self, sid: bytes, deadline: float) -> Awaited:
        """What arrives for a subscription until the deadline; raises NatsUnreachable."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting[sid]
        arrival: Arrival | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                arrival = await waiting.get()
                if arrival is None:
                    raise NatsUnreachable(self.url, self._reason)
        return Awaited(arrival, max(deadline - loop.time(), 0.0))


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
