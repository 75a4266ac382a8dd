"""The HTTP door of a broker in a process of its own: rows a second, Arrow, and waking up.

The load is made here with plain sockets: a connection sends its next request as soon as it has read
the reply to the last.
"""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from bench.report import Cell, Report, Table, Target
from bench.workload import directory, median, percentile
from penstock.formats.api import ARROW_STREAM, JSON
from penstock.host.disk import Disk

BATCHES: Final = (1, 100, 10_000)
CONNECTIONS: Final = {1: 32, 100: 16, 10_000: 2}
ARROW_CONNECTIONS: Final = 8
ARROW_BYTES: Final = 1 << 20
ARROW_ROUNDS: Final = 5
ARROW_SECONDS: Final = 0.8
"""Short enough for all of it to be less than makes an upload begin."""
ARROW_SHARE_MIN: Final = 0.6
DISK_GROUP: Final = 4
"""Streams that the broker makes durable together, about."""
WARM_UP_REQUESTS: Final = 70
WARM_UP_SECONDS: Final = 1.0
PARKED: Final = 1000
LONG_MS: Final = 60_000
_MEMORY_BYTES: Final = 3 << 29
_TOPICS: Final = "/v1/tenants/default/namespaces/default/topics"
_SETTINGS: Final = (
    "log.level=error",
    # What becomes objects later is not what is measured here.
    "storage.uploader.interval_seconds=3600",
    "storage.uploader.max_batch_bytes=1073741824",
    # Full after a moment, as it is on a broker that has run for a while: memory is used again.
    "storage.wal.cache.max_bytes=33554432",
)
_FIELDS: Final = ["id:int64", "score:float64", "name:string"]


class Server(NamedTuple):
    """A process that listens."""

    address: tuple[str, int]
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time it has used: says something also where others are busy."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Connection:
    """A socket that speaks as much HTTP as the broker answers with."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def ask(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        return self.read()

    def read(self) -> bytes:
        """The body of a reply; it must be a good one."""
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


def run(quick: bool) -> Report:
    seconds = 0.5 if quick else 2.0
    with directory() as path, _served(*_broker(path)) as broker:
        json = _json(broker, seconds)
        woken = _wake_ups(broker, 3 if quick else 10)
    rounds = [_arrow_round(_stream()) for _ in range(1 if quick else ARROW_ROUNDS)]
    pushed, thrown_away, disk = (_medians(figures) for figures in zip(*rounds, strict=True))
    share = pushed[0] / thrown_away[0]
    arrow = Table(
        "http: Arrow streams of 1 MiB, stored and thrown away",
        ["connections", "MB/s", "CPU ms/MB", "MB/s away", "CPU ms/MB away", "share", "MB/s disk"],
        [[ARROW_CONNECTIONS, *pushed, *thrown_away, share, *disk]],
        [
            f"medians of {len(rounds)} rounds",
            f"disk: {DISK_GROUP} streams at a time are written and synced, nothing else is done",
        ],
    )
    target = Target(
        "http: Arrow is stored at 60 % of the speed at which it is thrown away",
        f"{share:.0%}",
        met=share >= ARROW_SHARE_MIN,
    )
    return Report([json, arrow, woken], [target])


def _arrow_round(body: bytes) -> tuple[list[float], list[float], list[float]]:
    """Streams stored and thrown away: their speed and cost; and how fast the disk alone is."""
    push = _request("/v1/push?namespace=default/default&topic=rows", body, ARROW_STREAM)
    with directory() as path, _served(*_broker(path)) as broker:
        _create(broker, "rows", _FIELDS)
        _warm_up(broker, push)
        _get_memory(path)
        pushed = _arrow(broker, push)
    with directory() as path:
        _get_memory(path)
        disk = _disk(path, body)
    with _served(sys.executable, "-m", "bench.http_sink") as sink:
        away = _request("/", body, ARROW_STREAM)
        _warm_up(sink, away)
        return pushed, _arrow(sink, away), [disk]


def _medians(rows: Sequence[list[float]]) -> list[float]:
    return [median(list(column)) for column in zip(*rows, strict=True)]


def _broker(path: Path) -> list[str]:
    program = str(Path(sys.executable).with_name("penstock"))
    doors = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--nats", "127.0.0.1:0")
    settings = [part for setting in _SETTINGS for part in ("--set", setting)]
    return [program, "serve", "--data", str(path), *doors, *settings]


@contextmanager
def _served(*command: str) -> Iterator[Server]:
    """A server, for as long as it is needed."""
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


def _request(path: str, body: bytes, kind: str = JSON) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\ncontent-length: "
    return head.encode() + b"%d\r\n\r\n" % len(body) + body


def _post(path: str, body: object) -> bytes:
    return _request(path, msgspec.json.encode(body))


def _create(server: Server, topic: str, fields: list[str] | None) -> None:
    Connection(server.address).ask(_post(_TOPICS, {"topic": topic, "fields": fields}))


def _load(connections: list[Connection], request: bytes, seconds: float) -> float:
    """Requests a second, one at a time on every connection; a first one each warms up."""
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


def _json(server: Server, seconds: float) -> Table:
    rows: list[list[Cell]] = []
    for batch in BATCHES:
        count, topic = CONNECTIONS[batch], f"rows{batch}"
        _create(server, topic, _FIELDS)
        data = [{"id": n, "score": n * 0.37, "name": f"name {n}"} for n in range(batch)]
        push = {"namespace": "default/default", "batches": [{"topic": topic, "data": data}]}
        connections = [Connection(server.address) for _ in range(count)]
        pushed = _load(connections, _post("/v1/push", push), seconds)
        fetch = {
            "namespace": "default/default",
            "topics": [{"topic": topic, "offset": 0}],
            "max_messages": batch,
        }
        fetched = _load(connections, _post("/v1/fetch", fetch), seconds)
        rows.append([batch, count, pushed, pushed * batch, fetched, fetched * batch])
    return Table(
        "http: JSON rows of three columns, pushed (durable) and fetched",
        ["rows a batch", "connections", "pushes/s", "rows/s", "fetches/s", "rows/s"],
        rows,
    )


def _stream() -> bytes:
    """An Arrow stream of about ARROW_BYTES."""
    count = ARROW_BYTES // 32
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


def _get_memory(path: Path) -> None:
    """Have as much memory in use once as files will take.

    A virtual machine gets memory from its host at first use, which takes ten times as long as to
    use it again, and gives it back when it has been free for some seconds.
    """
    with (path / "memory").open("wb", buffering=0) as file:
        for _ in range(_MEMORY_BYTES >> 20):
            file.write(bytes(1 << 20))
    (path / "memory").unlink()


def _disk(path: Path, body: bytes) -> float:
    """Megabytes a second that the disk takes, DISK_GROUP bodies at a time."""
    disk, done, begun = Disk(), 0, time.perf_counter()
    fd = disk.create(path / "raw", [])
    while (passed := time.perf_counter() - begun) < ARROW_SECONDS:
        disk.write(fd, [body] * DISK_GROUP)
        disk.sync(fd)
        done += DISK_GROUP
    disk.close(fd)
    return done * len(body) / 1e6 / passed


def _warm_up(server: Server, request: bytes) -> None:
    """Finish a first WAL file and have running what is started for that once."""
    connection = Connection(server.address)
    for _ in range(WARM_UP_REQUESTS):
        connection.ask(request)
    connection.socket.close()
    time.sleep(WARM_UP_SECONDS)


def _arrow(server: Server, request: bytes) -> list[float]:
    """Megabytes a second, and milliseconds of the server's processor time for each."""
    connections = [Connection(server.address) for _ in range(ARROW_CONNECTIONS)]
    begun, used = time.perf_counter(), server.cpu_seconds()
    speed = _load(connections, request, ARROW_SECONDS) * len(request) / 1e6
    passed, used = time.perf_counter() - begun, server.cpu_seconds() - used
    return [speed, 1e3 * used / (speed * passed)]


def _wake_ups(server: Server, rounds: int) -> Table:
    """From the first sign of the commit, here, to each of a thousand replies."""
    _create(server, "news", None)
    pusher = Connection(server.address)
    push = {
        "namespace": "default/default",
        "batches": [{"topic": "news", "data": [{"payload": "x"}]}],
    }
    connections = {(c := Connection(server.address)).socket.fileno(): c for _ in range(PARKED)}
    latencies: list[float] = []
    for offset in range(rounds):
        fetch = {
            "namespace": "default/default",
            "topics": [{"topic": "news", "offset": offset}],
            "timeout_ms": LONG_MS,
        }
        for connection in connections.values():
            connection.socket.sendall(_post("/v1/fetch", fetch))
        time.sleep(0.5)
        latencies += _woken(pusher, _post("/v1/push", push), connections)
    return Table(
        f"http: {PARKED} parked fetches woken by one push",
        ["rounds", "p50 ms", "p99 ms", "max ms"],
        [[rounds, percentile(latencies, 0.5), percentile(latencies, 0.99), max(latencies)]],
        ["from the commit to the reply, as this process sees them; all replies carry the message"],
    )


def _woken(pusher: Connection, push: bytes, waiting: dict[int, Connection]) -> list[float]:
    poll = select.epoll()
    for number in [*waiting, pusher.socket.fileno()]:
        poll.register(number, select.EPOLLIN)
    pusher.socket.sendall(push)
    arrivals: list[float] = []
    committed = 0.0
    while len(arrivals) < len(waiting):
        for number, _ in poll.poll():
            now = time.perf_counter()
            committed = committed or now
            poll.unregister(number)
            if number != pusher.socket.fileno():
                arrivals.append(now)
                if b'"payload":"x"' not in waiting[number].read():
                    raise RuntimeError("a fetch was woken and brought nothing")
    pusher.read()
    return [1e3 * (arrival - committed) for arrival in arrivals]
