"""The cost of uploads for publishers.

The bucket is a directory on the same disk, the metadata SQLite: one machine does all the work.
Rounds with and without the uploader alternate, each with a broker and a directory of its own.

*NATS*: one connection to a broker process with 4000 publishes of 128 bytes in flight, each
acknowledged after its fdatasync; the rate is that of the last three quarters. Orders are JSON and
compress well; random bytes do not, and are written to the same disk twice. `behind` is what the
uploader had not uploaded at the end.

*HTTP*: Arrow streams of 1 MiB on eight connections, to several topics in turn, so that no topic
triggers an upload in rounds without uploads. The input exceeds what one core can encode; the
backlog is in the WAL.

*Within*: appends to the log without a server: runs of 256 messages, 16 in flight. Publishers use
equal payloads, which compress well; `different` uses payloads that do not.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from bench import http_wire, nats_wire
from bench.http_wire import FIELDS, STREAM_CONNECTIONS, Connection
from bench.report import Cell, Report, Table, Target
from bench.tiers import (
    DIFFERENT_PAYLOADS,
    IN_FLIGHT,
    NEVER,
    RUN_MESSAGES,
    leave_backlog,
    log_of,
    open_storage,
    publishers,
)
from bench.workload import TOPIC, directory, median, on_loop, orders_of, payloads_of
from penstock.formats.api import ARROW_STREAM

RATIO_MIN: Final = 0.8
ARROW_SECONDS: Final = 0.75
"""Bytes of each topic, below the gigabyte that always triggers an upload."""
ARROW_TOPICS: Final = 8
ARROW_SETTINGS: Final = ("log.level=error", "storage.wal.cache.max_bytes=33554432")
_MEMORY_BYTES: Final = 6 << 30


def run(quick: bool) -> Report:
    messages = 2_000_000 if quick else 16_000_000
    rounds = 1 if quick else 3
    orders = _nats_rounds(messages // 4, rounds, orders_of(DIFFERENT_PAYLOADS))
    random = _nats_rounds(messages // 4, rounds, payloads_of(DIFFERENT_PAYLOADS))
    arrow = _arrow_rounds(1 if quick else ARROW_TOPICS, rounds)
    alike = _within_rounds(messages, rounds, True)
    different = _within_rounds(messages, rounds, False)
    tables = [
        Table(
            "uploads, publish by NATS: messages of 128 bytes, fdatasync before the ack",
            ["payloads", "with uploader msg/s", "without msg/s", "ratio", "behind at the end MB"],
            [["orders", *orders], ["random", *random]],
        ),
        Table(
            "uploads, push by HTTP: Arrow streams of 1 MiB, fdatasync before the ack",
            ["with uploader MB/s", "without MB/s", "ratio"],
            [arrow],
        ),
        Table(
            "uploads, publish within: runs of 256 messages of 128 bytes, fdatasync before the ack",
            ["payloads", "with uploader msg/s", "without msg/s", "ratio", "behind at the end MB"],
            [["alike", *alike], ["different", *different]],
        ),
    ]
    targets = [
        _target("publish by NATS, orders", orders),
        _target("publish by NATS, random bytes", random),
        _target("push by HTTP, Arrow", arrow),
    ]
    return Report(tables, targets)


def _target(what: str, row: list[Cell]) -> Target:
    ratio = float(row[2] or 0)
    promise = f"uploads: 80 % of the rate is kept with the uploader, {what}"
    return Target(promise, f"{ratio:.2f}", ratio >= RATIO_MIN)


def _nats_rounds(messages: int, rounds: int, payloads: list[bytes]) -> list[Cell]:
    """Messages a second with and without the uploader, their ratio, and MB not uploaded yet."""
    rates: dict[tuple[str, ...], list[float]] = {(): [], NEVER: []}
    behind = 0.0
    for _ in range(rounds):
        for settings, found in rates.items():
            with directory() as path, _broker(path, *settings) as (nats, http):
                nats_wire.fresh_stream(nats)
                nats_wire.acked(nats, messages // 4, payloads=payloads)
                found.append(nats_wire.acked(nats, messages * 3 // 4, payloads=payloads))
                behind = behind if settings else max(behind, _behind(http))
    uploading, idle = (median(found) for found in rates.values())
    return [uploading, idle, uploading / idle, behind / 1e6]


@contextmanager
def _broker(path: Path, *overrides: str) -> Iterator[tuple[int, int]]:
    """Run a broker process; yields the ports of its NATS and HTTP servers."""
    process = subprocess.Popen(
        http_wire.broker(path, *overrides),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        found = [re.match(r"\w+ listening on .+:(\d+)", line) for line in lines]
        nats, http = (int(match[1]) for match in found if match)
        yield nats, http
    finally:
        process.kill()
        process.communicate()


def _behind(http: int) -> float:
    """Bytes that are not in objects yet."""
    with urlopen(f"http://127.0.0.1:{http}/metrics") as reply:
        lags = re.findall(rb"^penstock_upload_lag_bytes\{.*\} (\S+)", reply.read(), re.MULTILINE)
    return sum(map(float, lags))


def _arrow_rounds(topics: int, rounds: int) -> list[Cell]:
    """MB a second with and without the uploader, and their ratio."""
    body = http_wire.stream()
    rates: dict[tuple[str, ...], list[float]] = {(): [], NEVER: []}
    for _ in range(rounds):
        for settings, found in rates.items():
            found.append(_pushed(topics, body, *ARROW_SETTINGS, *settings))
    uploading, idle = (median(found) for found in rates.values())
    return [uploading, idle, uploading / idle]


def _pushed(topics: int, body: bytes, *settings: str) -> float:
    """MB a second over all topics."""
    names = [f"rows{number}" for number in range(topics)]
    where = "/v1/push?namespace=default/default&topic="
    pushes = [http_wire.request_of(where + name, body, ARROW_STREAM) for name in names]
    with (
        directory() as path,
        http_wire.served(*http_wire.broker(path, *settings)) as server,
    ):
        for name in names:
            http_wire.create(server, name, FIELDS)
        http_wire.warm_up(server, pushes[0])
        http_wire.get_memory(path, _MEMORY_BYTES * topics // ARROW_TOPICS)
        connections = [Connection(server.address) for _ in range(STREAM_CONNECTIONS)]
        rates = [http_wire.load(connections, push, ARROW_SECONDS) for push in pushes]
        return sum(rates) / len(rates) * len(body) / 1e6


def _within_rounds(messages: int, rounds: int, alike: bool) -> list[Cell]:
    """Messages a second with and without the uploader, their ratio, and MB not uploaded yet."""
    pairs = []
    for _ in range(rounds):
        with directory() as one, directory() as other:
            with_ = on_loop(_publish(one, messages, True, alike))
            pairs.append((with_, on_loop(_publish(other, messages, False, alike))))
    with_rates, rates = ([rate for rate, _ in side] for side in zip(*pairs, strict=True))
    behind = max(left for (_, left), _ in pairs)
    uploading, idle = median(with_rates), median(rates)
    return [uploading, idle, uploading / idle, behind / 1e6]


async def _publish(path: Path, messages: int, uploads: bool, alike: bool) -> tuple[float, float]:
    """Messages a second, and bytes that were not uploaded at the end."""
    async with open_storage(path) as storage:
        log = await log_of(storage)
        assert storage.tiers is not None
        if not uploads:
            storage.tiers.maintenance(TOPIC).stop()
        count = messages // RUN_MESSAGES // IN_FLIGHT
        await publishers(log, count // 4, alike)
        begun = time.perf_counter()
        await publishers(log, count - count // 4, alike)
        took = time.perf_counter() - begun
        left = storage.tiers.lag_bytes(TOPIC)
        if not uploads:
            await leave_backlog(storage)
        return (count - count // 4) * IN_FLIGHT * RUN_MESSAGES / took, left
