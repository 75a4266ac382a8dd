"""The tiers of one topic: its uploads and its manifest.

    collect frames -> Parquet object -> put -> read back -> manifest transaction

A round prepares several objects while the first ones are on their way; their manifest transactions
are made in frame order. Objects that a link names are there already: they are looked at and entered
into the manifest. The manifest decides what counts: an object without an entry is garbage,
and a crash at any step is redone from the WAL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import structlog

from penstock.formats.frames import FILE_HEADER_BYTES
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.threads import WorkerThreads
from penstock.log import Cursor, LinkFrame, Log, Objects, Ranges
from penstock.metadata import MetadataUnavailable
from penstock.metadata.ownership import Epoch
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.units import Offset, PartitionId
from penstock.objects import Buffer, ObjectMissing, ObjectStore
from penstock.tiers import linked, next_object
from penstock.tiers.cold import ColdReads
from penstock.tiers.counters import TierCounters
from penstock.tiers.deletions import Deletions
from penstock.tiers.entries import Gap, Head, ObjectEntry, Session, Transactions, with_gap
from penstock.tiers.manifest import REMOVED_MAX, Manifest
from penstock.tiers.next_object import Wanted
from penstock.tiers.object_reader import ObjectDamaged, ObjectReader
from penstock.tiers.sessions import is_whole
from penstock.tiers.settings import TierSettings
from penstock.tiers.stored import deletes_fit
from penstock.tiers.subjects import ObjectSubjects

OBJECTS_PER_ROUND: Final = 4
ROUND_BYTES: Final = 96 << 20
"""A round begins no further object from here on: what is on its way is in memory."""
LOOKS_AT_ONCE: Final = 8
_events = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TierHost:
    """What all topics' tiers share."""

    store: ObjectStore
    settings: TierSettings
    clock: Clock
    threads: WorkerThreads
    child: Child
    counters: TierCounters

    def trash_until_us(self) -> int:
        """When an object may be removed for good that counts no more from now on."""
        return self.clock.now_us() + int(self.settings.trash_seconds * 1_000_000)


@dataclass(slots=True)
class _Upload:
    """Frames on their way into the manifest."""

    size_bytes: int
    first_frame: int
    next_frame: int
    entries: int
    task: asyncio.Task[list[ObjectEntry]] | None
    more: bool
    """Whether much may wait behind them."""
    links: Sequence[LinkFrame] = ()


class TopicTier:
    """Uploads and cold reads of a topic that this broker owns."""

    def __init__(
        self,
        host: TierHost,
        topic: TopicName,
        log: Log,
        manifest: Manifest,
        epoch: Epoch,
        gap: Gap | None = None,
    ) -> None:
        """`gap` is recorded with the first change of the manifest: what the takeover skipped."""
        self.topic, self.log, self.manifest, self.store = topic, log, manifest, host.store
        self._gap = gap
        self._host, self.epoch, self.clock = host, epoch, host.clock
        self.objects = ObjectReader(host.store, host.threads, host.child, topic.topic.encode())
        self.cold = ColdReads(topic, log, manifest, self.objects)
        self.read, self.offset_at = self.cold.read, self.cold.offset_at
        self._cursor = Cursor(0, 0, FILE_HEADER_BYTES)
        self._opened_frame = 0
        self._deletions_noted = -1
        self._committing = asyncio.Lock()
        log.lookup.attach_objects(
            lambda partition, offset: manifest.index.find(partition, offset) is not None
        )

    @property
    def uploaded_frame(self) -> int:
        return self.manifest.head.uploaded_frame

    @property
    def collected_frame(self) -> int:
        """Frames below this have been looked at."""
        return self._cursor.frame

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the files that have not been looked at to their end."""
        if self.collected_frame >= self.log.writer.durable_number:
            return 0
        first = self._cursor.sequence
        return sum(file.end for file in self.log.files.all() if file.sequence >= first)

    @property
    def needs_reservation(self) -> bool:
        """Whether less than half of the offsets reserved ahead are left."""
        half = self._host.settings.reserve_offsets // 2
        return min(self._highest + half, OFFSET_MAX) > self.manifest.head.reserved

    @property
    def linked_frame(self) -> int:
        """Links are below this frame, as far as they are durable."""
        return max(self._opened_frame, self.log.state.linked_frame)

    # -- opening

    async def open(self) -> None:
        """Take up where the manifest ends."""
        self._rewind()
        if self._gap is not None:
            await self.manifest.remove_uncounted()
        self._opened_frame = self.log.writer.durable_number
        cold = ObjectSubjects(self.topic, self.log, self.manifest, self.objects)
        self.log.index.recall(cold)
        await self.reserve()

    def _rewind(self) -> None:
        """Collect again from where the manifest ends."""
        frame = self.uploaded_frame
        files = self.log.files.all()
        file = next((f for f in reversed(files) if f.header.first_frame <= frame), files[0])
        self._cursor = Cursor(frame, file.sequence, FILE_HEADER_BYTES)

    # -- uploading

    async def round(self) -> int:
        """Upload what is durable and new, up to a few objects; how many bytes it was.

        Raises what the stores raise; what was committed stays, the rest is redone next time.
        """
        await self.refresh()
        uploads: list[_Upload] = []
        size = 0
        try:
            more = True
            while more and len(uploads) < OBJECTS_PER_ROUND and size < ROUND_BYTES:
                upload = await self._prepare(sum(upload.entries for upload in uploads))
                if upload is None:
                    break
                size += upload.size_bytes
                uploads.append(upload)
                more = upload.more
            for upload in uploads:
                await self._finish(upload)
            if not uploads and self._deletions_noted != self.log.state.deletions:
                await self.commit()
        except BaseException:
            await _cancel([upload.task for upload in uploads if upload.task is not None])
            self._rewind()
            raise
        return size

    async def refresh(self) -> None:
        """Read the manifest again if it is not known what became of the last change."""
        async with self._committing:
            if self.manifest.doubtful:
                await self.manifest.load()
                self._rewind()
        # Another change may have looked before us what became of an upload.
        if self._cursor.frame < self.uploaded_frame:
            self._rewind()
        self.log.writer.uploaded(self.uploaded_frame)

    async def _prepare(self, ahead: int) -> _Upload | None:
        """Collect and encode the next object and begin to put it; or look at what is linked."""
        sequence = self.manifest.head.next_sequence + ahead
        host, wanted = self._host, self._wanted(sequence)
        made = await next_object.make(wanted, self.log.files.disk, host.threads, host.child)
        if made.cursor.frame <= wanted.cursor.frame:
            return None
        self._cursor = made.cursor
        first, frame = wanted.cursor.frame, made.cursor.frame
        size, links = made.size_bytes, made.links
        if links:
            entries = self._linked(links, first, frame, sequence)
            look = asyncio.create_task(self._look(entries))
            return _Upload(size, first, frame, len(entries), look, made.more, links)
        entry = made.entry
        task = None if entry is None else asyncio.create_task(self.put(entry, made.data))
        return _Upload(size, first, frame, int(entry is not None), task, made.more)

    def _wanted(self, sequence: int) -> Wanted:
        host, log, cursor = self._host, self.log, self._cursor
        settings, files = host.settings, log.files.all()
        # Where acks wait for the bucket, an object should be there soon rather than be large.
        soon = log.durability is Durability.CLOUD
        return Wanted(
            topic=self.topic,
            files=[replace(file, table=None) for file in files if file.sequence >= cursor.sequence],
            cursor=cursor,
            deletions=Deletions.of(log.state),
            collect_bytes=settings.batch_bytes_max,
            object_bytes=settings.object_bytes_max // 2,
            wal_bytes_max=settings.batch_bytes_max if soon else settings.backlog_bytes_max,
            epoch=self.epoch,
            created_us=host.clock.now_us(),
            unique=unique_name(),
            backend=host.store.backend,
            sequence=sequence,
        )

    def _linked(
        self, links: Sequence[LinkFrame], first_frame: int, next_frame: int, sequence: int
    ) -> list[ObjectEntry]:
        entries = linked.entries_of(
            links,
            created_at=self._host.clock.now_us(),
            backend=self._host.store.backend,
            epoch=self.epoch,
            first_frame=first_frame,
            next_frame=next_frame,
        )
        return [
            msgspec.structs.replace(entry, sequence=sequence + n) for n, entry in enumerate(entries)
        ]

    async def _look(self, entries: Sequence[ObjectEntry]) -> list[ObjectEntry]:
        """Look at linked objects, a few at a time; a damaged one is entered as it is: its offsets
        are given out, and whoever reads them is told.
        """
        slots = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(entry: ObjectEntry) -> ObjectEntry:
            async with slots:
                try:
                    return await self.objects.look(entry)
                except (ObjectMissing, ObjectDamaged) as error:
                    span = entry.ranges[0]
                    self.cold.damaged(
                        PartitionId(span.partition), Offset(span.first), span.next, str(error)
                    )
                    return entry

        return await asyncio.gather(*map(look, entries))

    async def put(self, entry: ObjectEntry, data: Buffer) -> list[ObjectEntry]:
        """Put the object and read it back: the WAL may go only when the bytes are really there."""
        host = self._host
        begun = host.clock.monotonic_ns()
        await self.manifest.note_session(Session(entry.object_id, None, 0, 0, entry))
        with host.counters.in_flight():
            info = await host.store.put(entry.object_id, [data])
        entry = msgspec.structs.replace(entry, etag=info.etag)
        if not await is_whole(host.store, entry):
            raise ObjectDamaged(
                entry.object_id, 0, entry.start_offset, entry.end_offset + 1, "it reads back wrong"
            )
        host.counters.uploaded(entry.size, host.clock.monotonic_ns() - begun)
        return [entry]

    async def _finish(self, upload: _Upload) -> None:
        entries = [] if upload.task is None else await upload.task
        frame, links = upload.next_frame, upload.links
        if entries or links or self._deletions_noted != self.log.state.deletions:
            # Only now: a successor must not take a link for done whose objects it does not have.
            known = self.log.state.transactions
            transactions = linked.transactions(self.manifest.head.transactions, links, known)
            await self.commit(
                entries, follows=upload.first_frame, uploaded_frame=frame, transactions=transactions
            )
        self.log.writer.uploaded(frame)

    def _head(self) -> Head:
        """The head to be, with deletions and starts as the log has them now."""
        state, head = self.log.state, self.manifest.head
        head = msgspec.structs.replace(
            head,
            change=unique_name(),
            epoch=self.epoch,
            lineage=state.lineage,
            durability=state.durability.value,
        )
        if self._gap is not None and head.lineage != self.manifest.head.lineage:
            head = with_gap(head, self._gap)
        if self._deletions_noted == state.deletions:
            return head
        return msgspec.structs.replace(head, starts=state.starts(), deletes=state.deleted())

    async def commit(
        self,
        added: Sequence[ObjectEntry] = (),
        removed: Sequence[ObjectEntry] = (),
        follows: int | None = None,
        **changes: int | Transactions | list[Gap],
    ) -> None:
        """Make a change of the manifest, with `changes` of the head; one at a time.

        One that `follows` a frame is made only where no later frame is uploaded: an earlier try may
        have come through by now.
        """
        begun = self._host.clock.monotonic_ns()
        async with self._committing:
            if self.manifest.doubtful:
                await self.manifest.load()
            if follows is not None and self.uploaded_frame > follows:
                raise MetadataUnavailable("these frames were uploaded by an earlier try")
            noted, head, known = self.log.state.deletions, self._head(), self.manifest.head
            if changes.keys() == {"reserved"} and not deletes_fit(head):
                # Producers wait for it: it is made without the bucket, where so many deletions go.
                noted = self._deletions_noted
                head = msgspec.structs.replace(head, starts=known.starts, deletes=known.deletes)
            highest = max([head.next_sequence, *(entry.sequence + 1 for entry in added)])
            head = msgspec.structs.replace(head, next_sequence=highest, **changes)
            await self.manifest.commit(head, added, removed, self._host.trash_until_us())
            self._deletions_noted = noted
        self._host.counters.committed(self._host.clock.monotonic_ns() - begun)

    async def replace(self, run: Sequence[ObjectEntry], merged: Sequence[ObjectEntry]) -> None:
        """Let merged objects count in the place of those they were made from."""
        await self.commit(merged, run)

    async def drop(self, entries: Sequence[ObjectEntry]) -> None:
        """Take objects out of the manifest; they go to the trash."""
        for start in range(0, len(entries), REMOVED_MAX):
            await self.commit(removed=entries[start : start + REMOVED_MAX])

    @asynccontextmanager
    async def claimed(self, object_ids: Collection[str]) -> AsyncIterator[None]:
        """Objects to be linked within this block, which may have been linked before: they are taken
        out of the trash, and do not go there meanwhile; raises what `Manifest.claim` does.
        """
        claimed, grace_us = self.manifest.claimed, int(self._host.settings.trash_seconds * 1e6)
        claimed.update(object_ids)
        try:
            # A drop that is under way began before; and clocks of brokers may differ a bit.
            async with self._committing:
                await self.manifest.claim(object_ids, self.clock.now_us() + grace_us // 2)
            yield
        finally:
            claimed.subtract(object_ids)
            for object_id in object_ids:
                if not claimed[object_id]:
                    del claimed[object_id]

    async def link(self, app: str, epoch: int, objects: Objects, subjects: bytes = b"") -> Ranges:
        """Give offsets to rows that lie in objects already, as `Log.link` does, however many."""
        rows = max((sum(ref.rows for ref in refs) for refs in objects.values()), default=0)
        await self.reserve(rows)
        return await self.log.link(app, epoch, objects, subjects)

    async def reserve(self, more: int = 0) -> None:
        """Reserve offsets ahead, so that no successor gives one out again; `more` than usual."""
        if self.needs_reservation or more > self._host.settings.reserve_offsets // 2:
            ahead = more + self._host.settings.reserve_offsets
            await self.commit(reserved=min(self._highest + ahead, OFFSET_MAX))
        self.log.writer.offset_limit = self.manifest.head.reserved

    @property
    def _highest(self) -> int:
        return max([self.log.state.floor, *self.log.state.nexts.values()])


async def _cancel(tasks: Sequence[asyncio.Task[list[ObjectEntry]]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
