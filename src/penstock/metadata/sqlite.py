"""The embedded metadata store: one SQLite file of one process.

Writes go through a queue to the one thread that commits them in groups (sqlite_writer.py), reads to
another thread with a connection that cannot write; nothing here blocks the event loop. What was
answered survives kill -9 and a power cut. Watches are served from the history in the file, so one
that starts after a restart misses nothing that is still kept.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.threads import Workers
from penstock.metadata.interface import (
    Change,
    Compare,
    Delete,
    Entry,
    LeaseId,
    MetadataUnavailable,
    Outcome,
    Page,
    Put,
    Revision,
)
from penstock.metadata.requests import (
    check_lease,
    check_page,
    check_transaction,
    encode_key,
    encode_prefix,
)
from penstock.metadata.sqlite_file import open_reader
from penstock.metadata.sqlite_read import read_changes, read_entry, read_page
from penstock.metadata.sqlite_store import HistoryLimits, Store
from penstock.metadata.sqlite_watch import Watchers
from penstock.metadata.sqlite_writer import Group, Writer

WATCH_CHANGES_MAX: Final = 1000
"""A watch hands on about this many changes at a time."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Counts(NamedTuple):
    """Requests taken so far, and the commits they shared."""

    requests: int
    commits: int


class SqliteMetadata:
    """The store in one directory, which belongs to this process alone."""

    def __init__(self, store: Store, reader: sqlite3.Connection, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(store, self._on_group)
        self._readers = Workers(1, "metadata-read")
        self._connection = reader
        self._watchers = Watchers()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._set_timer(store.earliest_end_ns())

    @classmethod
    async def open(
        cls,
        directory: Path,
        clock: Clock | None = None,
        disk: Disk | None = None,
        history: HistoryLimits | None = None,
    ) -> SqliteMetadata:
        """Open the store in `directory`, made if it is missing.

        Every lease that was granted gets its full time again. Raises VersionUnknown, FormatError.
        """
        clock, disk = clock or Clock(), disk or Disk()
        opener = Workers(1, "metadata-open")
        try:
            opened = await opener.run(_open, directory, disk, clock, history or HistoryLimits())
        finally:
            await opener.close()
        return cls(*opened, clock)

    @property
    def counts(self) -> Counts:
        return Counts(self._writer.requests_total, self._writer.groups_total)

    async def get(self, key: str) -> Entry | None:
        return await self._read(read_entry, encode_key(key))

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> Page:
        check_page(limit)
        return await self._read(read_page, encode_prefix(prefix), encode_prefix(after), limit)

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        return (await self.transaction((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        changes = (Delete(key),)
        size = check_transaction((), changes)
        applied = await self._writer.submit(lambda store: store.transact((), changes), size)
        return applied.removed > 0

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | Delete]
    ) -> Outcome:
        size = check_transaction(compares, changes)
        applied = await self._writer.submit(lambda store: store.transact(compares, changes), size)
        return Outcome(applied.succeeded, applied.revision)

    async def grant(self, seconds: int) -> LeaseId:
        check_lease(seconds)
        return await self._writer.submit(lambda store: store.grant(seconds))

    async def keep_alive(self, lease: LeaseId) -> float:
        return await self._writer.submit(lambda store: store.keep_alive(lease))

    async def revoke(self, lease: LeaseId) -> None:
        await self._writer.submit(lambda store: store.revoke(lease))

    async def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[Change]]:
        start = encode_prefix(prefix)
        watcher = self._watchers.add(start, since)
        try:
            while True:
                await watcher.wait()
                self._watchers.reading(watcher)
                news = await self._read(read_changes, start, watcher.seen, WATCH_CHANGES_MAX)
                self._watchers.has_read(watcher, news, WATCH_CHANGES_MAX)
                if news.changes:
                    yield news.changes
        finally:
            self._watchers.remove(watcher)

    async def close(self) -> None:
        """Carry out what was asked, then close; whoever watches gets MetadataUnavailable."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._watchers.wake_all()
        await self._readers.run(self._connection.close)
        await self._readers.close()
        # Last, since the last connection to close folds the journal into the file.
        await self._writer.close()

    async def _read(
        self,
        call: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        if self._closed:
            raise MetadataUnavailable("the metadata store is closed")
        try:
            return await self._readers.run(call, self._connection, *args, **kwargs)
        except sqlite3.Error as error:
            raise MetadataUnavailable(f"the metadata store cannot be read: {error}") from error

    def _on_group(self, group: Group) -> None:
        if group.committed is not None:
            self._watchers.committed(*group.committed)
        self._set_timer(group.earliest_end_ns)

    def _set_timer(self, earliest_end_ns: int | None) -> None:
        """Have the writer look at the leases when the next one may end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if earliest_end_ns is not None and not self._closed:
            delay_ns = max(0, earliest_end_ns - self._clock.monotonic_ns())
            self._timer = self._loop.call_later(delay_ns / 1e9, self._end_leases)

    def _end_leases(self) -> None:
        # A full queue looks at the leases anyway, and sets the timer again.
        if not self._writer.full:
            self._writer.submit(_nothing)


def _open(
    directory: Path, disk: Disk, clock: Clock, history: HistoryLimits
) -> tuple[Store, sqlite3.Connection]:
    if not directory.is_dir():
        directory.mkdir(mode=0o700, parents=True)
        disk.sync_directory(directory.parent)
    return Store.open(directory, disk, clock, history), open_reader(directory)


def _nothing(_: Store) -> None:
    """Every group begins with the leases that are due."""
