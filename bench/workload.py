"""Shared parts of benchmarks: messages, logs in temporary directories, cold files, medians."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import msgspec
import structlog
import uvloop

from penstock.host.disk import Disk
from penstock.host.process import calm_collector, keep_memory
from penstock.log.log import Log
from penstock.log.logs import Logs, SharedLimits
from penstock.log.settings import LogSettings
from penstock.log.shared.committer import CommitJob, Committer
from penstock.model import names
from penstock.model.run import Run

PAYLOAD_BYTES: Final = 128
SUBJECT: Final = b"bench.orders.created"
TOPIC: Final = names.topic("bench/default/orders")
_POOL: Final = [os.urandom(PAYLOAD_BYTES) for _ in range(1 << 16)]
"""More payloads than fit into a core's caches, as with messages from the network."""

_T = TypeVar("_T")
_O = TypeVar("_O", bound="tuple[float, ...] | float")


def runs(count: int, messages: int, subjects: int = 1) -> Iterator[Run]:
    """`count` runs of `messages` each over a number of subjects; runs share no lists."""
    for n in range(count):
        start = n * messages % (len(_POOL) - messages + 1)
        stop = start + messages
        yield Run(SUBJECT if subjects == 1 else _subjects(subjects)[start:stop], _POOL[start:stop])


def payloads_of(count: int) -> list[bytes]:
    """A number of payloads, at most those of the pool."""
    return _POOL[:count]


def orders_of(count: int) -> list[bytes]:
    """A number of distinct orders as JSON."""
    chance = Random(count)
    return [_order(chance).ljust(PAYLOAD_BYTES) for _ in range(count)]


def _order(chance: Random) -> bytes:
    order = {
        "order": chance.randrange(10**9),
        "customer": f"c-{chance.randrange(10**6)}",
        "total": chance.randrange(10**5) / 100,
        "currency": "EUR",
        "status": chance.choice(("new", "paid", "sent")),
    }
    return msgspec.json.encode(order)


@cache
def _subjects(different: int) -> list[bytes]:
    return [b"%s.%d" % (SUBJECT, n % different) for n in range(len(_POOL))]


class UnsyncedCommitter(Committer):
    """A disk that fills a log fast: it writes on the loop, one frame per append, without sync."""

    def __init__(self) -> None:
        self._disk = Disk()

    def submit(self, job: CommitJob) -> None:
        job.write(self._disk)
        asyncio.get_running_loop().call_soon(job.done, None)


def on_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run on uvloop, as the broker does, without log output."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    calm_collector()
    keep_memory()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@contextmanager
def directory() -> Iterator[Path]:
    """A temporary directory on the repository's disk."""
    build = Path(__file__).parent.parent / "build"
    build.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=f"bench-{os.getpid()}-", dir=build))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@asynccontextmanager
async def opened(
    path: Path,
    settings: LogSettings | None = None,
    committer: Committer | None = None,
    limits: SharedLimits | None = None,
) -> AsyncIterator[Logs]:
    """Open the logs below `path`, on the real disk."""
    logs = Logs(path, settings or LogSettings(), limits or SharedLimits())
    if committer is not None:
        logs._engine = replace(logs._engine, committer=committer)
    await logs.open()
    try:
        yield logs
    finally:
        await logs.close()


async def the_log(logs: Logs) -> Log:
    return logs.get(TOPIC) or await logs.create(TOPIC)


async def fill(path: Path, size_bytes: int, messages: int) -> None:
    """Write a log of about this many bytes, in frames of `messages` each."""
    async with opened(path, committer=UnsyncedCommitter()) as logs:
        log = await the_log(logs)
        while log.status().file_bytes < size_bytes:
            for run in runs(64, messages):
                await log.append(run)


def in_fresh_process(call: Callable[[Path], _T], path: Path) -> _T:
    """The result of a call in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return processes.submit(call, path).result()


def wal_files(path: Path) -> list[Path]:
    return sorted(path.glob("*/*/*/wal-*.log"))


def make_cold(files: Sequence[Path]) -> None:
    """Evict the files from the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def median(values: Iterable[_O]) -> _O:
    ranked = sorted(values)
    return ranked[len(ranked) // 2]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]
