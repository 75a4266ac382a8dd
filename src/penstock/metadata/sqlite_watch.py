"""Who watches what of the embedded store: which watch has news to read, and up to where each is.

A watch reads its changes from the store, so a slow one holds no memory here. It must still know how
far it is while nothing of its own changes: else the history behind its last change would be
forgotten and the watch believed to have missed something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.metadata.interface import Revision
from penstock.metadata.sqlite_read import News


class Watcher:
    """One watch: everything below its prefix up to `seen` is known to it."""

    def __init__(self, prefix: bytes, since: Revision) -> None:
        self.prefix = prefix
        self.seen = self.reading_from = since
        self._news = asyncio.Event()
        self._news.set()

    @property
    def parked(self) -> bool:
        """It has read all there was and waits."""
        return not self._news.is_set()

    async def wait(self) -> None:
        """Return when there may be something to read."""
        await self._news.wait()

    def wake(self) -> None:
        self._news.set()

    def park(self) -> None:
        self._news.clear()


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
        """These keys were changed, up to `revision`."""
        self._revision = revision
        for watcher in self._watchers:
            if any(key.startswith(watcher.prefix) for key in keys):
                watcher.wake()
            elif watcher.parked:
                watcher.seen = max(watcher.seen, revision)

    def reading(self, watcher: Watcher) -> None:
        """The watch is about to read; what is committed from now on wakes it again."""
        watcher.reading_from = watcher.seen
        watcher.park()

    def has_read(self, watcher: Watcher, news: News, limit: int) -> None:
        """The watch has read this, asking for `limit` changes."""
        complete_to = max(watcher.reading_from, news.complete_to)
        if len(news.changes) >= limit:
            watcher.wake()
        if watcher.parked:
            # Nothing of its own was committed since it began to read.
            complete_to = max(complete_to, self._revision)
        watcher.seen = complete_to

    def wake_all(self) -> None:
        for watcher in self._watchers:
            watcher.wake()
