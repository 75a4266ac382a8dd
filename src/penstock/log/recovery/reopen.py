"""Continues a log in a new file after an error of the disk.

    OPEN, or start --write or fsync error--> READ_ONLY --new file created--> OPEN
      full disk: READ_ONLY --a deletion, on the reserve--> DELETES_ONLY --enough space--> OPEN

The new file names the durable end of the old one; bytes after that end are not trusted, not read,
and not synced again.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

import structlog

from penstock.formats.bodies import StartBody
from penstock.formats.paths import parse_wal_name
from penstock.host.entropy import random_u32
from penstock.host.tasks import Backoff, Tasks
from penstock.log.files.wal_files import ActiveFile, WalFile, create, find_wal_files, new_header
from penstock.log.shared.engine import Engine

RETRY_SECONDS_MAX: Final = 1.0
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_logger = structlog.get_logger(__name__)


class LogMode(Enum):
    """Which writes a log takes."""

    OPEN = "open"
    DELETES_ONLY = "deletes_only"
    READ_ONLY = "read_only"
    CLOSED = "closed"


class Reopener:
    """Retries until a new file is created.

    `begin` returns the predecessor, the state, the first frame number and the epoch of the new
    file, or raises OSError; `reopened` receives the file.
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        directory: Path,
        begin: Callable[[], Awaitable[tuple[WalFile, StartBody, int, int]]],
        reopened: Callable[[ActiveFile], None],
    ) -> None:
        self._engine, self._topic, self._directory = engine, topic, directory
        self._begin, self._reopened = begin, reopened
        self._tasks = Tasks()
        self._running = self._full = False
        self._deletion_waits = asyncio.Event()
        self._changed = asyncio.Event()
        self.mode = LogMode.OPEN
        self.reason = ""

    def start(self, error: OSError) -> None:
        """Refuse writes because of `error`, and retry from now on."""
        self._note(error)
        self._set(LogMode.READ_ONLY)
        if not self._running:
            self._running = True
            self._tasks.start(self._run())

    async def ready_for_deletion(self) -> None:
        """On a full disk, wait until a file was created on the reserve, or that has failed."""
        if self.mode is LogMode.READ_ONLY and self._full:
            self._deletion_waits.set()
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        self._set(LogMode.CLOSED)
        await self._tasks.cancel()

    async def _run(self) -> None:
        backoff = Backoff(self._engine.settings.retry_seconds, RETRY_SECONDS_MAX)
        failed = False
        while self.mode is not LogMode.OPEN:
            await self._pause(backoff.next_seconds(), for_deletions=not failed)
            has_space = not self._full or await self._check_space()
            if self.mode is LogMode.READ_ONLY and (has_space or self._deletion_waits.is_set()):
                failed = not await self._make_file(has_space)
            elif self.mode is LogMode.DELETES_ONLY and has_space:
                self._set(LogMode.OPEN)
        self._running = False
        await self._engine.readers.run(self._engine.reserve.restore)

    async def _pause(self, seconds: float, for_deletions: bool) -> None:
        """Wait; with `for_deletions`, only until a deletion requests the reserve."""
        if self.mode is LogMode.READ_ONLY and for_deletions:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deletion_waits.wait(), seconds)
        else:
            await asyncio.sleep(seconds)

    async def _check_space(self) -> bool:
        try:
            free = await self._engine.readers.run(self._engine.disk.free_bytes, self._directory)
        except OSError:
            return False
        return free >= self._engine.settings.resume_free_bytes

    async def _make_file(self, has_space: bool) -> bool:
        """Create the new file; return whether that succeeded."""
        self._deletion_waits.clear()
        try:
            if not has_space:
                await self._engine.readers.run(self._engine.reserve.release)
            active = await self._engine.readers.run(self._create, *await self._begin())
        except OSError as error:
            self._note(error)
            self._set(LogMode.READ_ONLY)
            return False
        self._reopened(active)
        self._set(LogMode.OPEN if has_space else LogMode.DELETES_ONLY)
        return True

    def _create(self, previous: WalFile, start: StartBody, number: int, epoch: int) -> ActiveFile:
        names = [parse_wal_name(path.name) for path in find_wal_files(self._directory)]
        sequence = 1 + max([previous.sequence, *(name[0] for name in names if name)])
        begun = start.last_timestamp or self._engine.clock.now_us()
        header = new_header(previous, sequence, random_u32(), number, begun)
        return create(self._engine.disk, self._directory, header, start, epoch)

    def _note(self, error: OSError) -> None:
        self._full = error.errno in _FULL
        self.reason = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, '?')})"

    def _set(self, mode: LogMode) -> None:
        if mode is not self.mode and mode is not LogMode.CLOSED:
            _logger.warning("log_mode", topic=self._topic, mode=mode.value, reason=self.reason)
        self.mode = mode
        self._changed.set()
