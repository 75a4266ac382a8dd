"""The embedded metadata store: one SQLite file of one process.

A queue passes writes to one thread, which commits them in groups (writer.py); another thread reads,
with a read-only connection. Nothing blocks the event loop. A completed write survives kill -9 and a
power cut. Watches read the history in the file, so a watch that starts after a restart misses no
change that the history still has.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.host.tasks import Timer
from penstock.host.threads import WorkerThreads
from penstock.metadata.interface import (
    Compare,
    DeleteKeys,
    EntryPage,
    KeyChange,
    LeaseId,
    MetadataEntry,
    MetadataUnavailable,
    Put,
    Revision,
    TransactionResult,
)
from penstock.metadata.requests import (
    check_lease,
    check_page,
    check_transaction,
    encode_key,
    encode_prefix,
)
from penstock.metadata.sqlite.store import HistoryLimits, SqliteStore
from penstock.metadata.sqlite.tables import (
    open_reader,
    read_changes,
    read_entries,
    read_entry,
    read_page,
)
from penstock.metadata.sqlite.watchers import Watchers
from penstock.metadata.sqlite.writer import GroupResult, GroupWriter

WATCH_CHANGES_MAX: Final = 1000
"""A watch returns about this many changes at a time."""

GET_KEYS_MAX: Final = 1000
"""Keys read by one call of the reading thread, so that other reads do not wait for long."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WriteCounts(NamedTuple):
    """The number of requests so far, and of the commits that they shared."""

    requests: int
    commits: int


class SqliteMetadata:
    """Implements Metadata; the store in one directory, which only this process uses."""

    def __init__(self, store: SqliteStore, reader: sqlite3.Connection, clock: Clock) -> None:
        self._clock = clock
        self._writer = GroupWriter(store, self._on_group)
        self._readers = WorkerThreads(1, "metadata-read")
        self._connection = reader
        self._watchers = Watchers()
        self._closed = False
        self._lease_timer = Timer(self._end_leases)
        self._set_timer(store.earliest_end_ns())

    @classmethod
    async def open(
        cls,
        directory: Path,
        clock: Clock | None = None,
        disk: Disk | None = None,
        history: HistoryLimits | None = None,
    ) -> SqliteMetadata:
        """Open the store in `directory`; creates it if it is missing.

        All leases get their full duration again. Raises VersionUnknown, FormatError.
        """
        clock, disk = clock or Clock(), disk or Disk()
        opener = WorkerThreads(1, "metadata-open")
        try:
            opened = await opener.run(_open, directory, disk, clock, history or HistoryLimits())
        finally:
            await opener.close()
        return cls(*opened, clock)

    @property
    def counts(self) -> WriteCounts:
        return WriteCounts(self._writer.requests_total, self._writer.groups_total)

    async def get(self, key: str) -> MetadataEntry | None:
        return await self._read(read_entry, encode_key(key))

    async def get_many(self, keys: Sequence[str]) -> list[MetadataEntry | None]:
        entries: list[MetadataEntry | None] = []
        for start in range(0, len(keys), GET_KEYS_MAX):
            encoded = [encode_key(key) for key in keys[start : start + GET_KEYS_MAX]]
            entries += await self._read(read_entries, encoded)
        return entries

    async def range(self, prefix: str, after: str = "", limit: int = 1000) -> EntryPage:
        check_page(limit)
        return await self._read(read_page, encode_prefix(prefix), encode_prefix(after), limit)

    async def put(self, key: str, value: bytes, lease: LeaseId | None = None) -> Revision:
        return (await self.transaction((), (Put(key, value, lease),))).revision

    async def delete(self, key: str) -> bool:
        changes = (DeleteKeys(key),)
        size = check_transaction((), changes)
        applied = await self._writer.submit(lambda store: store.transact((), changes), size)
        return applied.removed > 0

    async def transaction(
        self, compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        size = check_transaction(compares, changes)
        applied = await self._writer.submit(lambda store: store.transact(compares, changes), size)
        return TransactionResult(applied.succeeded, applied.revision)

    async def grant(self, seconds: int) -> LeaseId:
        check_lease(seconds)
        return await self._writer.submit(lambda store: store.grant(seconds))

    def renewer(self) -> SqliteRenewer:
        return SqliteRenewer(self._writer)

    async def revoke(self, lease: LeaseId) -> None:
        await self._writer.submit(lambda store: store.revoke(lease))

    async def watch(self, prefix: str, since: Revision) -> AsyncIterator[list[KeyChange]]:
        start = encode_prefix(prefix)
        watcher = self._watchers.add(start, since)
        try:
            while True:
                await watcher.wait()
                self._watchers.reading(watcher)
                read = await self._read(read_changes, start, watcher.seen, WATCH_CHANGES_MAX)
                self._watchers.has_read(watcher, read, WATCH_CHANGES_MAX)
                if read.changes:
                    yield read.changes
        finally:
            self._watchers.remove(watcher)

    async def close(self) -> None:
        """Complete pending requests, then close; watches raise MetadataUnavailable."""
        if self._closed:
            return
        self._closed = True
        self._lease_timer.stop()
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

    def _on_group(self, group: GroupResult) -> None:
        if group.committed is not None:
            self._watchers.committed(*group.committed)
        self._set_timer(group.earliest_end_ns)

    def _set_timer(self, earliest_end_ns: int | None) -> None:
        """Have the writer check the leases when the next one may end."""
        self._lease_timer.stop()
        if earliest_end_ns is not None and not self._closed:
            delay_ns = max(0, earliest_end_ns - self._clock.monotonic_ns())
            self._lease_timer.after(delay_ns / 1e9)

    def _end_leases(self) -> None:
        # If the queue is full, its next group checks the leases and sets the timer again.
        if not self._writer.full:
            self._writer.submit(_nothing)


class SqliteRenewer:
    """Implements Renewer: renews leases in the writing thread, without the event loop."""

    def __init__(self, writer: GroupWriter) -> None:
        self._writer = writer

    def keep_alive(self, lease: LeaseId, timeout_seconds: float) -> float:
        try:
            return self._writer.call(lambda store: store.keep_alive(lease)).result(timeout_seconds)
        except TimeoutError:
            raise MetadataUnavailable(
                f"the metadata store did not renew lease {lease} in {timeout_seconds:.1f} s"
            ) from None

    def close(self) -> None:
        """Does nothing: a running call ends with the group that the store commits."""


def _open(
    directory: Path, disk: Disk, clock: Clock, history: HistoryLimits
) -> tuple[SqliteStore, sqlite3.Connection]:
    if not directory.is_dir():
        directory.mkdir(mode=0o700, parents=True)
        disk.sync_directory(directory.parent)
    return SqliteStore.open(directory, disk, clock, history), open_reader(directory)


def _nothing(_: SqliteStore) -> None:
    """Does nothing: every group begins with the leases that have ended."""
