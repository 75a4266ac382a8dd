"""Return the messages of WALs that another broker has overtaken.

A broker that was away past its lease finds that another one took its topic over. What it had
acknowledged and not uploaded is on its disk only; the manifest records a gap for it. This module
makes objects from such a WAL, puts them into the bucket and proposes them to the owner by records
in the metadata, whoever the owner is by then (returned.py). The WAL is removed once its gap is
closed. A WAL without a gap on record is left alone, for people.
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
from penstock.log import Cursor, LogState, WalFile, recover
from penstock.metadata import DeleteKeys, Metadata, MetadataKeys, Put
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.units import PartitionId
from penstock.objects import Buffer, ObjectStore
from penstock.tiers import entries as forms
from penstock.tiers import linked, next_object
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import Gap, ObjectEntry, ReturnedLog, ReturnedObject
from penstock.tiers.next_object import Made, Wanted
from penstock.tiers.object_reader import ObjectDamaged
from penstock.tiers.sessions import is_whole
from penstock.tiers.tier import TierHost

PROPOSED_FILE: Final = "PROPOSED"
"""In the directory of a WAL whose messages were proposed: it may be removed with its gap."""

RETRY_SECONDS: Final = 1.0
"""Between looks at a gap: until it is closed, the proposal may have to be made again."""

RETRY_GROWTH_MAX: Final = 256
"""A proposal that its owner refuses is made again later each time, up to so many times as late."""

_events = structlog.get_logger(__name__)


class _Step(Enum):
    """What one look at a gap came to."""

    DONE = auto()
    PROPOSED = auto()
    WAITING = auto()
    """The proposal is on record; its owner has yet to fill the gap."""


class _Overtaken(NamedTuple):
    """A WAL as its files tell."""

    state: LogState
    files: Sequence[WalFile]
    next_frame: int


class OvertakenLogs:
    """Returns the messages of WALs that were set aside on this broker's disk."""

    def __init__(
        self,
        host: TierHost,
        disk: Disk,
        metadata: Metadata,
        keys: MetadataKeys,
        store_of: Callable[[TopicName], Awaitable[ObjectStore]],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._host, self._disk = host, disk
        self._metadata, self._keys, self._store_of = metadata, keys, store_of
        self._retry_seconds = retry_seconds
        self._tasks: dict[Path, asyncio.Task[None]] = {}

    def add(self, topic: TopicName, directory: Path) -> None:
        """Return the messages of this WAL, in the background."""
        if directory not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._work(topic, directory))
            self._tasks[directory] = task
            task.add_done_callback(lambda _: self._tasks.pop(directory, None))

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, topic: TopicName, directory: Path) -> None:
        made, growth = False, 1
        while True:
            try:
                step = await self._step(topic, directory)
                if step is _Step.DONE:
                    return
                # Each proposal has the owner interrupt the topic, and puts objects.
                if step is _Step.PROPOSED and made:
                    growth = min(2 * growth, RETRY_GROWTH_MAX)
                made |= step is _Step.PROPOSED
            except (PenstockError, OSError) as error:
                _events.warning("log_not_returned", topic=str(topic), reason=str(error))
            await asyncio.sleep(self._retry_seconds * growth)

    async def _step(self, topic: TopicName, directory: Path) -> _Step:
        """Propose the messages of a WAL unless they are on record; raises what disk and stores
        raise.
        """
        lineage = directory.name.rpartition("-")[2]
        entry = await self._metadata.get(self._keys.manifest(topic))
        gaps = [] if entry is None else forms.decode_head(entry.value).gaps
        gap = next((gap for gap in gaps if gap.lineage == lineage), None)
        if gap is None:
            return await self._finish(topic, directory)
        if await self._metadata.get(self._keys.returned_complete(topic, lineage)) is not None:
            return _Step.WAITING
        overtaken = await self._host.threads.run(_read, self._disk, directory)
        if overtaken.next_frame < gap.frame:
            _events.error("overtaken_log_is_old_copy", topic=str(topic), directory=directory.name)
            return _Step.DONE
        await self._propose(topic, directory, gap, overtaken)
        return _Step.PROPOSED

    async def _finish(self, topic: TopicName, directory: Path) -> _Step:
        """The gap is closed, or was never recorded, and then the WAL stays."""
        run = self._host.threads.run
        proposed = await run((directory / PROPOSED_FILE).exists)
        if proposed:
            await run(self._disk.remove_directory, directory)
        _events.info("overtaken_log_done", topic=str(topic), returned=proposed)
        return _Step.DONE

    async def _propose(
        self, topic: TopicName, directory: Path, gap: Gap, overtaken: _Overtaken
    ) -> None:
        keys = self._keys
        prefix = keys.returned_log(topic, gap.lineage)
        await self._metadata.transaction([], [DeleteKeys(prefix, prefix=True)])
        store = await self._store_of(topic)
        maker = _Maker(replace(self._host, store=store), self._disk, topic, overtaken, gap)
        count = 0
        while (made := await maker.next()) is not None:
            for returned in made:
                key = keys.returned_object(topic, gap.lineage, count)
                await self._metadata.put(key, forms.encode(returned))
                count += 1
        await self._host.threads.run(_mark, self._disk, directory)
        complete = Put(
            keys.returned_complete(topic, gap.lineage), forms.encode(ReturnedLog(str(topic), count))
        )
        await self._metadata.transaction([], [complete])
        _events.info("log_returned", topic=str(topic), lineage=gap.lineage, objects=count)


class _Maker:
    """Makes the objects of one WAL, and puts them."""

    def __init__(
        self, host: TierHost, disk: Disk, topic: TopicName, overtaken: _Overtaken, gap: Gap
    ) -> None:
        self._host, self._disk, self._topic = host, disk, topic
        self._state, self._files, self._gap = overtaken.state, overtaken.files, gap
        before = [file for file in self._files if file.header.first_frame <= gap.frame]
        first = before[-1] if before else self._files[0]
        self._cursor = Cursor(gap.frame, first.sequence, FILE_HEADER_BYTES)

    async def next(self) -> list[ReturnedObject] | None:
        """The next objects that have messages, which may be none; None at the end of the WAL."""
        host = self._host
        made = await next_object.make(self._wanted(), self._disk, host.threads, host.child)
        if made.cursor.frame <= self._cursor.frame:
            return None
        self._cursor = made.cursor
        entries = [await self._put(made.entry, made.data)] if made.entry else self._linked(made)
        returned = [ReturnedObject(entry, self._deleted(entry)) for entry in entries]
        return [one for one in returned if _messages(one)]

    def _wanted(self) -> Wanted:
        settings = self._host.settings
        return Wanted(
            topic=self._topic,
            files=[file for file in self._files if file.sequence >= self._cursor.sequence],
            cursor=self._cursor,
            deletions=Deletions.of(self._state),
            collect_bytes=settings.batch_bytes_max,
            object_bytes=settings.object_bytes_max // 2,
            wal_bytes_max=settings.backlog_bytes_max,
            epoch=0,
            created_us=self._host.clock.now_us(),
            unique=unique_name(),
            backend=self._host.store.backend,
            sequence=0,
        )

    async def _put(self, entry: ObjectEntry, data: Buffer) -> ObjectEntry:
        """Put an object and read it back."""
        info = await self._host.store.put(entry.object_id, [data])
        entry = msgspec.structs.replace(entry, etag=info.etag)
        if not await is_whole(self._host.store, entry):
            raise ObjectDamaged(
                entry.object_id, 0, entry.start_offset, entry.end_offset + 1, "it reads back wrong"
            )
        return entry

    def _linked(self, made: Made) -> list[ObjectEntry]:
        """Objects that an application staged and linked: they are in the bucket."""
        return linked.entries_of(
            made.links,
            created_at=self._host.clock.now_us(),
            backend=self._host.store.backend,
            epoch=0,
        )

    def _deleted(self, entry: ObjectEntry) -> dict[int, bytes]:
        """What of an object's offsets was deleted while the WAL was in use."""
        found: dict[int, bytes] = {}
        for span in entry.ranges:
            partition = PartitionId(span.partition)
            deleted = BitMap64()
            deleted.add_range(span.first, span.next)
            deleted &= self._state.bitmap(partition) or BitMap64()
            deleted.add_range(span.first, min(self._state.start(partition), span.next))
            if deleted:
                deleted.run_optimize()
                found[span.partition] = deleted.serialize()
        return found


def _messages(returned: ReturnedObject) -> int:
    covered = sum(span.next - span.first for span in returned.entry.ranges)
    return covered - sum(len(BitMap64.deserialize(data)) for data in returned.deleted.values())


def _read(disk: Disk, directory: Path) -> _Overtaken:
    """Read a WAL that nobody writes any more; in a thread."""
    recovered = recover(disk, directory, "")
    files = list(recovered.files)
    if recovered.active is not None:
        disk.close(recovered.active.open(disk))
        files.append(recovered.active.file)
    return _Overtaken(
        recovered.state, [replace(file, table=None) for file in files], recovered.next_number
    )


def _mark(disk: Disk, directory: Path) -> None:
    path = directory / PROPOSED_FILE
    if not path.exists():
        disk.close(disk.create(path, [b""]))
