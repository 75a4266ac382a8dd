"""The tiers of one topic: its uploads, its manifest, its cold reads.

    collect frames -> Parquet object -> put -> read back -> manifest transaction

A round prepares several objects while the first ones are on their way; their manifest transactions
are made in frame order. The manifest decides what counts: an object without an entry is garbage,
and a crash at any step is redone from the WAL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import structlog
from crc32c import crc32c

from penstock.formats.frames import FILE_HEADER_BYTES
from penstock.formats.objects import Range
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.threads import Workers
from penstock.log.collect import Collected, Cursor
from penstock.log.log import Log
from penstock.log.read import InObjects
from penstock.log.reader import READ_BYTES
from penstock.model.batch import Batch, Columns
from penstock.model.errors import DataDamaged
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects.interface import ObjectMissing, ObjectStore
from penstock.tiers.build import Built, build
from penstock.tiers.counters import TierCounters
from penstock.tiers.entries import Head, ObjectEntry, Session
from penstock.tiers.manifest import Manifest
from penstock.tiers.object_reader import ObjectDamaged, ObjectReader
from penstock.tiers.settings import TierSettings

OBJECTS_PER_ROUND: Final = 4
_events = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TierHost:
    """What all topics' tiers share."""

    store: ObjectStore
    settings: TierSettings
    clock: Clock
    threads: Workers
    counters: TierCounters


@dataclass(slots=True)
class _Upload:
    """One object on its way."""

    built: Built | None
    collected: Collected
    task: asyncio.Task[ObjectEntry] | None


class TopicTier:
    """Uploads and cold reads of a topic that this broker owns."""

    def __init__(
        self, host: TierHost, topic: TopicName, log: Log, manifest: Manifest, epoch: int
    ) -> None:
        self.topic, self.log, self.manifest = topic, log, manifest
        self._host, self._epoch = host, epoch
        self._objects = ObjectReader(host.store, host.threads)
        self._cursor = Cursor(0, 0, FILE_HEADER_BYTES)
        self._deletions_noted = -1
        log.lookup.in_objects = lambda partition, offset: (
            manifest.index.find(partition, offset) is not None
        )

    @property
    def uploaded_frame(self) -> int:
        return self.manifest.head.uploaded_frame

    @property
    def behind(self) -> bool:
        """Whether durable frames have not been looked at yet."""
        return self._cursor.frame < self.log.writer.durable_number

    # -- opening

    async def open(self) -> None:
        """Finish or abort what a crash left, then take up where the manifest ends."""
        await self.manifest.load()
        for session in await self.manifest.sessions():
            await self._settle_session(session)
        self._rewind()
        await self.reserve()

    async def _settle_session(self, session: Session) -> None:
        """An upload that a crash interrupted: it counts if it is whole and next, else it goes."""
        entry, counters = session.entry, self._host.counters
        if entry.first_frame == self.uploaded_frame and await self._whole(entry):
            frame = entry.next_frame
            await self._commit(msgspec.structs.replace(self._head(), uploaded_frame=frame), [entry])
            counters.sessions_completed += 1
        else:
            await self._host.store.abort_uploads(entry.object_id)
            await self._host.store.delete(entry.object_id)
            await self.manifest.forget_session(session)
            counters.sessions_aborted += 1
        _events.info("upload_session_settled", topic=str(self.topic), object=entry.object_id)

    async def _whole(self, entry: ObjectEntry) -> bool:
        try:
            data = await self._host.store.get(entry.object_id)
        except ObjectMissing:
            return False
        return len(data) == entry.size and crc32c(data) == entry.crc32c

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
        uploads: list[_Upload] = []
        size = 0
        try:
            while len(uploads) < OBJECTS_PER_ROUND:
                upload = await self._prepare(sum(u.built is not None for u in uploads))
                if upload is None:
                    break
                size += upload.collected.size_bytes
                uploads.append(upload)
            for upload in uploads:
                await self._finish(upload)
            if not uploads and self._deletions_noted != self.log.state.deletions:
                await self._commit(self._head(), [])
        except BaseException:
            for upload in uploads:
                if upload.task is not None:
                    upload.task.cancel()
            self._rewind()
            raise
        return size

    async def _prepare(self, ahead: int) -> _Upload | None:
        """Collect and encode the next object and begin to put it."""
        host, first = self._host, self._cursor
        collected = await self.log.files.collect(
            first, host.settings.batch_bytes_max, self.log.state.gap_is_recorded
        )
        if collected.cursor.frame <= first.frame:
            return None
        built = await host.threads.run(
            build,
            self.topic,
            collected,
            first.frame,
            lambda partition: self.log.state.bitmap(PartitionId(partition)),
            self._epoch,
            host.clock.now_us(),
            unique_name(),
            host.store.backend,
            self.manifest.head.next_sequence + ahead,
        )
        self._cursor = collected.cursor
        task = None if built is None else asyncio.create_task(self._put(built))
        return _Upload(built, collected, task)

    async def _put(self, built: Built) -> ObjectEntry:
        """Put the object and read it back: the WAL may go only when the bytes are really there."""
        entry, host = built.entry, self._host
        begun = host.clock.monotonic_ns()
        await self.manifest.note_session(Session(entry.object_id, None, 0, 0, entry))
        with host.counters.in_flight():
            info = await host.store.put(entry.object_id, [memoryview(built.data)])
        entry = msgspec.structs.replace(entry, etag=info.etag)
        if not await self._whole(entry):
            raise ObjectDamaged(
                entry.object_id, 0, entry.start_offset, entry.end_offset + 1, "it reads back wrong"
            )
        host.counters.uploaded(entry.size, host.clock.monotonic_ns() - begun)
        return entry

    async def _finish(self, upload: _Upload) -> None:
        entries = []
        if upload.task is not None:
            entries = [await upload.task]
        frame = upload.collected.cursor.frame
        if entries or self._deletions_noted != self.log.state.deletions:
            head = msgspec.structs.replace(self._head(), uploaded_frame=frame)
            await self._commit(head, entries)
        self.log.writer.uploaded(frame)

    def _head(self) -> Head:
        """The head to be, with deletions and starts as the log has them now."""
        state, head = self.log.state, self.manifest.head
        transactions = {a: (t.epoch, t.ranges) for a, t in state.transactions.items()}
        head = msgspec.structs.replace(
            head,
            change=unique_name(),
            epoch=self._epoch,
            lineage=state.lineage,
            durability=state.durability.value,
            transactions=transactions,
        )
        if self._deletions_noted == state.deletions:
            return head
        return msgspec.structs.replace(head, starts=state.starts(), deletes=state.deleted())

    async def _commit(
        self,
        head: Head,
        added: Sequence[ObjectEntry],
        removed: Sequence[ObjectEntry] = (),
    ) -> None:
        begun = self._host.clock.monotonic_ns()
        noted = self.log.state.deletions
        highest = max((entry.sequence + 1 for entry in added), default=0)
        head = msgspec.structs.replace(head, next_sequence=max(head.next_sequence, highest))
        grace = int(self._host.settings.trash_seconds * 1_000_000)
        until = self._host.clock.now_us() + grace
        await self.manifest.commit(head, added, removed, until, session=True)
        self._deletions_noted = noted
        self._host.counters.committed(self._host.clock.monotonic_ns() - begun)

    async def replace(self, run: Sequence[ObjectEntry], built: Built) -> None:
        """Put a merged object in the place of the objects it was made from."""
        entry = await self._put(built)
        await self._commit(self._head(), [entry], run)

    async def drop(self, entries: Sequence[ObjectEntry]) -> None:
        """Take objects out of the manifest; they go to the trash."""
        await self._commit(self._head(), [], entries)

    async def reserve(self) -> None:
        """Reserve offsets ahead, so that no successor gives one out again."""
        ahead = self._host.settings.reserve_offsets
        highest = max(self.log.state.nexts.values(), default=0)
        if highest + ahead // 2 > self.manifest.head.reserved:
            head = msgspec.structs.replace(self._head(), reserved=highest + ahead)
            await self._commit(head, [])
        self.log.writer.offset_limit = self.manifest.head.reserved

    # -- reading

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset that is not older than `timestamp`, wherever it is."""
        for entry in sorted(self.manifest.index, key=lambda entry: entry.sequence):
            span = next((s for s in entry.ranges if s.partition == partition), None)
            if span is None or entry.last_timestamp < timestamp:
                continue
            if span.first >= self.log.files.start(partition):
                break
            offset = Offset(max(span.first, self.log.start_offset(partition)))
            while offset < span.next:
                batch = (
                    await self.read(InObjects(partition, offset, Offset(span.next), ()), offset)
                )[0]
                stamps = batch.timestamp_column().to_numpy()
                position = int(np.searchsorted(stamps, timestamp))
                if position < batch.messages:
                    return self.log.state.next_live(
                        partition, Offset(int(batch.offsets()[position]))
                    )
                offset = batch.next_offset
        return await self.log.offset_at(partition, timestamp)

    async def read(self, where: InObjects, offset: Offset) -> list[Batch]:
        """Batches from `offset` on; an empty one when the object has no messages from there on.

        Raises DataDamaged when no object has the offset, or the one that should is damaged.
        """
        for _ in range(2):
            found = self.manifest.index.find(where.partition, offset)
            if found is None:
                break
            entry, span = found
            try:
                batches = await self._objects.read(entry, span, offset, READ_BYTES)
            except ObjectMissing:
                continue
            except ObjectDamaged as error:
                raise self._damaged(where.partition, offset, span.next, str(error)) from error
            return batches or [_empty(span, offset)]
        following = self.manifest.index.next_first(where.partition, offset)
        end = min(following or where.next_offset, where.next_offset)
        raise self._damaged(where.partition, offset, end, "no object has it")

    def _damaged(
        self, partition: PartitionId, first: Offset, next_: int, cause: str
    ) -> DataDamaged:
        _events.error(
            "data_damaged", topic=str(self.topic), partition=partition, first=first, cause=cause
        )
        return DataDamaged(str(self.topic), partition, first, Offset(next_), cause)


def _empty(span: Range, offset: Offset) -> Batch:
    columns = Columns(b"", pa.array([], pa.binary()))
    nothing = np.empty(0, np.int64)
    count = span.next - offset
    return Batch(
        PartitionId(span.partition), offset, count, Microseconds(0), columns, None, nothing
    )
