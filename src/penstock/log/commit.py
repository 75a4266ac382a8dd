"""The committer: one for the whole broker, it writes groups of frames and makes them durable.

A log hands over one group at a time and forms the next while this one is on its way. Few groups at
once are synced file by file, in threads; many by one sync of the file system, since then the
journal is flushed once and not once a topic. `python -m bench commit` measures where the one gets
cheaper.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final, Protocol

import structlog

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.threads import Workers
from penstock.log.counters import LogCounters

THREADS: Final = 4
FILES_FOR_FILESYSTEM_SYNC: Final = 8
"""From this many dirty files in one thread's hands, one sync of the file system is cheaper."""


_events = structlog.get_logger(__name__)


class Job(Protocol):
    """A group of one log on its way to the disk."""

    def write(self, disk: Disk) -> int:
        """In a thread: write everything; returns the file to sync. Raises OSError."""

    def done(self, error: OSError | None) -> None:
        """On the loop: the group is durable, or is not."""


class Committer:
    """Takes jobs from every log; each is written, synced and answered on its own or with others."""

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        counters: LogCounters | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._disk = disk
        self._counters, self._clock = counters or LogCounters(), clock or Clock()
        self._workers = workers
        self._lock = Lock()
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)
        self._workers.submit(self._commit)

    def _commit(self) -> None:
        """One thread's turn: its share of what waits; another thread may have taken it already."""
        jobs = self._take()
        if not jobs:
            return
        results: list[tuple[Job, OSError | None]] = []
        written: list[tuple[Job, int]] = []
        for job in jobs:
            try:
                written.append((job, job.write(self._disk)))
            except OSError as error:
                results.append((job, error))
            except Exception as error:
                # A bug must fail its own log by name, not end the thread that serves them all.
                _events.exception("commit_failed")
                results.append((job, OSError(errno.EIO, f"internal error: {error!r}")))
        if len(written) >= FILES_FOR_FILESYSTEM_SYNC:
            outcome = self._attempt(self._disk.sync_filesystem, written[0][1])
            results += [(job, outcome) for job, _ in written]
        else:
            results += [(job, self._attempt(self._disk.sync, fd)) for job, fd in written]
        self._workers.report(_answer, results)

    def _attempt(self, sync: Callable[[int], None], fd: int) -> OSError | None:
        begun = self._clock.monotonic_ns()
        try:
            sync(fd)
        except OSError as error:
            return error
        self._counters.sync_ms.observe((self._clock.monotonic_ns() - begun) / 1e6)
        return None

    def _take(self) -> list[Job]:
        """A thread's share of a few jobs; all of many, which one sync of the file system serves."""
        with self._lock:
            waiting = len(self._jobs)
            many = waiting >= FILES_FOR_FILESYSTEM_SYNC
            share = waiting if many else -(-waiting // THREADS)
            return [self._jobs.popleft() for _ in range(share)]


def _answer(results: list[tuple[Job, OSError | None]]) -> None:
    for job, error in results:
        job.done(error)
