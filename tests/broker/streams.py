"""Streams over a broker without protocols."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from penstock.host.disk import Buffer
from penstock.model.run import Origin, Run
from penstock.streams.stream import Stream
from penstock.streams.streams import Streams
from penstock.wire.jetstream.stream_config import StreamConfig, normalised
from penstock.wire.parser import Publishes
from tests.broker.storage import World
from tests.broker.topics import Served, serve
from tests.eventually import eventually


class Streaming:
    """A broker's streams, and what its publishers were answered."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.answers: dict[bytes, dict[str, object]] = {}
        self.told: list[tuple[bytes, dict[str, object]]] = []
        """Replies and their bodies in order; an answer without a body has an empty one."""
        self.sent: list[tuple[bytes, bytes, bytes, bytes]] = []
        """Messages published to subscribers: subject, reply, headers, payload."""
        self.streams = Streams(served.topics, served.host, self._answer, self._send)
        self.streams.open()

    async def create(self, name: str, **config: object) -> Stream:
        asked = normalised(msgspec.convert({"name": name, **config}, StreamConfig))
        return await self.streams.create(asked)

    async def publish(self, subject: str, payload: bytes = b"x", headers: bytes = b"") -> object:
        """The answer to one publish."""
        reply = b"r%d" % len(self.answers)
        publisher = self.streams.route(subject.encode())
        assert publisher is not None
        blocks = [headers] if headers else None
        publisher.publish(Publishes([subject.encode()], [reply], blocks, [payload]), lambda: None)
        await eventually(self._answered(reply))
        return self.answers[reply]

    def close(self) -> None:
        self.streams.close()

    async def push(
        self,
        stream: Stream,
        *payloads: bytes,
        subject: bytes = b"s",
        origin: Origin = Origin.CLIENT,
    ) -> None:
        """Publish as another protocol does."""
        run = Run(subject, list(payloads), partition=stream.partition.id)
        await stream.partition.publish(run, origin=origin)

    def _answered(self, reply: bytes) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return reply in self.answers

        return look

    def _send(self, *message: bytes) -> None:
        subject, reply, headers, payload = message
        self.sent.append((subject, reply, headers, payload))

    def _answer(self, replies: Sequence[bytes], bodies: Sequence[bytes], confirms: bool) -> None:
        assert confirms == (b'"error"' not in b"".join(bodies))
        decoded = [msgspec.json.decode(body) if body else {} for body in bodies]
        self.told += zip(replies, decoded, strict=True)
        self.answers.update(zip(replies, decoded, strict=True))


async def stream_all(world: World) -> Streaming:
    return Streaming(await serve(world))


def block(*fields: str) -> bytes:
    """A header block of such lines."""
    return "\r\n".join(["NATS/1.0", *fields, "", ""]).encode()


def fail_once(made: Streaming, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write meets an error of the disk."""
    disk = made.served.broker.logs._engine.disk
    write = disk.write

    def failing(fd: int, pieces: Sequence[Buffer]) -> None:
        monkeypatch.setattr(disk, "write", write)
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(disk, "write", failing)


async def start_again(made: Streaming, name: str) -> tuple[Streaming, Stream]:
    """The broker is killed and starts again."""
    made.close()
    other = Streaming(await serve(made.served.broker.world, await made.served.crash()))
    stream = other.streams.get(name)
    assert stream is not None
    return other, stream


def appended_runs(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each run has that is appended from now on."""
    runs, append = list[int](), stream.opened.log.writer.append

    def appending(run: Run) -> object:
        runs.append(run.count)
        return append(run)

    monkeypatch.setattr(stream.opened.log.writer, "append", appending)
    return runs
