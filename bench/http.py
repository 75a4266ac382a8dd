"""The HTTP server of a broker in a process of its own: rows a second, Arrow, and wake-ups.

This process sends the load over plain sockets: a connection sends its next request when it has read
the reply to the last one.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.http_wire import (
    FIELDS,
    STREAM_CONNECTIONS,
    WITHOUT_UPLOADS,
    Connection,
    Server,
    broker,
    create,
    get_memory,
    load,
    post,
    request_of,
    served,
    stream,
    warm_up,
)
from bench.report import Cell, Report, Table, Target
from bench.workload import directory, median, percentile
from penstock.formats.api import ARROW_STREAM
from penstock.host.disk import Disk

BATCHES: Final = (1, 100, 10_000)
CONNECTIONS: Final = {1: 32, 100: 16, 10_000: 2}
ARROW_ROUNDS: Final = 5
ARROW_SECONDS: Final = 0.8
"""Short enough that the data does not trigger an upload."""
ARROW_SHARE_MIN: Final = 0.6
DISK_GROUP: Final = 4
"""Approximate number of streams that the broker makes durable together."""
PARKED: Final = 1000
LONG_MS: Final = 60_000
_MEMORY_BYTES: Final = 3 << 29


def run(quick: bool) -> Report:
    seconds = 0.5 if quick else 2.0
    with directory() as path, served(*broker(path, *WITHOUT_UPLOADS)) as server:
        json = _json(server, seconds)
        woken = _wake_ups(server, 3 if quick else 10)
    rounds = [_arrow_round(stream()) for _ in range(1 if quick else ARROW_ROUNDS)]
    pushed, thrown_away, disk = (_medians(figures) for figures in zip(*rounds, strict=True))
    share = pushed[0] / thrown_away[0]
    arrow = Table(
        "http: Arrow streams of 1 MiB, stored and thrown away",
        ["connections", "MB/s", "CPU ms/MB", "MB/s away", "CPU ms/MB away", "share", "MB/s disk"],
        [[STREAM_CONNECTIONS, *pushed, *thrown_away, share, *disk]],
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
    """Speed and cost of streams that are stored and that are discarded, and of the disk alone."""
    push = request_of("/v1/push?namespace=default/default&topic=rows", body, ARROW_STREAM)
    with directory() as path, served(*broker(path, *WITHOUT_UPLOADS)) as server:
        create(server, "rows", FIELDS)
        warm_up(server, push)
        get_memory(path, _MEMORY_BYTES)
        pushed = _arrow(server, push)
    with directory() as path:
        get_memory(path, _MEMORY_BYTES)
        disk = _disk(path, body)
    with served(sys.executable, "-m", "bench.http_sink") as sink:
        away = request_of("/", body, ARROW_STREAM)
        warm_up(sink, away)
        return pushed, _arrow(sink, away), [disk]


def _medians(rows: Sequence[list[float]]) -> list[float]:
    return [median(list(column)) for column in zip(*rows, strict=True)]


def _json(server: Server, seconds: float) -> Table:
    rows: list[list[Cell]] = []
    for batch in BATCHES:
        count, topic = CONNECTIONS[batch], f"rows{batch}"
        create(server, topic, FIELDS)
        data = [{"id": n, "score": n * 0.37, "name": f"name {n}"} for n in range(batch)]
        push = {"namespace": "default/default", "batches": [{"topic": topic, "data": data}]}
        connections = [Connection(server.address) for _ in range(count)]
        pushed = load(connections, post("/v1/push", push), seconds)
        fetch = {
            "namespace": "default/default",
            "topics": [{"topic": topic, "offset": 0}],
            "max_messages": batch,
        }
        fetched = load(connections, post("/v1/fetch", fetch), seconds)
        rows.append([batch, count, pushed, pushed * batch, fetched, fetched * batch])
    return Table(
        "http: JSON rows of three columns, pushed (durable) and fetched",
        ["rows a batch", "connections", "pushes/s", "rows/s", "fetches/s", "rows/s"],
        rows,
    )


def _disk(path: Path, body: bytes) -> float:
    """Write throughput of the disk in MB/s, with DISK_GROUP bodies at a time."""
    disk, done, begun = Disk(), 0, time.perf_counter()
    fd = disk.create(path / "raw", [])
    while (passed := time.perf_counter() - begun) < ARROW_SECONDS:
        disk.write(fd, [body] * DISK_GROUP)
        disk.sync(fd)
        done += DISK_GROUP
    disk.close(fd)
    return done * len(body) / 1e6 / passed


def _arrow(server: Server, request: bytes) -> list[float]:
    """Throughput in MB/s, and the server's processor time in milliseconds per MB."""
    connections = [Connection(server.address) for _ in range(STREAM_CONNECTIONS)]
    begun, used = time.perf_counter(), server.cpu_seconds()
    speed = load(connections, request, ARROW_SECONDS) * len(request) / 1e6
    passed, used = time.perf_counter() - begun, server.cpu_seconds() - used
    return [speed, 1e3 * used / (speed * passed)]


def _wake_ups(server: Server, rounds: int) -> Table:
    """Delays from the first sign of the commit in this process to each of a thousand replies."""
    create(server, "news", None)
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
            connection.socket.sendall(post("/v1/fetch", fetch))
        time.sleep(0.5)
        latencies += _woken(pusher, post("/v1/push", push), connections)
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
