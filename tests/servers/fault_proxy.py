"""An HTTP proxy in front of a real server that does to chosen requests what networks do.

It reads every request whole, forwards it, and reads the reply whole, so that a fault is exact: a
reply that was lost is one that the server did send. Rules are matched in the order they were given;
each is used up after its number of times.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from socket import SO_LINGER, SOL_SOCKET
from types import TracebackType
from typing import Final, NamedTuple, Self

DRIP_BYTES: Final = 512
_HEADER_BYTES_MAX: Final = 1 << 16
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Kind(Enum):
    """What goes wrong with one request."""

    STATUS = auto()
    """Not forwarded; answered with the status `number`."""
    RESET_BEFORE = auto()
    """Not forwarded; the connection is reset."""
    RESET_AFTER = auto()
    """Forwarded; the reply is lost with the connection."""
    HANG_BEFORE = auto()
    """Not forwarded, never answered."""
    HANG_AFTER = auto()
    """Forwarded, never answered."""
    DRIP = auto()
    """The reply's body comes in small pieces, `seconds` apart."""
    TRUNCATE = auto()
    """The connection is closed after half of the reply's body."""
    FLIP = auto()
    """One bit in the middle of the reply's body is another."""
    FLIP_REQUEST = auto()
    """One bit in the middle of the request's body is another."""
    DELAY = auto()
    """The reply comes `seconds` late."""


@dataclass
class Fault:
    """A rule: the requests it hits, and what happens to them."""

    kind: Kind
    method: str = ""
    path_part: str = ""
    skip: int = 0
    """Let this many matching requests pass first."""
    times: int = 1
    number: int = 0
    seconds: float = 0.0
    hits: int = 0

    def strikes(self, method: str, target: str) -> bool:
        """Whether this request is hit; counts it."""
        matches = self.method in ("", method) and self.path_part in target
        if not matches or self.hits >= self.times:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True


class Seen(NamedTuple):
    """A request that reached the proxy."""

    method: str
    target: str
    headers: dict[str, str]
    fault: Kind | None


class Message(NamedTuple):
    """A request or a reply as it stood on the wire."""

    head: bytes
    body: bytes

    @property
    def first_line(self) -> list[str]:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    @property
    def headers(self) -> dict[str, str]:
        return _headers(self.head)

    def flipped(self) -> Message:
        body = bytearray(self.body)
        if body:
            body[len(body) // 2] ^= 1
        return Message(self.head, bytes(body))


class FaultProxy:
    """Listens on a free loopback port for the time of its context."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._faults: list[Fault] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.seen: list[Seen] = []
        self.watched = ""
        """Requests with this in their path are counted while they are under way."""
        self.under_way = 0
        self.under_way_max = 0

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._listener.wait_closed()

    @property
    def port(self) -> int:
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def inject(self, *faults: Fault) -> None:
        """Add rules behind those that are there."""
        self._faults.extend(faults)

    def clear(self) -> None:
        """Forget all rules and all requests seen."""
        self._faults.clear()
        self.seen.clear()

    def count(self, method: str, path_part: str = "") -> int:
        """How many requests of this kind came in so far."""
        return sum(seen.method == method and path_part in seen.target for seen in self.seen)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while await self._turn(reader, writer):
                    pass
        finally:
            writer.close()

    async def _turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; whether the connection can go on."""
        request = await _read_message(reader, "")
        if not self.watched or self.watched not in request.first_line[1]:
            return await self._exchange(request, writer)
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            return await self._exchange(request, writer)
        finally:
            self.under_way -= 1

    async def _exchange(self, request: Message, writer: asyncio.StreamWriter) -> bool:
        method, target, _ = request.first_line
        fault = next((f for f in self._faults if f.strikes(method, target)), None)
        kind = None if fault is None else fault.kind
        self.seen.append(Seen(method, target, request.headers, kind))
        if fault is not None and fault.kind in _UNFORWARDED:
            return await _refuse(fault, writer)
        if fault is not None and fault.kind is Kind.FLIP_REQUEST:
            request = request.flipped()
        reply = await self._forward(request, method)
        if fault is None or fault.kind is Kind.FLIP_REQUEST:
            writer.write(reply.head + reply.body)
            await writer.drain()
            return True
        return await _spoil(fault, reply, writer)

    async def _forward(self, request: Message, method: str) -> Message:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            writer.write(request.head + request.body)
            await writer.drain()
            return await _read_message(reader, method)
        finally:
            writer.close()


_UNFORWARDED: Final = {Kind.STATUS, Kind.RESET_BEFORE, Kind.HANG_BEFORE}


async def _refuse(fault: Fault, writer: asyncio.StreamWriter) -> bool:
    if fault.kind is Kind.STATUS:
        writer.write(f"HTTP/1.1 {fault.number} Injected\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        return True
    if fault.kind is Kind.HANG_BEFORE:
        await _hang()
    return _reset(writer)


async def _spoil(fault: Fault, reply: Message, writer: asyncio.StreamWriter) -> bool:
    if fault.kind is Kind.RESET_AFTER:
        return _reset(writer)
    if fault.kind is Kind.HANG_AFTER:
        await _hang()
    if fault.kind is Kind.DELAY:
        await asyncio.sleep(fault.seconds)
    if fault.kind is Kind.FLIP:
        reply = reply.flipped()
    if fault.kind is Kind.TRUNCATE:
        writer.write(reply.head + reply.body[: len(reply.body) // 2])
        await writer.drain()
        return False
    writer.write(reply.head)
    pause_seconds = fault.seconds if fault.kind is Kind.DRIP else 0.0
    for piece in _pieces(reply.body, DRIP_BYTES if pause_seconds else 1 << 20):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause_seconds)
    return True


def _pieces(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


async def _hang() -> None:
    await asyncio.get_running_loop().create_future()


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Close so that the other side gets a reset, not an orderly end."""
    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
    return False


async def _read_message(reader: asyncio.StreamReader, request_method: str) -> Message:
    """A request, or the reply to a request of that method; a chunked body is made plain."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert len(head) <= _HEADER_BYTES_MAX
    headers = _headers(head)
    status = head.split(b" ", 2)[1] if request_method else b""
    if request_method == "HEAD" or status in (b"204", b"304"):
        return Message(head, b"")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
        return Message(_with_length(head, len(body)), body)
    return Message(head, await reader.readexactly(int(headers.get("content-length", "0"))))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(chunks)


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


def _with_length(head: bytes, size: int) -> bytes:
    lines = [
        line
        for line in head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        if not line.lower().startswith(b"transfer-encoding:")
    ]
    return b"\r\n".join([*lines, b"Content-Length: %d" % size, b"", b""])
