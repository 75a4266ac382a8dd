"""Bounds the number of open active WAL files, however many logs there are.

A file is in use while it is written and synced. The most recently used of the others stay open, up
to a limit; beyond it the least recently used file is closed, and opened again for its next write.
A file may be closed before a sync of the whole file system makes its bytes durable.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from penstock.host.disk import Disk
from penstock.log.files.wal_files import ActiveFile


class OpenFiles:
    """The active files that are open and not in use; may be called from any thread."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk, self._limit = disk, limit
        self._lock = Lock()
        self._idle: dict[ActiveFile, None] = {}
        """Ordered by last use, the least recently used file first."""

    def take(self, active: ActiveFile) -> int:
        """Returns the descriptor to write to; the file stays open until `put_back`.

        Raises OSError when a file that was closed cannot be opened again.
        """
        with self._lock:
            self._idle.pop(active, None)
        return active.open(self._disk)

    def put_back(self, active: ActiveFile) -> None:
        """End the use of a file; over the limit, close the least recently used file."""
        with self._lock:
            if active.fd is not None:
                self._idle[active] = None
            if len(self._idle) > self._limit:
                self._close(next(iter(self._idle)))

    def forget(self, active: ActiveFile | None) -> None:
        """Drop a file that is not written any more; the caller closes it."""
        if active is not None:
            with self._lock:
                self._idle.pop(active, None)

    def _close(self, active: ActiveFile) -> None:
        del self._idle[active]
        fd, active.fd = active.fd, None
        if fd is not None:
            with suppress(OSError):
                self._disk.close(fd)
