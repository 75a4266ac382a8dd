"""The resources that all logs of a broker share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.threads import WorkerThreads
from penstock.log.settings import LogSettings
from penstock.log.shared.committer import Committer
from penstock.log.shared.counters import LogCounters
from penstock.log.shared.open_files import OpenFiles
from penstock.log.shared.tail_cache import TailCache
from penstock.log.subjects.bitmaps import MatchCache

MATCHES_BYTES_MAX: Final = 64 << 20
"""Cached results of subject filters over sealed files, for all logs together."""


class Reserve:
    """Disk space set aside, so that deletions can be written when the disk is full."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = directory / "reserve"
        self._size_bytes = size_bytes

    def release(self) -> bool:
        """Free the space; return whether there was any."""
        reserved = self._path.exists()
        self._disk.remove(self._path)
        return reserved

    def restore(self) -> bool:
        """Allocate the space unless that would fill the disk; return whether it is allocated."""
        if self._path.exists():
            return True
        try:
            if self._disk.free_bytes(self._directory) < 4 * self._size_bytes:
                return False
            self._disk.allocate(self._path, self._size_bytes)
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Engine:
    """Disk and clock, reader threads, one committer, one tail cache, one child process."""

    settings: LogSettings
    disk: Disk
    clock: Clock
    readers: WorkerThreads
    committer: Committer
    open_files: OpenFiles
    cache: TailCache
    reserve: Reserve
    child: Child
    matches: MatchCache = field(default_factory=lambda: MatchCache(MATCHES_BYTES_MAX))
    counters: LogCounters = field(default_factory=LogCounters)
