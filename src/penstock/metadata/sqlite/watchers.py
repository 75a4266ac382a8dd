"""The watches of the embedded store: which of them have changes to read, and their positions.

A watch reads changes from the store, so a slow one needs no memory here. Its position advances also
while no key below its prefix changes; otherwise the history after its last change would be dropped,
and the watch would appear to have missed changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.metadata.interface import Revision
from penstock.metadata.sqlite.tables import ChangeRead


class Watcher:
    """One watch; it has read all changes below its prefix up to revision `seen`."""

    def __init__(self, prefix: bytes, since: Revision) -> None:
        self.prefix = prefix
        self.seen = self.reading_from = since
        self._wakeup = asyncio.Event()
        self._wakeup.set()

    @property
    def parked(self) -> bool:
        """Whether it has read all changes and waits."""
        return not self._wakeup.is_set()

    async def wait(self) -> None:
        """Return when there may be changes to read."""
        await self._wakeup.wait()

    def wake(self) -> None:
        self._wakeup.set()

    def park(self) -> None:
        self._wakeup.clear()


class Watchers:
    """All watches of a store."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._revision = Revision(0)

    def add(self, prefix: bytes, since: Revision) -> Watcher:
        watcher = Watcher(prefix, since)
        self._watchers.add(watcher)
        return watcher

    def remove(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def committed(self, revision: Revision, keys: Sequence[bytes]) -> None:
        """Note that these keys changed, up to `revision`."""
        self._revision = revision
        for watcher in self._watchers:
            if any(key.startswith(watcher.prefix) for key in keys):
                watcher.wake()
            elif watcher.parked:
                watcher.seen = max(watcher.seen, revision)

    def reading(self, watcher: Watcher) -> None:
        """Note that the watch begins to read; later commits wake it again."""
        watcher.reading_from = watcher.seen
        watcher.park()

    def has_read(self, watcher: Watcher, read: ChangeRead, limit: int) -> None:
        """Note what the watch has read, with a limit of `limit` changes."""
        complete_to = max(watcher.reading_from, read.complete_to)
        if len(read.changes) >= limit:
            watcher.wake()
        if watcher.parked:
            # No change below its prefix was committed since it began to read.
            complete_to = max(complete_to, self._revision)
        watcher.seen = complete_to

    def wake_all(self) -> None:
        for watcher in self._watchers:
            watcher.wake()
