"""Finds, creates and removes the directories of logs.

No crash leaves half a log. New logs that are requested while others are being created wait for
these and are then created together: two syncs of the file system make all of them durable.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from penstock.formats.bodies import StartBody
from penstock.formats.frames import FileHeader
from penstock.formats.paths import TEMPORARY_SUFFIX
from penstock.host.disk import Disk
from penstock.host.tasks import Tasks
from penstock.host.threads import WorkerThreads
from penstock.log.files.wal_files import ActiveFile, NewFile, find_wal_files
from penstock.log.shared.committer import FILES_FOR_FILESYSTEM_SYNC

REMOVED_SUFFIX: Final = ".removed"


def find_logs(root: Path) -> set[str]:
    """Find the directories with WAL files, relative to `root`."""
    return {
        str(path.relative_to(root))
        for path in root.glob("*/*/*")
        if "." not in path.name and path.is_dir() and not _is_alias(root, path) and _has_log(path)
    }


def _is_alias(root: Path, directory: Path) -> bool:
    """Whether this is a symbolic link to another directory below `root`."""
    return directory.is_symlink() and directory.resolve().is_relative_to(root.resolve())


def _has_log(directory: Path) -> bool:
    """Whether there are WAL files, or the directory cannot be listed."""
    try:
        return bool(find_wal_files(directory))
    except OSError:
        return True


def find_set_aside(root: Path, suffix: str) -> dict[str, list[Path]]:
    """Find directories that were set aside with this suffix, by the directory of their topic."""
    found: dict[str, list[Path]] = {}
    for path in sorted(root.glob(f"*/*/*{suffix}*")):
        topic = str(path.relative_to(root)).partition(suffix)[0]
        found.setdefault(topic, []).append(path)
    return found


def remove_unfinished(disk: Disk, directory: Path) -> None:
    """Remove files that an earlier process was still writing when it ended."""
    for path in directory.glob(f"wal-*{TEMPORARY_SUFFIX}"):
        with suppress(OSError):
            disk.remove(path)


def remove(disk: Disk, directory: Path) -> None:
    """Remove a log and everything of it that was set aside.

    The directory is renamed first, since recovery would take half of it for a damaged log.
    """
    parent, doomed = directory.parent, directory.with_name(f"{directory.name}{REMOVED_SUFFIX}")
    if directory.is_dir():
        disk.remove_directory(doomed)
        disk.move(directory, doomed)
    if parent.is_dir():
        for path in parent.glob(f"{directory.name}.*"):
            disk.remove_directory(path)
        disk.sync_directory(parent)


GROUP_MAX: Final = 1000
"""Logs that are created together; the first ones wait for the last ones."""


class NewLog(NamedTuple):
    """A log that is to be created: its directory and how its first file begins."""

    directory: Path
    header: FileHeader
    start: StartBody


_Waiting = tuple[NewLog, "asyncio.Future[ActiveFile]"]


class LogCreation:
    """Creates the directories and first files of new logs."""

    def __init__(self, disk: Disk, workers: WorkerThreads) -> None:
        self._disk, self._workers = disk, workers
        self._waiting: list[_Waiting] = []
        self._tasks, self._running = Tasks(), False

    async def create(self, log: NewLog) -> ActiveFile:
        """Create a log; return its first file, which is durable.

        Raises OSError, FileExistsError if the directory has WAL files.
        """
        future: asyncio.Future[ActiveFile] = asyncio.get_running_loop().create_future()
        self._waiting.append((log, future))
        if not self._running:
            self._running = True
            self._tasks.start(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
                for (_, future), result in zip(group, await self._create(group), strict=True):
                    self._complete(future, result)
        finally:
            self._running = False

    async def _create(self, group: list[_Waiting]) -> list[ActiveFile | Exception]:
        try:
            logs = [log for log, _ in group]
            return await self._workers.run(_create_all, self._disk, logs)
        except Exception as error:
            return [error] * len(group)

    def _complete(self, future: asyncio.Future[ActiveFile], result: ActiveFile | Exception) -> None:
        if isinstance(result, Exception):
            if not future.cancelled():
                future.set_exception(result)
        elif future.cancelled():
            self._disk.close(result.open(self._disk))
        else:
            future.set_result(result)


def _create_all(disk: Disk, logs: list[NewLog]) -> list[ActiveFile | Exception]:
    """Create logs and return for each its first file or an error; runs in a worker thread."""
    if len(logs) >= FILES_FOR_FILESYSTEM_SYNC:
        try:
            return [*_create_together(disk, logs)]
        except OSError:
            # Created one by one, each log gets the error that concerns it.
            pass
    return [_create_alone(disk, log) for log in logs]


def _create_together(disk: Disk, logs: list[NewLog]) -> list[ActiveFile]:
    for log in logs:
        _check_empty(log.directory)
    new = [NewFile.of(*log) for log in logs]
    fds = disk.create_all([(file.path, file.pieces) for file in new])
    return [file.opened(fd) for file, fd in zip(new, fds, strict=True)]


def _create_alone(disk: Disk, log: NewLog) -> ActiveFile | Exception:
    try:
        _check_empty(log.directory)
        disk.make_directories(log.directory)
        new = NewFile.of(*log)
        return new.opened(disk.create(new.path, new.pieces))
    except OSError as error:
        return error


def _check_empty(directory: Path) -> None:
    if directory.is_dir() and find_wal_files(directory):
        raise FileExistsError(f"{directory} holds the files of a log already")
