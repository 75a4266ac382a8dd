"""Logs with their tiers: reads from the bucket, memory, and the delay of deliveries.

The bucket is a directory on the same disk, the metadata SQLite: one machine does all the work.

*Read back*: a Reader reads a topic without WAL files as Arrow batches, compared with pyarrow, which
reads the same Parquet files by row groups, one after the other. Rounds alternate, and the page
cache is warm. Bytes are those of the messages.

*Memory*: peak resident memory during the upload of a backlog and the merge of its objects, above
that of the process with the log open. The encoding process counts in full, with its interpreter and
libraries. One case has incompressible payloads, so that objects are large, and one has many
partitions, whose rows are sorted.

*Delivery*: time from the append of a run, including the sync, until a reader that waits at the end
has it, and the delay of a timer of 1 ms, while a publisher keeps the given rate.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bench.report import Report, Table, Target
from bench.workload import (
    PAYLOAD_BYTES,
    TOPIC,
    directory,
    in_fresh_process,
    median,
    on_loop,
    percentile,
    runs,
)
from penstock.assembly.storage import Storage
from penstock.config import load
from penstock.log.log import Log
from penstock.model.units import Offset, PartitionId
from tests.log_reader import LogReader

RUN_MESSAGES: Final = 256
IN_FLIGHT: Final = 16
DIFFERENT_PAYLOADS: Final = 16_000
DIFFERENT_RUNS: Final = 13
"""Distance between publishers in the pool of payloads, so that they use different ones."""
READ_RATIO_MIN: Final = 0.5
UPLOAD_MB_MAX: Final = 384
"""Limit of the memory of uploads: two objects of 64 MiB, one in transfer and one that grows; parts
of 8 MiB as frames and columns; and the encoding process with 150 MB of its own.
"""
MERGE_MB_MAX: Final = 640
"""Limit of the memory of merges: objects of 128 MiB, the merged object, a row group of 16 MiB of
each of eight objects, freed memory that is not returned, and the idle encoding process.
"""
PARTITIONS: Final = 100
DELIVERY_MS_MAX: Final = 1000
PACED_RATE: Final = 100_000
"""Messages a second while deliveries are timed."""
_PARTITION: Final = PartitionId(0)
NEVER: Final = (
    "storage.uploader.interval_seconds=86400",
    "storage.uploader.max_batch_bytes=1073741824",
)
_GONE: Final = ("storage.wal.retention.min_minutes=0", "storage.wal.retention.min_bytes=0")


class Timed(NamedTuple):
    """Milliseconds of every delivery, and the delay of every turn of a timer."""

    deliveries: list[float]
    turns: list[float]


class Late(NamedTuple):
    """Milliseconds."""

    delivery_p50: float
    delivery_p99: float
    timer_p99: float


def run(quick: bool) -> Report:
    size_bytes = (64 if quick else 1024) << 20
    rounds = 1 if quick else 3
    with directory() as path:
        on_loop(_fill(path, size_bytes))
        ours, theirs = on_loop(_read_back(path, rounds))
    with directory() as path:
        on_loop(_fill(path, size_bytes // 4, *NEVER, alike=False))
        large = in_fresh_process(_memory_of_upload, path)
    with directory() as path:
        on_loop(_fill(path, size_bytes // 2, *NEVER, partitions=PARTITIONS))
        mixed = in_fresh_process(_memory_of_upload, path)
    busy = _late(3 if quick else 10, True)
    idle = _late(3 if quick else 10, False)
    tables = [
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
        Table(
            "tiers, memory while a backlog is uploaded and merged",
            ["backlog", "peak above idle MB"],
            [["large objects", large], [f"{PARTITIONS} partitions", mixed]],
        ),
    ]
    return Report(tables, targets(ours / theirs, large, mixed, busy))


def targets(read: float, uploading: float, merging: float, busy: Late) -> list[Target]:
    """The targets of these figures."""
    return [
        Target(
            "tiers: read back at half of pyarrow's speed", f"{read:.2f}", read >= READ_RATIO_MIN
        ),
        Target(
            f"tiers: uploading takes at most {UPLOAD_MB_MAX} MB",
            f"{uploading:.0f} MB",
            uploading <= UPLOAD_MB_MAX,
        ),
        Target(
            f"tiers: merging takes at most {MERGE_MB_MAX} MB",
            f"{merging:.0f} MB",
            merging <= MERGE_MB_MAX,
        ),
        Target(
            "tiers: append to delivery p99 under 1 s while uploading",
            f"{busy.delivery_p99:.1f} ms",
            busy.delivery_p99 < DELIVERY_MS_MAX,
        ),
    ]


@asynccontextmanager
async def open_storage(path: Path, *overrides: str) -> AsyncIterator[Storage]:
    storage = Storage(load(None, {}, [f"data={path}", *overrides]).config)
    try:
        await storage.open()
        yield storage
    finally:
        await storage.close()


async def log_of(storage: Storage) -> Log:
    assert storage.tiers is not None
    if TOPIC in storage.tiers.topics:
        return storage.tiers[TOPIC].log
    return (await storage.tiers.add(TOPIC)).log


async def publishers(log: Log, count: int, alike: bool, partitions: int = 1) -> None:
    """Publishers use equal payloads at the same time, or different ones."""
    starts = [0 if alike else place * DIFFERENT_RUNS for place in range(IN_FLIGHT)]
    await asyncio.gather(*(_publisher(log, count, start, partitions) for start in starts))


async def _publisher(log: Log, count: int, start: int, partitions: int) -> None:
    for number, item in enumerate(islice(runs(start + count, RUN_MESSAGES), start, None)):
        item.partition = PartitionId(number % partitions)
        await log.append(item)


async def _fill(
    path: Path, size_bytes: int, *overrides: str, alike: bool = True, partitions: int = 1
) -> None:
    async with open_storage(path, *overrides) as storage:
        log = await log_of(storage)
        count = size_bytes // PAYLOAD_BYTES // RUN_MESSAGES // IN_FLIGHT
        await publishers(log, count, alike, partitions)
        if overrides:
            await leave_backlog(storage)


async def leave_backlog(storage: Storage) -> None:
    """Close the logs first, so that the shutdown has nothing to upload."""
    assert storage.tiers is not None
    for topic in storage.tiers.topics:
        await storage.tiers.remove(topic)


async def _read_back(path: Path, rounds: int) -> tuple[float, float]:
    """MB of messages a second, with Penstock's reader and with pyarrow."""
    async with open_storage(path, *_GONE) as storage:
        assert storage.tiers is not None
        log = await log_of(storage)
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
    reader = LogReader(log, _PARTITION, Offset(0), objects=storage.tiers[TOPIC].read)
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
    """Peak memory in MB, above that at the start."""
    async with open_storage(path) as storage:
        assert storage.tiers is not None
        await log_of(storage)
        pa.array([0])  # pyarrow loads pandas now, if it is installed.
        before, peak, over = _used(storage), [0.0], threading.Event()

        def watch() -> None:
            while not over.wait(0.002):
                peak[0] = max(peak[0], _used(storage))

        watcher = threading.Thread(target=watch)
        watcher.start()
        await storage.tiers.flush(TOPIC)
        merges = -1
        while storage.counters.merges > merges:
            merges = storage.counters.merges
            await storage.tiers.upkeep(TOPIC)
        over.set()
        watcher.join()
        return peak[0] - before


def _used(storage: Storage) -> float:
    """Memory in MB of this process, the encoding process, and shared memory.

    The system reports shared memory only for all processes together.
    """
    pids = [os.getpid(), storage._child.pid]
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids if pid is not None]
    own = re.findall(r"Rss(?:Anon|File):\s+(\d+) kB", "".join(texts))
    shared = re.findall(r"Shmem:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return sum(map(int, own + shared)) * 1024 / 1e6


def _late(seconds: float, uploads: bool) -> Late:
    with directory() as path:
        return late(on_loop(timed_deliveries(path, seconds, uploads)))


def late(timed: Timed) -> Late:
    deliveries, turns = timed
    return Late(percentile(deliveries, 0.5), percentile(deliveries, 0.99), percentile(turns, 0.99))


async def timed_deliveries(path: Path, seconds: float, uploads: bool) -> Timed:
    overrides = ("storage.uploader.interval_seconds=1",) if uploads else NEVER
    async with open_storage(path, *overrides) as storage:
        log = await log_of(storage)
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
    """The age of the runs of a batch when it arrives."""
    seen = 0
    async for batch in LogReader(log, _PARTITION, Offset(0)):
        now = time.perf_counter()
        while seen < batch.next_offset:
            delivered.append(1000 * (now - appended.pop(seen)))
            seen += RUN_MESSAGES


async def _time_turns(turns: list[float]) -> None:
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        turns.append(1000 * (time.perf_counter() - begun - 0.001))
