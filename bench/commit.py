"""Ways to make many files durable: 1, 16, 128 and 1000 dirty files, with one small write each.

The figures are the median wall time of a round, including the writes: fdatasync of one file after
the other, in 4 and in 16 threads, and one syncfs for all. Then the real Committer, which receives
all files at once: with its settings, with syncs of files only, and with syncs of the file system
only. THREADS and FILES_FOR_FILESYSTEM_SYNC are chosen by these figures. syncfs also writes other
dirty files of the file system: one column has a new megabyte in another file in each round.

The last figure is the latency of a publisher that appends one message at a time.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from bench.report import Report, Table
from bench.workload import directory, median, on_loop, opened, percentile, runs, the_log
from penstock.host.disk import Disk
from penstock.host.threads import WorkerThreads
from penstock.log.shared import committer as committers
from penstock.log.shared.committer import Committer

DIRTY: Final = (1, 16, 128, 1000)
THREADS: Final = (2, 4, 8, 16)
_FRAME: Final = bytes(232)
_NOISE: Final = os.urandom(1 << 20)
_DISK: Final = Disk()


class Job:
    """A small write to one file."""

    def __init__(self, fd: int, done: Callable[[], None]) -> None:
        self._fd, self._done = fd, done

    def release(self) -> None:
        pass

    def write(self, disk: Disk) -> int:
        disk.write(self._fd, [_FRAME])
        return self._fd

    def done(self, error: OSError | None) -> None:
        assert error is None
        self._done()


def run(quick: bool) -> Report:
    rounds = 5 if quick else 21
    with directory() as path:
        fds = [_open(path / f"file-{n}") for n in range(DIRTY[-1])]
        noise = _open(path / "noise")
        raw = [_raw(fds[:count], noise, rounds) for count in DIRTY]
        committed = on_loop(_committed(fds, rounds))
        for fd in [*fds, noise]:
            os.close(fd)
    columns = ["dirty files", "one by one ms", "4 threads ms", "16 threads ms", "syncfs ms"]
    tables = [
        Table(
            "commit: write and sync of many files, by hand",
            [*columns, "syncfs beside a fresh MB ms"],
            [[count, *row] for count, row in zip(DIRTY, raw, strict=True)],
        ),
        Table(
            "commit: the same through the Committer",
            ["threads", "syncs", *(f"{count} files ms" for count in DIRTY)],
            [[*case, *row] for case, row in committed.items()],
        ),
        on_loop(_latency(200 if quick else 3000)),
    ]
    return Report(tables)


def _open(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)


def _raw(fds: list[int], noise: int, rounds: int) -> list[float]:
    with ThreadPoolExecutor(4) as four, ThreadPoolExecutor(16) as sixteen:
        ways: list[Callable[[], object]] = [
            lambda: deque(map(_DISK.sync, fds), 0),
            lambda: deque(four.map(_DISK.sync, fds), 0),
            lambda: deque(sixteen.map(_DISK.sync, fds), 0),
            lambda: _DISK.sync_filesystem(fds[0]),
        ]
        times = [_rounds(fds, way, rounds) for way in ways]
    return [*times, _rounds(fds, ways[-1], rounds, partial(os.pwrite, noise, _NOISE, 0))]


def _rounds(
    fds: list[int], sync: Callable[[], object], rounds: int, before: Callable[[], object] = int
) -> float:
    """Milliseconds of each round, after one to warm up."""
    times = []
    for _ in range(rounds + 1):
        before()
        begun = time.perf_counter()
        for fd in fds:
            _DISK.write(fd, [_FRAME])
        sync()
        times.append(1e3 * (time.perf_counter() - begun))
    return median(times[1:])


async def _committed(fds: list[int], rounds: int) -> dict[tuple[int, str], list[float]]:
    """The time for each number of dirty files, by threads and kind of sync."""
    set_to = committers.THREADS, committers.FILES_FOR_FILESYSTEM_SYNC
    cases = [(set_to[0], "as set", set_to[1])]
    for threads in THREADS:
        cases += [(threads, "of files", sys.maxsize), (threads, "of the file system", 1)]
    results = {}
    for threads, kind, limit in cases:
        with patch.multiple(committers, THREADS=threads, FILES_FOR_FILESYSTEM_SYNC=limit):
            workers = WorkerThreads(threads, "commit")
            committer = Committer(_DISK, workers)
            results[threads, kind] = [
                median([await _hand_over(committer, fds[:count]) for _ in range(rounds)])
                for count in DIRTY
            ]
            await workers.close()
    return results


async def _hand_over(committer: Committer, fds: list[int]) -> float:
    finished = asyncio.get_running_loop().create_future()
    left = len(fds)

    def done() -> None:
        nonlocal left
        left -= 1
        if not left:
            finished.set_result(None)

    begun = time.perf_counter()
    for fd in fds:
        committer.submit(Job(fd, done))
    await finished
    return 1e3 * (time.perf_counter() - begun)


async def _latency(count: int) -> Table:
    times = []
    with directory() as path:
        async with opened(path) as logs:
            log = await the_log(logs)
            for item in runs(count, 1):
                begun = time.perf_counter()
                await log.append(item)
                times.append(1e6 * (time.perf_counter() - begun))
    return Table(
        "commit: one publisher, one 128-byte message at a time, durable",
        ["messages", "p50 us", "p99 us", "max us"],
        [[count, percentile(times, 0.5), percentile(times, 0.99), max(times)]],
    )
