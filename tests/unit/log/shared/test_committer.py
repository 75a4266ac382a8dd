import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.host.disk import Disk
from penstock.host.threads import WorkerThreads
from penstock.log.shared.committer import FILES_FOR_FILESYSTEM_SYNC, THREADS, Committer
from tests.unit.log.messages import eventually


class Syncs(Disk):
    """Records which files were synced and how; fails for chosen files."""

    def __init__(self) -> None:
        self.synced: list[int] = []
        self.whole: list[int] = []
        self.error: OSError | None = None
        self.hold = threading.Event()
        self.hold.set()

    def sync(self, fd: int) -> None:
        assert self.hold.wait(30)
        self.synced.append(fd)
        if self.error:
            raise self.error

    def sync_filesystem(self, fd: int) -> None:
        self.whole.append(fd)
        if self.error:
            raise self.error


class Note:
    """A job that writes nothing and records its result."""

    def __init__(self, fd: int, error: OSError | None = None) -> None:
        self.fd = fd
        self._error = error
        self.thread = ""
        self.released = False
        self.answer: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()

    def write(self, disk: Disk) -> int:
        self.thread = threading.current_thread().name
        if self._error is not None:
            raise self._error
        return self.fd

    def release(self) -> None:
        self.released = True

    def done(self, error: OSError | None) -> None:
        self.answer.set_result(error)


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[WorkerThreads]:
    workers = WorkerThreads(THREADS, "commit")
    yield workers
    await workers.close()


def _wait_for(event: threading.Event) -> None:
    assert event.wait(30)


async def answers(jobs: Sequence[Note]) -> list[OSError | None]:
    return await asyncio.wait_for(asyncio.gather(*(job.answer for job in jobs)), 30)


@pytest.mark.feature("T03")
async def test_a_job_is_answered_after_its_file_was_synced(workers: WorkerThreads) -> None:
    disk = Syncs()
    disk.hold.clear()
    job = Note(7)
    Committer(disk, workers).submit(job)
    await eventually(lambda: job.thread)
    assert job.thread.startswith("commit-")
    assert not job.answer.done()
    disk.hold.set()
    assert await answers([job]) == [None]
    assert disk.synced == [7]


async def test_the_error_of_a_sync_is_the_answer_of_its_job_alone(workers: WorkerThreads) -> None:
    disk = Syncs()
    committer = Committer(disk, workers)
    disk.error = OSError(5, "Input/output error")
    failed = Note(1)
    committer.submit(failed)
    assert await answers([failed]) == [disk.error]
    disk.error = None
    fine = Note(2)
    committer.submit(fine)
    assert await answers([fine]) == [None]


async def test_a_job_that_cannot_be_written_is_not_synced_and_affects_no_other(
    workers: WorkerThreads,
) -> None:
    disk = Syncs()
    error = OSError(28, "No space left on device")
    jobs = [Note(1), Note(2, error), Note(3)]
    committer = Committer(disk, workers)
    for job in jobs:
        committer.submit(job)
    assert await answers(jobs) == [None, error, None]
    assert sorted(disk.synced) == [1, 3]


async def test_many_files_at_once_are_synced_by_one_sync_of_the_file_system(
    workers: WorkerThreads,
) -> None:
    disk = Syncs()
    release = threading.Event()
    for _ in range(THREADS):
        workers.submit(partial(_wait_for, release))
    committer = Committer(disk, workers)
    jobs = [Note(n) for n in range(THREADS * FILES_FOR_FILESYSTEM_SYNC * 2)]
    for job in jobs:
        committer.submit(job)
    release.set()
    assert await answers(jobs) == [None] * len(jobs)
    assert disk.whole
    assert len(disk.whole) + len(disk.synced) < len(jobs) / 2


async def test_a_failed_sync_of_the_file_system_is_the_answer_of_every_job_in_it(
    workers: WorkerThreads,
) -> None:
    disk = Syncs()
    disk.error = OSError(5, "Input/output error")
    release = threading.Event()
    for _ in range(THREADS):
        workers.submit(partial(_wait_for, release))
    committer = Committer(disk, workers)
    jobs = [Note(n) for n in range(THREADS * FILES_FOR_FILESYSTEM_SYNC)]
    for job in jobs:
        committer.submit(job)
    release.set()
    assert await answers(jobs) == [disk.error] * len(jobs)


@pytest.mark.parametrize("count", [1, FILES_FOR_FILESYSTEM_SYNC * 3])
async def test_every_file_that_was_written_is_released(workers: WorkerThreads, count: int) -> None:
    committer = Committer(Syncs(), workers)
    jobs = [Note(3) for _ in range(count)]
    for job in jobs:
        committer.submit(job)
    assert await answers(jobs) == [None] * count
    assert all(job.released for job in jobs)


async def test_every_job_is_written_once_whatever_the_threads_do(
    workers: WorkerThreads, tmp_path: Path
) -> None:
    class Line(Note):
        def write(self, disk: Disk) -> int:
            os.write(self.fd, b"x")
            time.sleep(0.0001)
            return super().write(disk)

    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    committer = Committer(Syncs(), workers)
    jobs = [Line(fd) for _ in range(300)]
    for job in jobs:
        committer.submit(job)
    assert await answers(jobs) == [None] * 300
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"x" * 300
