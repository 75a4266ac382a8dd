"""New logs on their way to the disk.

Those that are asked for while others are made wait for these, and are then made together: however
many they are, two syncs of the file system make them durable.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, NamedTuple

from penstock.formats.bodies import Start
from penstock.formats.frames import FileHeader
from penstock.host.disk import Disk
from penstock.host.threads import Workers
from penstock.log.commit import FILES_FOR_FILESYSTEM_SYNC
from penstock.log.files import ActiveFile, NewFile, find_wal_files

GROUP_MAX: Final = 1000
"""More would make the first of a group wait for the last."""


class Newborn(NamedTuple):
    """A log that is to be: its directory and what its first file begins with."""

    directory: Path
    header: FileHeader
    start: Start


_Waiting = tuple[Newborn, "asyncio.Future[ActiveFile]"]


class Births:
    """Makes the directories and first files of new logs."""

    def __init__(self, disk: Disk, workers: Workers) -> None:
        self._disk, self._workers = disk, workers
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def make(self, newborn: Newborn) -> ActiveFile:
        """The first file of a log, durable; raises OSError, FileExistsError when it has files."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ActiveFile] = loop.create_future()
        self._waiting.append((newborn, future))
        if self._task is None:
            self._task = loop.create_task(self._work())
        return await future

    async def _work(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:GROUP_MAX], self._waiting[GROUP_MAX:]
                for (_, future), made in zip(group, await self._make(group), strict=True):
                    self._settle(future, made)
        finally:
            self._task = None

    async def _make(self, group: list[_Waiting]) -> list[ActiveFile | Exception]:
        try:
            newborns = [newborn for newborn, _ in group]
            return await self._workers.run(_make_all, self._disk, newborns)
        except Exception as error:
            return [error] * len(group)

    def _settle(self, future: asyncio.Future[ActiveFile], made: ActiveFile | Exception) -> None:
        if isinstance(made, Exception):
            if not future.cancelled():
                future.set_exception(made)
        elif future.cancelled():
            self._disk.close(made.fd)
        else:
            future.set_result(made)


def _make_all(disk: Disk, newborns: list[Newborn]) -> list[ActiveFile | Exception]:
    """In a thread: what became of each."""
    if len(newborns) >= FILES_FOR_FILESYSTEM_SYNC:
        try:
            return [*_make_together(disk, newborns)]
        except OSError:
            # Alone, each finds out whether it was the cause.
            pass
    return [_make_alone(disk, newborn) for newborn in newborns]


def _make_together(disk: Disk, newborns: list[Newborn]) -> list[ActiveFile]:
    for newborn in newborns:
        _check_empty(newborn.directory)
    new = [NewFile.of(*newborn) for newborn in newborns]
    fds = disk.create_all([(file.path, file.pieces) for file in new])
    return [file.opened(fd) for file, fd in zip(new, fds, strict=True)]


def _make_alone(disk: Disk, newborn: Newborn) -> ActiveFile | Exception:
    try:
        _check_empty(newborn.directory)
        disk.make_directories(newborn.directory)
        new = NewFile.of(*newborn)
        return new.opened(disk.create(new.path, new.pieces))
    except OSError as error:
        return error


def _check_empty(directory: Path) -> None:
    if directory.is_dir() and find_wal_files(directory):
        raise FileExistsError(f"{directory} holds the files of a log already")
