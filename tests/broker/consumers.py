"""A broker with a NATS server, and clients that speak the protocol in plain bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from penstock.assembly.jetstream import open_jetstream
from penstock.delivery.consumers import (
    Consumer,
    Consumers,
    Deliveries,
    DeliveryHost,
    DeliveryLimits,
)
from penstock.host.clock import Clock
from penstock.metadata import ProgressUpdater
from penstock.model.times import time_text_us
from penstock.protocols.nats import NatsLimits
from penstock.protocols.nats.jetstream import JetStream
from penstock.streams.stream import Stream
from penstock.topics import TopicHost, Topics
from tests.broker.nats import WAIT_SECONDS, NatsSite, Talk
from tests.broker.storage import KEYS, Broker, World
from tests.eventually import eventually

UNSETTLED: Final = DeliveryLimits(settle_seconds=60.0)
"""Acks that no client waits for are not written during a test."""
NO_MESSAGES: Final = b"NATS/1.0 404 No Messages\r\n\r\n"


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""

    async def holds() -> bool:
        return condition()

    await eventually(holds)


class Message(NamedTuple):
    """A message that a client received."""

    subject: str
    sid: int
    reply: str
    headers: bytes
    payload: bytes


class Peer:
    """A client of the server."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._sids = 0
        self._later: list[Message] = []

    def send(self, *data: bytes) -> None:
        self._talk.send(*data)

    def subscribe(self, subject: str, queue: str = "") -> int:
        self._sids += 1
        self.send(f"SUB {subject} {queue} {self._sids}\r\n".encode())
        return self._sids

    def unsubscribe(self, sid: int, most: int | None = None) -> None:
        self.send(f"UNSUB {sid} {'' if most is None else most}\r\n".encode())

    def publish(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        self.send(f"PUB {subject} {reply} {len(payload)}\r\n".encode(), payload, b"\r\n")

    async def synced(self) -> None:
        """Wait until the server has handled all input; messages received meanwhile are kept."""
        self.send(b"PING\r\n")
        while (frame := await self._frame()) is not None:
            self._later.append(frame)

    async def next(self, sid: int | None = None) -> Message:
        """The next message, of a subscription if `sid` is set."""
        for place, message in enumerate(self._later):
            if sid in (None, message.sid):
                return self._later.pop(place)
        while True:
            message = await self._read()
            if sid in (None, message.sid):
                return message
            self._later.append(message)

    async def several(self, count: int, sid: int | None = None) -> list[Message]:
        return [await self.next(sid) for _ in range(count)]

    def waiting(self, sid: int) -> list[Message]:
        """The messages of a subscription that were received and not returned yet."""
        return [message for message in self._later if message.sid == sid]

    async def request(self, subject: str, payload: bytes = b"") -> Message:
        inbox = f"_INBOX.{id(self)}.{self._sids}"
        sid = self.subscribe(inbox)
        self.unsubscribe(sid, 1)
        self.publish(subject, payload, inbox)
        return await self.next(sid)

    async def api(self, name: str, body: Any = None) -> dict[str, Any]:
        payload = b"" if body is None else msgspec.json.encode(body)
        answer = await self.request(f"$JS.API.{name}", payload)
        assert not answer.headers, answer
        told: dict[str, Any] = msgspec.json.decode(answer.payload)
        return told

    async def stream(self, name: str, *subjects: str, **config: Any) -> None:
        told = await self.api(
            f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, **config}
        )
        assert "error" not in told, told

    async def consumer(self, stream: str, name: str, **config: Any) -> dict[str, Any]:
        """Create a durable consumer, by default with explicit acks."""
        whole = {"durable_name": name, "ack_policy": "explicit", **config}
        told = await self.api(
            f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": whole}
        )
        assert "error" not in told, told
        return told

    async def info(self, stream: str, name: str) -> dict[str, Any]:
        return await self.api(f"CONSUMER.INFO.{stream}.{name}")

    async def stored(self, subject: str, *payloads: bytes) -> None:
        for payload in payloads:
            answer = await self.request(subject, payload)
            assert b'"seq"' in answer.payload, answer

    def pull(self, stream: str, name: str, body: Any = None, inbox: str = "") -> int:
        """Send a pull request; returns the sid of its inbox."""
        inbox = inbox or f"_INBOX.pull.{id(self)}.{self._sids}"
        sid = self.subscribe(inbox)
        payload = body if isinstance(body, bytes) else b""
        if body is not None and not isinstance(body, bytes):
            payload = msgspec.json.encode(body)
        self.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", payload, inbox)
        return sid

    async def end(self) -> None:
        """Close the connection."""
        await self._talk.end()

    async def _read(self) -> Message:
        frame = None
        while frame is None:
            frame = await self._frame()
        return frame

    async def _frame(self) -> Message | None:
        """The next message; None for a PONG."""
        line = await self._talk.line()
        while line.startswith((b"INFO", b"PING")):
            line = await self._talk.line()
        if line.startswith(b"PONG"):
            return None
        kind, subject, sid, *rest = line.decode().split()
        total = int(rest[-1])
        size = int(rest[-2]) if kind == "HMSG" else 0
        reply = rest[0] if len(rest) == (3 if kind == "HMSG" else 2) else ""
        async with asyncio.timeout(WAIT_SECONDS):
            data = await self._talk.reader.readexactly(total + 2)
        return Message(subject, int(sid), reply, data[:size], data[size:-2])


class Lab:
    """A broker whose clients are in this process."""

    def __init__(
        self, broker: Broker, server: NatsSite, jetstream: JetStream, topics: Topics
    ) -> None:
        self.broker, self.topics = broker, topics
        self._server, self._jetstream = server, jetstream

    async def peer(self) -> Peer:
        return Peer(await self._server.connect())

    def stream(self, name: str) -> Stream:
        stream = self._jetstream.streams.get(name)
        assert stream is not None
        return stream

    def consumers(self, stream: str) -> Consumers:
        found = self._jetstream.deliveries.get(stream)
        assert found is not None
        return found

    def consumer(self, stream: str, name: str) -> Consumer:
        found = self.consumers(stream).get(name)
        assert found is not None
        return found

    def clock_text(self, later_ns: int) -> str:
        """The time in `later_ns` nanoseconds, as the API writes it."""
        return time_text_us(Clock().now_us() + later_ns // 1000)

    @property
    def deliveries(self) -> Deliveries:
        return self._jetstream.deliveries

    @property
    def progress(self) -> ProgressUpdater:
        return self._jetstream.deliveries._host.progress

    @property
    def delivery_host(self) -> DeliveryHost:
        return self._jetstream.deliveries._host

    def gone(self, stream: str) -> bool:
        return self._jetstream.streams.get(stream) is None

    async def drain(self) -> None:
        """Disconnect the clients."""
        await self._server.server.drain(WAIT_SECONDS)

    async def close(self) -> None:
        """Stop as a broker does on request."""
        await self._jetstream.close()

    async def settled(self, stream: str) -> None:
        """Write the settlements that would be written within the interval."""
        await self.consumers(stream).settlements.flush()

    async def crash(self) -> Path:
        """The directory that the next broker finds if this one is killed now."""
        return await self.broker.crash()


@asynccontextmanager
async def lab(
    world: World,
    directory: Path | None = None,
    delivery: DeliveryLimits = UNSETTLED,
    limits: NatsLimits | None = None,
    *,
    opened: bool = True,
) -> AsyncIterator[Lab]:
    """A broker over a directory, with a NATS server and the clock of the machine.

    Without `opened`, topics are opened only when a client needs them.
    """
    broker = await world.broker(directory)
    host = TopicHost(
        broker.logs,
        broker.tiers,
        broker.metadata,
        KEYS,
        broker.ownership,
        broker.store,
        Clock(),
    )
    topics = Topics(host)
    await (topics.open() if opened else topics.start())
    async with NatsSite(limits) as server:
        progress = ProgressUpdater(host.metadata, host.keys, host.ownership.guard)
        jetstream = open_jetstream(server.server, topics, host, progress, limits=delivery)
        yield Lab(broker, server, jetstream, topics)
        await jetstream.close()
