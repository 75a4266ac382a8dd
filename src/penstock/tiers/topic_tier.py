"""The tiers of one topic: its uploads, its manifest and its cold reads.

    collect frames -> Parquet object -> put -> read back -> manifest transaction

A round prepares several objects while the first ones are being put; their manifest transactions are
made in frame order. Linked objects are in the bucket already: they are inspected and entered into
the manifest. The manifest decides which objects exist for readers: an object without an entry is
garbage, and after a crash at any step the round is repeated from the WAL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.formats.frames import FILE_HEADER_BYTES
from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Tasks
from penstock.host.threads import WorkerThreads
from penstock.log import Cursor, LinkFrame, Log, Objects, Ranges
from penstock.metadata import MetadataUnavailable
from penstock.metadata.ownership import Epoch
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import TopicName
from penstock.model.resources import Durability
from penstock.model.units import Offset, PartitionId
from penstock.objects import Buffer, ObjectMissing, ObjectStore
from penstock.tiers.counters import TierCounters
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import (
    Gap,
    Head,
    ObjectEntry,
    Transactions,
    UploadSession,
    with_gap,
)
from penstock.tiers.manifest.manifest import REMOVED_MAX, Manifest
from penstock.tiers.reading import linked_objects
from penstock.tiers.reading.cold_reads import ColdReads
from penstock.tiers.reading.object_reader import ObjectReader, ObjectRowsDamaged
from penstock.tiers.reading.object_subjects import ObjectSubjects
from penstock.tiers.settings import TierSettings
from penstock.tiers.upload.next_object import ObjectRequest, make_object
from penstock.tiers.upload.upload_sessions import is_intact

OBJECTS_PER_ROUND: Final = 4
ROUND_BYTES: Final = 96 << 20
"""A round of this size begins no further object, since objects that are being put are in memory."""
INSPECTIONS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class TierHost:
    """The parts of a broker that the tiers of all topics share."""

    store: ObjectStore
    settings: TierSettings
    clock: Clock
    threads: WorkerThreads
    child: Child
    counters: TierCounters

    def trash_until_us(self) -> int:
        """When an object that leaves the manifest now may be deleted."""
        return self.clock.now_us() + int(self.settings.trash_seconds * 1_000_000)


@dataclass(slots=True)
class _Upload:
    """Frames that are being uploaded."""

    size_bytes: int
    first_frame: int
    next_frame: int
    entries: int
    task: asyncio.Task[list[ObjectEntry]] | None
    more: bool
    """Whether many more frames may be waiting."""
    links: Sequence[LinkFrame] = ()


class TopicTier:
    """Uploads and reads a topic that this broker owns."""

    def __init__(
        self,
        host: TierHost,
        topic: TopicName,
        log: Log,
        manifest: Manifest,
        epoch: Epoch,
        gap: Gap | None = None,
    ) -> None:
        """`gap` is what the takeover skipped; the first change of the manifest records it."""
        self.topic, self.log, self.manifest, self.store = topic, log, manifest, host.store
        self._gap = gap
        self._host, self.epoch, self.clock = host, epoch, host.clock
        self.objects = ObjectReader(host.store, host.threads, host.child, topic.topic.encode())
        self.cold = ColdReads(topic, log, manifest, self.objects)
        self.read, self.offset_at = self.cold.read, self.cold.offset_at
        self._cursor = Cursor(0, 0, FILE_HEADER_BYTES)
        self._opened_frame = 0
        self._deletions_recorded = -1
        """The log's count of deletions when they were last written to the manifest."""
        self._committing = asyncio.Lock()
        self._tasks = Tasks()
        log.lookup.attach_objects(
            lambda partition, offset: manifest.index.find(partition, offset) is not None
        )

    @property
    def uploaded_frame(self) -> int:
        return self.manifest.head.uploaded_frame

    @property
    def collected_frame(self) -> int:
        """The next frame to collect."""
        return self._cursor.frame

    @property
    def backlog_bytes(self) -> int:
        """The size of the WAL files that are not collected to their end."""
        if self.collected_frame >= self.log.writer.durable_number:
            return 0
        first = self._cursor.sequence
        return sum(file.end for file in self.log.files.all() if file.sequence >= first)

    @property
    def needs_reservation(self) -> bool:
        """Whether less than half of the reserved offsets remain."""
        half = self._host.settings.reserve_offsets // 2
        return min(self._highest + half, OFFSET_MAX) > self.manifest.head.reserved

    @property
    def linked_frame(self) -> int:
        """All durable links are below this frame."""
        return max(self._opened_frame, self.log.state.linked_frame)

    # -- opening

    async def open(self) -> None:
        """Continue where the manifest ends."""
        self._rewind()
        if self._gap is not None:
            await self.manifest.remove_invalid_entries()
        self._opened_frame = self.log.writer.durable_number
        subjects = ObjectSubjects(self.topic, self.log, self.manifest, self.objects)
        self.log.index.recall(subjects)
        await self.reserve()

    def _rewind(self) -> None:
        """Collect again from the end of the manifest."""
        frame = self.uploaded_frame
        files = self.log.files.all()
        file = next((f for f in reversed(files) if f.header.first_frame <= frame), files[0])
        self._cursor = Cursor(frame, file.sequence, FILE_HEADER_BYTES)

    # -- uploading

    async def upload_round(self) -> int:
        """Upload durable frames, in at most a few objects; returns the size of these frames.

        Raises what the stores raise; the next round repeats what was not committed.
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
            if not uploads and self._deletions_recorded != self.log.state.deletions:
                await self.commit()
        except BaseException:
            await _cancel([upload.task for upload in uploads if upload.task is not None])
            self._rewind()
            raise
        return size

    async def refresh(self) -> None:
        """Read the manifest again if the last change was not answered."""
        async with self._committing:
            if self.manifest.doubtful:
                await self.manifest.load()
                self._rewind()
        # Another change may have found out that an unanswered upload was committed.
        if self._cursor.frame < self.uploaded_frame:
            self._rewind()
        self.log.writer.uploaded(self.uploaded_frame)

    async def _prepare(self, ahead: int) -> _Upload | None:
        """Make the next object and begin to put it, or begin to inspect linked objects.

        `ahead` is the number of entries in prepared uploads. Returns None if no frame is new.
        """
        sequence = self.manifest.head.next_sequence + ahead
        host, request = self._host, self._request(sequence)
        result = await make_object(request, self.log.files.disk, host.threads, host.child)
        first, frame = request.cursor.frame, result.cursor.frame
        if frame <= first:
            return None
        self._cursor = result.cursor
        size, links, entry = result.size_bytes, result.links, result.entry
        if links:
            entries = self._linked_entries(links, first, frame, sequence)
            inspection = self._tasks.start(self._inspect(entries))
            return _Upload(size, first, frame, len(entries), inspection, result.more, links)
        task = None if entry is None else self._tasks.start(self.put(entry, result.data))
        return _Upload(size, first, frame, int(entry is not None), task, result.more)

    def _request(self, sequence: int) -> ObjectRequest:
        host, log, cursor = self._host, self.log, self._cursor
        settings, files = host.settings, log.files.all()
        # Where acks wait for the bucket, an early object is better than a large one.
        early = log.durability is Durability.CLOUD
        return ObjectRequest(
            topic=self.topic,
            files=[replace(file, table=None) for file in files if file.sequence >= cursor.sequence],
            cursor=cursor,
            deletions=Deletions.of(log.state),
            collect_bytes=settings.batch_bytes_max,
            object_bytes=settings.object_bytes_max // 2,
            wal_bytes_max=settings.batch_bytes_max if early else settings.backlog_bytes_max,
            child_bytes_min=settings.child_bytes_min,
            epoch=self.epoch,
            created_us=host.clock.now_us(),
            unique=unique_name(),
            backend=host.store.backend,
            sequence=sequence,
        )

    def _linked_entries(
        self, links: Sequence[LinkFrame], first_frame: int, next_frame: int, sequence: int
    ) -> list[ObjectEntry]:
        entries = linked_objects.entries_of(
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

    async def _inspect(self, entries: Sequence[ObjectEntry]) -> list[ObjectEntry]:
        """Complete the entries of linked objects with facts from the objects.

        The entry of a damaged object remains as it is: its offsets are assigned, and reading them
        raises an error.
        """
        slots = asyncio.Semaphore(INSPECTIONS_AT_ONCE)

        async def inspect(entry: ObjectEntry) -> ObjectEntry:
            async with slots:
                try:
                    return await self.objects.inspect_linked(entry)
                except (ObjectMissing, ObjectRowsDamaged) as error:
                    span = entry.ranges[0]
                    self.cold.damaged(
                        PartitionId(span.partition), Offset(span.first), span.next, str(error)
                    )
                    return entry

        return await asyncio.gather(*map(inspect, entries))

    async def put(self, entry: ObjectEntry, data: Buffer) -> list[ObjectEntry]:
        """Put the object and verify it by reading it back, since the WAL may be deleted after it.

        Returns its entry, with the store's version of the object.
        """
        host = self._host
        begin_ns = host.clock.monotonic_ns()
        await self.manifest.record_session(UploadSession(entry.object_id, None, 0, 0, entry))
        with host.counters.in_flight():
            info = await host.store.put(entry.object_id, [data])
        entry = msgspec.structs.replace(entry, etag=info.etag)
        if not await is_intact(host.store, entry):
            raise ObjectRowsDamaged.of_entry(entry, "it reads back wrong")
        host.counters.uploaded(entry.size, host.clock.monotonic_ns() - begin_ns)
        return [entry]

    async def _finish(self, upload: _Upload) -> None:
        entries = [] if upload.task is None else await upload.task
        frame, links = upload.next_frame, upload.links
        if entries or links or self._deletions_recorded != self.log.state.deletions:
            # In one change: a successor must not know of a link without its objects.
            known = self.log.state.transactions
            transactions = linked_objects.updated_transactions(
                self.manifest.head.transactions, links, known
            )
            await self.commit(
                entries, follows=upload.first_frame, uploaded_frame=frame, transactions=transactions
            )
        self.log.writer.uploaded(frame)

    def _head(self) -> Head:
        """The next head, with the current deletions and log start offsets of the log."""
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
        if self._deletions_recorded == state.deletions:
            return head
        return msgspec.structs.replace(head, starts=state.starts(), deletes=state.deleted())

    async def commit(
        self,
        added: Sequence[ObjectEntry] = (),
        removed: Sequence[ObjectEntry] = (),
        follows: int | None = None,
        **changes: int | Transactions | list[Gap],
    ) -> None:
        """Change the entries, and the head by `changes`; one change at a time.

        A change that `follows` a frame is refused with MetadataUnavailable if a later frame is in
        the manifest: an earlier attempt of it has succeeded.
        """
        begin_ns = self._host.clock.monotonic_ns()
        async with self._committing:
            if self.manifest.doubtful:
                await self.manifest.load()
            if follows is not None and self.uploaded_frame > follows:
                raise MetadataUnavailable("these frames were uploaded by an earlier try")
            recorded, head = self.log.state.deletions, self._head()
            if changes.keys() == {"reserved"} and not self.manifest.has_room_for_deletes(head):
                # Producers wait for a reservation, so it must not depend on the bucket, where large
                # delete vectors are: it leaves deletions out.
                known = self.manifest.head
                recorded = self._deletions_recorded
                head = msgspec.structs.replace(head, starts=known.starts, deletes=known.deletes)
            highest = max([head.next_sequence, *(entry.sequence + 1 for entry in added)])
            head = msgspec.structs.replace(head, next_sequence=highest, **changes)
            await self.manifest.commit(head, added, removed, self._host.trash_until_us())
            self._deletions_recorded = recorded
        self._host.counters.committed(self._host.clock.monotonic_ns() - begin_ns)

    async def replace(self, replaced: Sequence[ObjectEntry], merged: Sequence[ObjectEntry]) -> None:
        """Replace objects in the manifest by the merged ones that were made from them."""
        await self.commit(merged, replaced)

    async def remove_entries(self, entries: Sequence[ObjectEntry]) -> None:
        """Remove objects from the manifest and move them to the trash."""
        for start in range(0, len(entries), REMOVED_MAX):
            await self.commit(removed=entries[start : start + REMOVED_MAX])

    @asynccontextmanager
    async def claimed(self, object_ids: Collection[str]) -> AsyncIterator[None]:
        """Keep objects that are linked within this block out of the trash.

        They may be there already if they were linked before. Raises what `Manifest.claim` raises.
        """
        claimed, grace_us = self.manifest.claimed, int(self._host.settings.trash_seconds * 1e6)
        claimed.update(object_ids)
        try:
            # The lock excludes a removal that began before; half of the grace time allows for the
            # difference between the clocks of brokers.
            async with self._committing:
                await self.manifest.claim(object_ids, self.clock.now_us() + grace_us // 2)
            yield
        finally:
            claimed.subtract(object_ids)
            for object_id in object_ids:
                if not claimed[object_id]:
                    del claimed[object_id]

    async def link(self, app: str, epoch: int, objects: Objects, subjects: bytes = b"") -> Ranges:
        """Assign offsets to the rows of objects with `Log.link`, after reserving enough offsets."""
        rows = max((sum(ref.rows for ref in refs) for refs in objects.values()), default=0)
        await self.reserve(rows)
        return await self.log.link(app, epoch, objects, subjects)

    async def reserve(self, more: int = 0) -> None:
        """Reserve offsets that no successor will assign again, `more` than usual if necessary."""
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
