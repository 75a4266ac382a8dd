"""Read a whole WAL in order, against reading the bytes of its files by 1 MiB preads.

The log is reopened, so the tail cache is empty; *cold* means that the files were evicted from the
page cache. `batches` is a Reader that yields every message in Arrow columns from verified frames;
`rows` also converts each batch to a RecordBatch of the envelope. A ratio is raw time divided by
reader time, as medians of alternating rounds. The target is half the speed of a raw read for frames
of 256 messages or more: concurrent runs share a frame, so smaller frames come from publishers that
wait for each ack. Their cost is shown by frame and by message.

A reader a million messages behind: peak resident memory while it catches up from the files, above
that of the process with the log open and no reader, before or after, whichever is less. It runs in
a process of its own.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.report import Cell, Report, Table, Target
from bench.workload import (
    directory,
    fill,
    in_fresh_process,
    make_cold,
    median,
    on_loop,
    opened,
    the_log,
    wal_files,
)
from penstock.log.log import Log
from penstock.model.units import Offset, PartitionId
from tests.log_reader import LogReader

FRAMES: Final = (4096, 256, 16, 1)
"""Messages in a frame."""
SMALL: Final = 256
"""Frames with fewer messages are read from a smaller WAL and have no target."""
BEHIND: Final = 1_000_000
RATIO_MIN: Final = 0.5
MEMORY_MB_MAX: Final = 64
_PARTITION: Final = PartitionId(0)


def run(quick: bool) -> Report:
    rounds = 3 if quick else 5
    rows: list[list[Cell]] = []
    targets = []
    for messages in FRAMES:
        size_bytes = (16 if quick else 64 if messages < SMALL else 256) << 20
        with directory() as path:
            on_loop(fill(path, size_bytes, messages))
            for kind in ("cold", "warm"):
                row = on_loop(_compare(path, messages, rounds, kind == "cold"))
                rows.append([messages, kind, *row])
        if messages >= SMALL:
            targets.append(_ratio_target(messages, rows[-2][-2:]))
    above = _memory()
    table = Table(
        "read: a whole WAL in order, 128-byte messages",
        [
            "messages in a frame",
            "pages",
            "raw MB/s",
            "batches MB/s",
            "rows MB/s",
            "batches us/frame",
            "batches us/msg",
            "batches/raw",
            "rows/raw",
        ],
        rows,
    )
    memory = Table(
        "read: resident memory of a reader a million messages behind, above idle",
        ["messages", "peak MB above idle"],
        [[BEHIND, above]],
    )
    told = f"{above:.1f} MB"
    promise = f"read: a reader a million behind under {MEMORY_MB_MAX} MB above idle"
    return Report([table, memory], [*targets, Target(promise, told, above < MEMORY_MB_MAX)])


def _ratio_target(messages: int, ratios: list[Cell]) -> Target:
    batches, rows = (float(ratio or 0) for ratio in ratios)
    return Target(
        f"read: cold WAL, frames of {messages}, at least half of a raw read",
        f"{batches:.2f} ({rows:.2f} as rows)",
        batches >= RATIO_MIN,
    )


async def _compare(path: Path, messages: int, rounds: int, cold: bool) -> list[Cell]:
    files = wal_files(path)
    size_mb = sum(file.stat().st_size for file in files) / 1e6
    times: list[list[float]] = [[], [], []]
    async with opened(path) as logs:
        log = await the_log(logs)
        count = log.next_offset(_PARTITION)
        ways: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: asyncio.to_thread(_read_raw, files),
            lambda: _read_batches(log, count, as_rows=False),
            lambda: _read_batches(log, count, as_rows=True),
        ]
        for _ in range(rounds):
            for way, spent in zip(ways, times, strict=True):
                if cold:
                    make_cold(files)
                begun = time.perf_counter()
                await way()
                spent.append(time.perf_counter() - begun)
    raw, batches, as_rows = (median(spent) for spent in times)
    speeds = [size_mb / raw, size_mb / batches, size_mb / as_rows]
    each_us = batches / count * 1e6
    return [*speeds, each_us * messages, each_us, raw / batches, raw / as_rows]


def _read_raw(files: list[Path]) -> None:
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        position = 0
        while data := os.pread(fd, 1 << 20, position):
            position += len(data)
        os.close(fd)


async def _read_batches(log: Log, count: int, as_rows: bool) -> None:
    seen = 0
    async for batch in LogReader(log, _PARTITION, Offset(0)):
        seen += batch.to_arrow().num_rows if as_rows else batch.messages
        if batch.next_offset >= count:
            break
    assert seen == count, (seen, count)


def _memory() -> float:
    with directory() as path:
        on_loop(fill(path, BEHIND * 132, 256))
        return in_fresh_process(_peak_above_idle, path)


def _peak_above_idle(path: Path) -> float:
    return on_loop(_catch_up(path))


async def _catch_up(path: Path) -> float:
    async with opened(path) as logs:
        log = await the_log(logs)
        await asyncio.sleep(0.2)
        _give_back()
        idle = _resident_mb("VmRSS")
        # Writing 5 resets the kernel's record of the peak, which opening the log has set.
        Path("/proc/self/clear_refs").write_text("5")
        await _read_batches(log, log.next_offset(_PARTITION), as_rows=True)
        peak = _resident_mb("VmHWM")
        _give_back()
        # Memory of the opening may be freed during the read: the lower of the two is idle.
        return peak - min(idle, _resident_mb("VmRSS"))


def _give_back() -> None:
    """Return freed memory to the system, so that it does not count as idle memory."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def _resident_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) / 1e3
