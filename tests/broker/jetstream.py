"""A NATS server with streams, and a client that sends requests."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Final, NamedTuple

import msgspec

from penstock.assembly.jetstream import open_jetstream
from penstock.metadata import ProgressUpdater
from penstock.protocols.nats.clients import NatsLimits
from penstock.protocols.nats.jetstream import JetStream
from penstock.streams.stream import Stream
from tests.broker.nats import WAIT_SECONDS, NatsSite, Talk
from tests.broker.storage import World, drop_wal, flush
from tests.broker.topics import Served, serve

API: Final = b"$JS.API."


class ReceivedMessage(NamedTuple):
    """A received message."""

    subject: bytes
    headers: bytes
    payload: bytes

    @property
    def document(self) -> dict[str, Any]:
        told: dict[str, Any] = msgspec.json.decode(self.payload)
        return told

    def field(self, name: bytes) -> bytes | None:
        """The value of a header field."""
        for line in self.headers.split(b"\r\n"):
            if line.startswith(name + b": "):
                return line[len(name) + 2 :]
        return None


class Asker:
    """Sends requests and waits for replies to its inbox."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        talk.send(b"SUB _I 1\r\n")

    def send(self, subject: bytes, body: bytes = b"", headers: bytes = b"") -> None:
        """Publish with the inbox as reply subject."""
        if headers:
            sizes = b"%d %d" % (len(headers), len(headers) + len(body))
            self.talk.send(b"HPUB %b _I %b\r\n%b%b\r\n" % (subject, sizes, headers, body))
        else:
            self.talk.send(b"PUB %b _I %d\r\n%b\r\n" % (subject, len(body), body))

    async def receive(self) -> ReceivedMessage:
        """The next message."""
        words = (await self.talk.line()).split()
        size = int(words[-1])
        held = int(words[-2]) if words[0] == b"HMSG" else 0
        async with asyncio.timeout(WAIT_SECONDS):
            data = (await self.talk.reader.readexactly(size + 2))[:-2]
        return ReceivedMessage(words[1], data[:held], data[held:])

    async def ask(self, subject: bytes, body: bytes = b"", headers: bytes = b"") -> ReceivedMessage:
        self.send(subject, body, headers)
        return await self.receive()

    async def api(self, endpoint: str, body: bytes | dict[str, Any] = b"") -> dict[str, Any]:
        """Send an API request; returns the reply document."""
        if isinstance(body, dict):
            body = msgspec.json.encode(body)
        return (await self.ask(API + endpoint.encode(), body)).document

    async def error(self, endpoint: str, body: bytes | dict[str, Any] = b"") -> tuple[int, str]:
        """Send an API request; returns code and text of the error in the reply."""
        error = (await self.api(endpoint, body))["error"]
        return error["err_code"], error["description"]

    async def create(self, name: str, **config: Any) -> dict[str, Any]:
        told = await self.api(f"STREAM.CREATE.{name}", {"name": name, **config})
        assert told["did_create"] is True
        return told

    async def publish(self, subject: bytes, *payloads: bytes, headers: bytes = b"") -> int:
        """Store messages one by one; returns the sequence of the last."""
        seq = 0
        for payload in payloads:
            seq = (await self.ask(subject, payload, headers)).document["seq"]
        return seq


class Streaming:
    """A broker's streams and a NATS server that serves them."""

    def __init__(self, world: World, limits: NatsLimits | None = None) -> None:
        self._world = world
        self.server = NatsSite(limits)
        self.served: Served
        self.jetstream: JetStream
        self.asker: Asker

    async def __aenter__(self) -> Streaming:
        self.served = await serve(self._world)
        topics = self.served.topics
        host = self.served.host
        progress = ProgressUpdater(host.metadata, host.keys, host.ownership.guard)
        self.jetstream = open_jetstream(self.server.server, topics, host, progress)
        await self.server.__aenter__()
        self.asker = await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.server.__aexit__(kind, error, trace)
        await self.jetstream.close()

    async def connect(self, **options: Any) -> Asker:
        """Connect another client."""
        return Asker(await self.server.connect(**options))

    async def only_in_bucket(self, name: str) -> None:
        """Delete the local files of a stream, so that only the bucket has its messages."""
        tier = self.stream(name).opened.tier
        assert tier is not None
        await flush(tier)
        await drop_wal(tier)
        tier.log._tail.clear()

    def not_in_memory(self, name: str) -> None:
        """Remove the messages of a stream from memory."""
        self.stream(name).opened.log._tail.clear()

    def stream(self, name: str) -> Stream:
        stream = self.jetstream.streams.get(name)
        assert stream is not None
        return stream
