"""Logs with their tiers: what the uploader costs, and reading back from the bucket.

The bucket is a directory on the same disk, the metadata SQLite: one machine does all the work.

*Publish by NATS*: one connection to a broker process, 4000 publishes of 128 bytes under way, each
acknowledged behind its fdatasync; every round has a broker of its own, with the uploader and
without in turn, and its rate is that of the last three quarters. Orders are JSON, which gets small
in the bucket; random bytes do not, and are written twice to the one disk.

*Publish within*: into the log itself, without what a door costs: runs of 256 messages, 16 in
flight. `behind` is what the uploader had left at the end. The sixteen publish alike, so that what
is uploaded gets small; `different` is with payloads that do not.

*Read back*: a topic whose WAL is gone, read by a Reader as Arrow batches, against pyarrow reading
the same Parquet files by row groups, one after the other; rounds alternate, pages warm. Bytes are
those of the messages.

*Memory*: peak resident memory while a backlog of payloads that do not get small is uploaded, above
what the process has with the log open, in a process of its own.

*Delivery*: from the append of a run, the sync included, to the moment a reader that waits at the
head has it, and how late a timer of 1 ms fires, both while a publisher keeps the given rate.
"""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bench import nats_wire
from bench.report import Cell, Report, Table, Target
from bench.workload import (
    PAYLOAD_BYTES,
    TOPIC,
    directory,
    in_fresh_process,
    median,
    on_loop,
    orders_of,
    payloads_of,
    percentile,
    runs,
)
from penstock.assembly.storage import Storage
from penstock.config import load
from penstock.log.log import Log
from penstock.model.units import Offset, PartitionId

RUN_MESSAGES: Final = 256
IN_FLIGHT: Final = 16
DIFFERENT_PAYLOADS: Final = 16_000
DIFFERENT_RUNS: Final = 13
"""How far apart publishers are of payloads that others have not just published."""
RATE_RATIO_MIN: Final = 0.8
READ_RATIO_MIN: Final = 0.5
MEMORY_MB_MAX: Final = 320
"""Two objects of 64 MiB, one on its way and one that grows, and the parts of 8 MiB added to it in
their other forms (frames, columns).
"""
DELIVERY_MS_MAX: Final = 1000
PACED_RATE: Final = 100_000
"""Messages a second while delivery is timed."""
_PARTITION: Final = PartitionId(0)
_NEVER: Final = (
    "storage.uploader.interval_seconds=86400",
    "storage.uploader.max_batch_bytes=1073741824",
)
_GONE: Final = ("storage.wal.retention.min_minutes=0", "storage.wal.retention.min_bytes=0")


class Timed(NamedTuple):
    """Milliseconds: of every delivery, and how late every turn of a timer was."""

    deliveries: list[float]
    turns: list[float]


class Late(NamedTuple):
    """Milliseconds."""

    delivery_p50: float
    delivery_p99: float
    timer_p99: float


def run(quick: bool) -> Report:
    messages = 2_000_000 if quick else 16_000_000
    size_bytes = (64 if quick else 1024) << 20
    rounds = 1 if quick else 3
    orders = _door_rounds(messages // 4, rounds, orders_of(DIFFERENT_PAYLOADS))
    random = _door_rounds(messages // 4, rounds, payloads_of(DIFFERENT_PAYLOADS))
    alike = _publish_rounds(messages, rounds, True)
    different = _publish_rounds(messages, rounds, False)
    with directory() as path:
        on_loop(_fill(path, size_bytes))
        ours, theirs = on_loop(_read_back(path, rounds))
    with directory() as path:
        on_loop(_fill(path, size_bytes // 4, *_NEVER, alike=False))
        above = in_fresh_process(_memory_of_upload, path)
    busy = _late(3 if quick else 10, True)
    idle = _late(3 if quick else 10, False)
    tables = [
        Table(
            "tiers, publish by NATS: messages of 128 bytes, fdatasync before the ack",
            ["payloads", "with uploader msg/s", "without msg/s", "ratio"],
            [["orders", *orders], ["random", *random]],
        ),
        Table(
            "tiers, publish within: runs of 256 messages of 128 bytes, fdatasync before the ack",
            ["payloads", "with uploader msg/s", "without msg/s", "ratio", "behind at the end MB"],
            [["alike", *alike], ["different", *different]],
        ),
        Table(
            "tiers, read back from the bucket as Arrow batches",
            ["reader MB/s", "pyarrow MB/s", "ratio"],
            [[ours, theirs, ours / theirs]],
        ),
        Table(
            f"tiers, delivery at {PACED_RATE} messages a second",
            ["uploader", "append to reader p50 ms", "p99 ms", "timer late p99 ms"],
            [["on", *busy], ["off", *idle]],
        ),
        Table("tiers, memory while a backlog is uploaded", ["peak above idle MB"], [[above]]),
    ]
    kept, kept_random = float(orders[2] or 0), float(random[2] or 0)
    return Report(tables, targets(kept, kept_random, ours / theirs, above, busy))


def targets(orders: float, random: float, read: float, above: float, busy: Late) -> list[Target]:
    """What is promised of these figures."""
    promise = "tiers: publish by NATS with the uploader keeps 80 % of the rate"
    return [
        Target(f"{promise}, orders", f"{orders:.2f}", orders >= RATE_RATIO_MIN),
        Target(f"{promise}, random bytes", f"{random:.2f}", random >= RATE_RATIO_MIN),
        Target(
            "tiers: read back at half of pyarrow's speed", f"{read:.2f}", read >= READ_RATIO_MIN
        ),
        Target(
            f"tiers: uploading takes at most {MEMORY_MB_MAX} MB",
            f"{above:.0f} MB",
            above <= MEMORY_MB_MAX,
        ),
        Target(
            "tiers: append to delivery p99 under 1 s while uploading",
            f"{busy.delivery_p99:.1f} ms",
            busy.delivery_p99 < DELIVERY_MS_MAX,
        ),
    ]


@asynccontextmanager
async def _storage(path: Path, *overrides: str) -> AsyncIterator[Storage]:
    storage = Storage(load(None, {}, [f"data={path}", *overrides]).config)
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()


async def _log(storage: Storage) -> Log:
    assert storage.tiers is not None
    if TOPIC in storage.tiers.topics:
        return storage.tiers[TOPIC].log
    return (await storage.tiers.add(TOPIC)).log


def _door_rounds(messages: int, rounds: int, payloads: list[bytes]) -> list[Cell]:
    """Messages a second with the uploader and without, and their ratio."""
    rates: dict[tuple[str, ...], list[float]] = {(): [], _NEVER: []}
    for _ in range(rounds):
        for settings, found in rates.items():
            with directory() as path, _broker(path, *settings) as port:
                nats_wire.fresh_stream(port)
                nats_wire.acked(port, messages // 4, payloads=payloads)
                found.append(nats_wire.acked(port, messages * 3 // 4, payloads=payloads))
    uploading, idle = (median(found) for found in rates.values())
    return [uploading, idle, uploading / idle]


@contextmanager
def _broker(path: Path, *overrides: str) -> Iterator[int]:
    """A broker process; where its NATS door is."""
    doors = [part for door in ("http", "grpc", "nats") for part in (f"--{door}", "127.0.0.1:0")]
    settings = [part for setting in overrides for part in ("--set", setting)]
    program = str(Path(sys.executable).with_name("penstock"))
    process = subprocess.Popen(
        [program, "serve", "--data", str(path), *doors, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        found = (re.match(r"nats listening on .+:(\d+)", line) for line in lines)
        match = next(filter(None, found), None)
        if match is None:
            raise RuntimeError("the broker did not start")
        yield int(match[1])
    finally:
        process.kill()
        process.communicate()


def _publish_rounds(messages: int, rounds: int, alike: bool) -> list[Cell]:
    """Messages a second with the uploader and without, their ratio, megabytes left to upload."""
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
    async with _storage(path) as storage:
        log = await _log(storage)
        assert storage.tiers is not None
        if not uploads:
            storage.tiers._duties[TOPIC].uploading.not_before = math.inf
        count = messages // RUN_MESSAGES // IN_FLIGHT
        await _publishers(log, count // 4, alike)
        begun = time.perf_counter()
        await _publishers(log, count - count // 4, alike)
        took = time.perf_counter() - begun
        left = storage.tiers.lag_bytes(TOPIC)
        if not uploads:
            await _leave_backlog(storage)
        return (count - count // 4) * IN_FLIGHT * RUN_MESSAGES / took, left


async def _publishers(log: Log, count: int, alike: bool) -> None:
    """All publish the same at the same time, or each what the others do not."""
    starts = [0 if alike else place * DIFFERENT_RUNS for place in range(IN_FLIGHT)]
    await asyncio.gather(*(_publisher(log, count, start) for start in starts))


async def _publisher(log: Log, count: int, start: int) -> None:
    for item in islice(runs(start + count, RUN_MESSAGES), start, None):
        await log.append(item)


async def _fill(path: Path, size_bytes: int, *overrides: str, alike: bool = True) -> None:
    async with _storage(path, *overrides) as storage:
        log = await _log(storage)
        count = size_bytes // PAYLOAD_BYTES // RUN_MESSAGES // IN_FLIGHT
        await _publishers(log, count, alike)
        if overrides:
            await _leave_backlog(storage)


async def _leave_backlog(storage: Storage) -> None:
    """Close the logs first, so that the shutdown finds nothing to upload."""
    assert storage.tiers is not None
    storage.tiers._duties.clear()


async def _read_back(path: Path, rounds: int) -> tuple[float, float]:
    """Megabytes of messages a second, of our reader and of pyarrow."""
    async with _storage(path, *_GONE) as storage:
        assert storage.tiers is not None
        log = await _log(storage)
        log.rotate()
        await storage.tiers.upkeep(TOPIC)
        entries = storage.tiers[TOPIC].manifest.index
        files = sorted(path / "objects" / entry.object_id for entry in entries)
        ours, theirs = [], []
        for _ in range(rounds):
            theirs.append(await asyncio.to_thread(_by_pyarrow, files))
            ours.append(await _by_reader(storage, log))
        return median(ours), median(theirs)


async def _by_reader(storage: Storage, log: Log) -> float:
    assert storage.tiers is not None
    end = log.files.start(_PARTITION)
    reader = log.reader(_PARTITION, Offset(0), objects=storage.tiers[TOPIC].read)
    begun = time.perf_counter()
    while reader.next_offset < end:
        (await anext(reader)).to_arrow()
    return reader.next_offset * PAYLOAD_BYTES / 1e6 / (time.perf_counter() - begun)


def _by_pyarrow(files: Sequence[Path]) -> float:
    begun, rows = time.perf_counter(), 0
    for file in files:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        for group in range(parquet.num_row_groups):
            rows += parquet.read_row_group(group).num_rows
    return rows * PAYLOAD_BYTES / 1e6 / (time.perf_counter() - begun)


def _memory_of_upload(path: Path) -> float:
    return on_loop(_upload_backlog(path))


async def _upload_backlog(path: Path) -> float:
    """Megabytes of resident memory at the peak, above those before."""
    async with _storage(path) as storage:
        assert storage.tiers is not None
        await _log(storage)
        pa.array([0])  # Where pandas is installed, pyarrow loads it now.
        before, peak, over = _resident(), [0.0], threading.Event()

        def watch() -> None:
            while not over.wait(0.002):
                peak[0] = max(peak[0], _resident())

        watcher = threading.Thread(target=watch)
        watcher.start()
        await storage.tiers.flush(TOPIC)
        over.set()
        watcher.join()
        return peak[0] - before


def _resident() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096 / 1e6


def _late(seconds: float, uploads: bool) -> Late:
    with directory() as path:
        return late(on_loop(timed_deliveries(path, seconds, uploads)))


def late(timed: Timed) -> Late:
    deliveries, turns = timed
    return Late(percentile(deliveries, 0.5), percentile(deliveries, 0.99), percentile(turns, 0.99))


async def timed_deliveries(path: Path, seconds: float, uploads: bool) -> Timed:
    overrides = ("storage.uploader.interval_seconds=1",) if uploads else _NEVER
    async with _storage(path, *overrides) as storage:
        log = await _log(storage)
        appended: dict[int, float] = {}
        delivered: list[float] = []
        turns: list[float] = []
        following = asyncio.create_task(_follow(log, appended, delivered))
        timing = asyncio.create_task(_time_turns(turns))
        pause, due = RUN_MESSAGES / PACED_RATE, time.perf_counter()
        for number, item in enumerate(runs(int(seconds / pause), RUN_MESSAGES)):
            due += pause
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            appended[number * RUN_MESSAGES] = time.perf_counter()
            last = log.append(item)
        await last
        while appended:
            await asyncio.sleep(0.01)
        for task_ in (following, timing):
            task_.cancel()
        await asyncio.gather(following, timing, return_exceptions=True)
        return Timed(delivered, turns)


async def _follow(log: Log, appended: dict[int, float], delivered: list[float]) -> None:
    """When a batch arrives, how long ago its runs were appended."""
    seen = 0
    async for batch in log.reader(_PARTITION, Offset(0)):
        now = time.perf_counter()
        while seen < batch.next_offset:
            delivered.append(1000 * (now - appended.pop(seen)))
            seen += RUN_MESSAGES


async def _time_turns(turns: list[float]) -> None:
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        turns.append(1000 * (time.perf_counter() - begun - 0.001))
