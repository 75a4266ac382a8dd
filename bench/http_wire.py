"""A minimal HTTP client of benchmarks, and the server process that they measure."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from penstock.formats.api import JSON

STREAM_BYTES: Final = 1 << 20
STREAM_CONNECTIONS: Final = 8
FIELDS: Final = ["id:int64", "score:float64", "name:string"]
WARM_UP_REQUESTS: Final = 70
WARM_UP_SECONDS: Final = 1.0
WITHOUT_UPLOADS: Final = (
    "log.level=error",
    # Uploads are not measured here.
    "storage.uploader.interval_seconds=3600",
    "storage.uploader.max_batch_bytes=1073741824",
    # The cache is full soon, as in a broker that has run for a while: memory is reused.
    "storage.wal.cache.max_bytes=33554432",
)
_TOPICS: Final = "/v1/tenants/default/namespaces/default/topics"


class Server(NamedTuple):
    """A server process."""

    address: tuple[str, int]
    pid: int

    def cpu_seconds(self) -> float:
        """Its processor time, a useful figure also on a busy machine."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Connection:
    """A socket with the part of HTTP that the broker's replies use."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def ask(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        return self.read()

    def read(self) -> bytes:
        """The body of a reply, which must be successful."""
        head, self._buffer = self._until(b"\r\n\r\n")
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
            raise RuntimeError(f"the broker answered {head.decode()}")
        length = re.search(rb"content-length: (\d+)", head)
        return self._take(int(length[1])) if length else self._chunks()

    def _chunks(self) -> bytes:
        pieces = []
        while True:
            head, self._buffer = self._until(b"\r\n")
            size = int(head, 16)
            pieces.append(self._take(size + 2)[:-2])
            if not size:
                return b"".join(pieces)

    def _until(self, mark: bytes) -> tuple[bytes, bytes]:
        while mark not in self._buffer:
            self._buffer += self._receive()
        head, _, rest = self._buffer.partition(mark)
        return head, rest

    def _take(self, size: int) -> bytes:
        pieces, have = [self._buffer], len(self._buffer)
        while have < size:
            pieces.append(self._receive())
            have += len(pieces[-1])
        whole = b"".join(pieces)
        self._buffer = whole[size:]
        return whole[:size]

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the broker closed the connection")
        return data


def broker(path: Path, *overrides: str) -> list[str]:
    """The command that serves a directory with these settings."""
    program = str(Path(sys.executable).with_name("penstock"))
    protocols = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--nats", "127.0.0.1:0")
    settings = [part for setting in overrides for part in ("--set", setting)]
    return [program, "serve", "--data", str(path), *protocols, *settings]


@contextmanager
def served(*command: str) -> Iterator[Server]:
    """Run a server during the context."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = (re.fullmatch(r"http listening on http://(.+):(\d+)\n", line) for line in lines)
        match = next(filter(None, found), None)
        if match is None:
            raise RuntimeError("the server did not start")
        yield Server((match[1], int(match[2])), process.pid)
    finally:
        process.kill()
        process.communicate()


def request_of(path: str, body: bytes, kind: str = JSON) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: "
    return head.encode() + b"%d\r\n\r\n" % len(body) + body


def post(path: str, body: object) -> bytes:
    return request_of(path, msgspec.json.encode(body))


def create(server: Server, topic: str, fields: list[str] | None) -> None:
    Connection(server.address).ask(post(_TOPICS, {"topic": topic, "fields": fields}))


def load(connections: list[Connection], request: bytes, seconds: float) -> float:
    """Requests a second, one at a time on each connection, after one to warm up."""
    for connection in connections:
        connection.ask(request)
    by_number = {connection.socket.fileno(): connection for connection in connections}
    poll = select.epoll()
    for number, connection in by_number.items():
        poll.register(number, select.EPOLLIN)
        connection.socket.sendall(request)
    done, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < seconds:
        for number, _ in poll.poll():
            by_number[number].read()
            by_number[number].socket.sendall(request)
            done += 1
    for connection in connections:
        connection.read()
    return done / passed


def stream() -> bytes:
    """An Arrow stream of about STREAM_BYTES."""
    count = STREAM_BYTES // 32
    table = pa.table(
        {
            "id": pa.array(range(count)),
            "score": pa.array([n * 0.37 for n in range(count)]),
            "name": pa.array([f"name {n:07}" for n in range(count)]),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def get_memory(path: Path, size_bytes: int) -> None:
    """Use as much memory once as files will take.

    A virtual machine gets memory from its host at first use, which takes ten times as long as to
    use it again, and gives it back when it has been free for some seconds.
    """
    with (path / "memory").open("wb", buffering=0) as file:
        for _ in range(size_bytes >> 20):
            file.write(bytes(1 << 20))
    (path / "memory").unlink()


def warm_up(server: Server, request: bytes) -> None:
    """Complete a first WAL file, so that everything it starts is running."""
    connection = Connection(server.address)
    for _ in range(WARM_UP_REQUESTS):
        connection.ask(request)
    connection.socket.close()
    time.sleep(WARM_UP_SECONDS)
