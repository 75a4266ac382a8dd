"""Returns the messages of WALs that another broker has overtaken.

A broker whose lease ended while it was away finds that another broker took its topic over. Messages
that it had acknowledged but not uploaded are only on its disk; the manifest records a gap for them.
This module makes objects from such a WAL, puts them into the bucket and proposes them to the owner,
whichever broker that is by then, by records in the metadata (gap_filling.py). The WAL is deleted
once its gap is closed. A WAL without a recorded gap is left for manual recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog
from pyroaring import BitMap64

from penstock.formats.frames import FILE_HEADER_BYTES
from penstock.host.disk import Disk
from penstock.host.entropy import unique_name
from penstock.host.tasks import Backoff, Tasks
from penstock.log import Cursor, LogState, WalFile, recover
from penstock.metadata import DeleteKeys, Metadata, MetadataKeys, Put
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.units import PartitionId
from penstock.objects import Buffer, ObjectStore
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import (
    Gap,
    ObjectEntry,
    ReturnedLog,
    ReturnedObject,
    decode_head,
    encode_record,
)
from penstock.tiers.reading import linked_objects
from penstock.tiers.reading.object_reader import ObjectRowsDamaged
from penstock.tiers.topic_tier import TierHost
from penstock.tiers.upload.next_object import MadeObject, ObjectRequest, make_object
from penstock.tiers.upload.upload_sessions import is_intact

OVERTAKEN_SUFFIX: Final = ".overtaken-"
"""In the directory name of an overtaken WAL, before its lineage."""

PROPOSED_FILE: Final = "PROPOSED"
"""In the directory of a WAL whose messages were proposed: it is deleted once its gap is closed."""

RETRY_SECONDS: Final = 1.0
"""Between two checks of a gap: until it is closed, a proposal may have to be repeated."""

RETRY_GROWTH_MAX: Final = 256
"""Limit of the delay before a refused proposal is repeated, as a multiple of the first delay."""

_events = structlog.get_logger(__name__)


class _Progress(Enum):
    """The result of one check of a gap."""

    DONE = auto()
    PROPOSED = auto()
    WAITING = auto()
    """The proposal is complete; the owner has not filled the gap yet."""


class _OvertakenWal(NamedTuple):
    """A recovered WAL that is no longer written."""

    state: LogState
    files: Sequence[WalFile]
    next_frame: int


class OvertakenLogs:
    """Returns the messages of overtaken WALs on this broker's disk."""

    def __init__(
        self,
        host: TierHost,
        disk: Disk,
        metadata: Metadata,
        keys: MetadataKeys,
        store_of: Callable[[TopicName], Awaitable[ObjectStore]],
        retry_seconds: float = RETRY_SECONDS,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits between two checks of a gap."""
        self._host, self._disk = host, disk
        self._metadata, self._keys, self._store_of = metadata, keys, store_of
        self._retry_seconds, self._pause = retry_seconds, pause
        self._directories: set[Path] = set()
        self._tasks = Tasks()

    @property
    def pending(self) -> int:
        """The number of WALs whose messages are not returned yet."""
        return len(self._directories)

    def add(self, topic: TopicName, directory: Path) -> None:
        """Return the messages of this WAL in the background."""
        if directory not in self._directories:
            self._directories.add(directory)
            self._tasks.start(self._return(topic, directory))

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _return(self, topic: TopicName, directory: Path) -> None:
        try:
            await self._advance_until_done(topic, directory)
        finally:
            self._directories.discard(directory)

    async def _advance_until_done(self, topic: TopicName, directory: Path) -> None:
        proposed, seconds = False, self._retry_seconds
        backoff = Backoff(2 * seconds, RETRY_GROWTH_MAX * seconds)
        while True:
            try:
                progress = await self._advance(topic, directory)
                if progress is _Progress.DONE:
                    return
                # Every proposal puts objects and makes the owner interrupt the topic.
                if progress is _Progress.PROPOSED and proposed:
                    seconds = backoff.next_seconds()
                proposed |= progress is _Progress.PROPOSED
            except (PenstockError, OSError) as error:
                _events.warning("log_not_returned", topic=str(topic), reason=str(error))
            await self._pause(seconds)

    async def _advance(self, topic: TopicName, directory: Path) -> _Progress:
        """Propose the messages of a WAL unless they are proposed already.

        Raises what the disk and the stores raise.
        """
        lineage = directory.name.rpartition("-")[2]
        entry = await self._metadata.get(self._keys.manifest(topic))
        gaps = [] if entry is None else decode_head(entry.value).gaps
        gap = next((gap for gap in gaps if gap.lineage == lineage), None)
        if gap is None:
            return await self._finish(topic, directory)
        if await self._metadata.get(self._keys.returned_complete(topic, lineage)) is not None:
            return _Progress.WAITING
        wal = await self._host.threads.run(_recover, self._disk, directory)
        if wal.next_frame < gap.frame:
            _events.error("overtaken_log_is_old_copy", topic=str(topic), directory=directory.name)
            return _Progress.DONE
        await self._propose(topic, directory, gap, wal)
        return _Progress.PROPOSED

    async def _finish(self, topic: TopicName, directory: Path) -> _Progress:
        """Delete the WAL if its gap was closed; if there never was a gap, leave it."""
        run = self._host.threads.run
        proposed = await run((directory / PROPOSED_FILE).exists)
        if proposed:
            await run(self._disk.remove_directory, directory)
        _events.info("overtaken_log_done", topic=str(topic), returned=proposed)
        return _Progress.DONE

    async def _propose(
        self, topic: TopicName, directory: Path, gap: Gap, wal: _OvertakenWal
    ) -> None:
        keys = self._keys
        prefix = keys.returned_log(topic, gap.lineage)
        await self._metadata.transaction([], [DeleteKeys(prefix, prefix=True)])
        store = await self._store_of(topic)
        source = _ReturnedObjects(replace(self._host, store=store), self._disk, topic, wal, gap)
        count = 0
        while (batch := await source.next()) is not None:
            for returned in batch:
                key = keys.returned_object(topic, gap.lineage, count)
                await self._metadata.put(key, encode_record(returned))
                count += 1
        await self._host.threads.run(_mark_proposed, self._disk, directory)
        complete = Put(
            keys.returned_complete(topic, gap.lineage),
            encode_record(ReturnedLog(str(topic), count)),
        )
        await self._metadata.transaction([], [complete])
        _events.info("log_returned", topic=str(topic), lineage=gap.lineage, objects=count)


class _ReturnedObjects:
    """Makes the objects of one WAL and puts them into the bucket."""

    def __init__(
        self, host: TierHost, disk: Disk, topic: TopicName, wal: _OvertakenWal, gap: Gap
    ) -> None:
        self._host, self._disk, self._topic = host, disk, topic
        self._state, self._files, self._gap = wal.state, wal.files, gap
        before = [file for file in self._files if file.header.first_frame <= gap.frame]
        first = before[-1] if before else self._files[0]
        self._cursor = Cursor(gap.frame, first.sequence, FILE_HEADER_BYTES)

    async def next(self) -> list[ReturnedObject] | None:
        """The next objects with messages, which may be none; None at the end of the WAL."""
        host = self._host
        result = await make_object(self._request(), self._disk, host.threads, host.child)
        if result.cursor.frame <= self._cursor.frame:
            return None
        self._cursor = result.cursor
        entries = (
            [await self._put(result.entry, result.data)] if result.entry else self._linked(result)
        )
        returned = [ReturnedObject(entry, self._deleted(entry)) for entry in entries]
        return [item for item in returned if _message_count(item)]

    def _request(self) -> ObjectRequest:
        settings = self._host.settings
        return ObjectRequest(
            topic=self._topic,
            files=[file for file in self._files if file.sequence >= self._cursor.sequence],
            cursor=self._cursor,
            deletions=Deletions.of(self._state),
            collect_bytes=settings.batch_bytes_max,
            object_bytes=settings.object_bytes_max // 2,
            wal_bytes_max=settings.backlog_bytes_max,
            child_bytes_min=settings.child_bytes_min,
            epoch=0,
            created_us=self._host.clock.now_us(),
            unique=unique_name(),
            backend=self._host.store.backend,
            sequence=0,
        )

    async def _put(self, entry: ObjectEntry, data: Buffer) -> ObjectEntry:
        """Put an object and verify it by reading it back."""
        info = await self._host.store.put(entry.object_id, [data])
        entry = msgspec.structs.replace(entry, etag=info.etag)
        if not await is_intact(self._host.store, entry):
            raise ObjectRowsDamaged.of_entry(entry, "it reads back wrong")
        return entry

    def _linked(self, result: MadeObject) -> list[ObjectEntry]:
        """The entries of linked objects, which an application has put into the bucket."""
        return linked_objects.entries_of(
            result.links,
            created_at=self._host.clock.now_us(),
            backend=self._host.store.backend,
            epoch=0,
        )

    def _deleted(self, entry: ObjectEntry) -> dict[int, bytes]:
        """The offsets of an object that were deleted while the WAL was in use."""
        bitmaps: dict[int, bytes] = {}
        for span in entry.ranges:
            partition = PartitionId(span.partition)
            deleted = BitMap64()
            deleted.add_range(span.first, span.next)
            deleted &= self._state.bitmap(partition) or BitMap64()
            deleted.add_range(span.first, min(self._state.start(partition), span.next))
            if deleted:
                deleted.run_optimize()
                bitmaps[span.partition] = deleted.serialize()
        return bitmaps


def _message_count(returned: ReturnedObject) -> int:
    covered = sum(span.next - span.first for span in returned.entry.ranges)
    return covered - sum(len(BitMap64.deserialize(data)) for data in returned.deleted.values())


def _recover(disk: Disk, directory: Path) -> _OvertakenWal:
    """Read a WAL that is no longer written; runs in a thread."""
    recovered = recover(disk, directory, "")
    files = list(recovered.files)
    if recovered.active is not None:
        disk.close(recovered.active.open(disk))
        files.append(recovered.active.file)
    return _OvertakenWal(
        recovered.state, [replace(file, table=None) for file in files], recovered.next_number
    )


def _mark_proposed(disk: Disk, directory: Path) -> None:
    path = directory / PROPOSED_FILE
    if not path.exists():
        disk.close(disk.create(path, [b""]))
