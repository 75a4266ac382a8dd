"""The committer writes groups of frames and makes them durable; the broker has one.

A log submits one group at a time and forms the next one meanwhile. A few waiting groups are synced
file by file, in threads. Many are synced by one sync of the file system, which flushes its journal
once and not once for each topic. `python -m bench commit` measures from where on that is cheaper.
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
from penstock.host.threads import WorkerThreads
from penstock.log.shared.counters import LogCounters

THREADS: Final = 4
FILES_FOR_FILESYSTEM_SYNC: Final = 8
"""From this number of dirty files on, one sync of the file system is cheaper."""

_events = structlog.get_logger(__name__)


class CommitJob(Protocol):
    """A group of one log that is to be written and synced."""

    def write(self, disk: Disk) -> int:
        """Write everything and return the descriptor to sync; called in a thread. Raises OSError.

        The file stays open until `release`.
        """

    def release(self) -> None:
        """Allow that the file is closed; called in a thread."""

    def done(self, error: OSError | None) -> None:
        """Handle the result: durable if `error` is None. Called on the event loop."""


class Committer:
    """Writes and syncs the jobs of all logs, one by one or many together."""

    def __init__(
        self,
        disk: Disk,
        workers: WorkerThreads,
        counters: LogCounters | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._disk = disk
        self._counters, self._clock = counters or LogCounters(), clock or Clock()
        self._workers = workers
        self._lock = Lock()
        self._jobs: deque[CommitJob] = deque()

    def submit(self, job: CommitJob) -> None:
        with self._lock:
            self._jobs.append(job)
        self._workers.submit(self._commit)

    def _commit(self) -> None:
        """Process one thread's share of the queue, which may be empty by now."""
        jobs = self._take()
        if not jobs:
            return
        many = len(jobs) >= FILES_FOR_FILESYSTEM_SYNC
        results: list[tuple[CommitJob, OSError | None]] = []
        written: list[tuple[CommitJob, int]] = []
        for job in jobs:
            try:
                written.append((job, job.write(self._disk)))
                if many and len(written) > 1:
                    # The file system is synced through the first file, opened before all writes.
                    job.release()
            except OSError as error:
                results.append((job, error))
            except Exception as error:
                # A bug must fail its own log, not end the thread that serves all logs.
                _events.exception("commit_failed")
                results.append((job, OSError(errno.EIO, f"internal error: {error!r}")))
        if many and written:
            outcome = self._attempt(self._disk.sync_filesystem, written[0][1])
            results += [(job, outcome) for job, _ in written]
            written[0][0].release()
        for job, fd in () if many else written:
            results.append((job, self._attempt(self._disk.sync, fd)))
            job.release()
        self._workers.report(_report, results)

    def _attempt(self, sync: Callable[[int], None], fd: int) -> OSError | None:
        begun = self._clock.monotonic_ns()
        try:
            sync(fd)
        except OSError as error:
            return error
        self._counters.sync_ms.observe((self._clock.monotonic_ns() - begun) / 1e6)
        return None

    def _take(self) -> list[CommitJob]:
        """Take a share of a few jobs, or all of many, which one sync of the file system serves."""
        with self._lock:
            waiting = len(self._jobs)
            many = waiting >= FILES_FOR_FILESYSTEM_SYNC
            share = waiting if many else -(-waiting // THREADS)
            return [self._jobs.popleft() for _ in range(share)]


def _report(results: list[tuple[CommitJob, OSError | None]]) -> None:
    for job, error in results:
        job.done(error)
