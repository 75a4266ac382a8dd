"""Read what only objects have: by offset, by time, and told when it is damaged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import structlog

from penstock.log import READ_BYTES, InObjects, Log
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import DataDamaged, LogClosed
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, Offset, PartitionId, PartitionRange
from penstock.objects import ObjectMissing
from penstock.tiers import linked
from penstock.tiers.manifest import Manifest
from penstock.tiers.object_reader import ObjectDamaged, ObjectReader

_events = structlog.get_logger(__name__)


class ColdReads:
    """Of one topic."""

    def __init__(
        self, topic: TopicName, log: Log, manifest: Manifest, objects: ObjectReader
    ) -> None:
        self._topic, self._log, self._manifest, self._objects = topic, log, manifest, objects

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset that is not older than `timestamp`, wherever it is."""
        for entry in sorted(self._manifest.index, key=lambda entry: entry.sequence):
            span = next((s for s in entry.ranges if s.partition == partition), None)
            if span is None or entry.last_timestamp < timestamp:
                continue
            if span.first >= self._log.files.start(partition):
                break
            offset = Offset(max(span.first, self._log.start_offset(partition)))
            while offset < span.next:
                batch = (
                    await self.read(InObjects(partition, offset, Offset(span.next), ()), offset)
                )[0]
                stamps = batch.timestamp_column().to_numpy()
                position = int(np.searchsorted(stamps, timestamp))
                if position < batch.messages:
                    return self._log.state.next_live(
                        partition, Offset(int(batch.offsets()[position]))
                    )
                offset = batch.next_offset
        return await self._log.offset_at(partition, timestamp)

    async def read(self, where: InObjects, offset: Offset) -> list[Batch]:
        """Batches from `offset` on; an empty one where there are no messages: before `where`, or in
        the object from there on.

        Raises DataDamaged when no object has the offset, or the one that should is damaged, and
        LogClosed when objects go because the topic does.
        """
        if offset < where.first_offset:
            return [_empty(PartitionRange(where.partition, offset, where.first_offset), offset)]
        end, cause = int(where.next_offset), "no object has it"
        for _ in range(2):
            found = self._manifest.index.find(where.partition, offset)
            found = found or linked.find(where, offset)
            if found is None:
                end = min(self._manifest.index.next_first(where.partition, offset) or end, end)
                break
            entry, span = found
            try:
                batches = await self._objects.read(entry, span, offset, READ_BYTES)
            except ObjectMissing as error:
                end, cause = span.next, str(error)
                continue
            except ObjectDamaged as error:
                raise self.damaged(where.partition, offset, span.next, str(error)) from error
            return batches or [_empty(span, offset)]
        if self._log.closed:
            raise LogClosed(str(self._topic))
        raise self.damaged(where.partition, offset, end, cause)

    def damaged(self, partition: PartitionId, first: Offset, next_: int, cause: str) -> DataDamaged:
        """What to raise; told as an event, too."""
        _events.error(
            "data_damaged", topic=str(self._topic), partition=partition, first=first, cause=cause
        )
        return DataDamaged(str(self._topic), partition, first, Offset(next_), cause)


def _empty(span: PartitionRange, offset: Offset) -> Batch:
    columns = Columns(b"", pa.array([], pa.binary()))
    nothing = np.empty(0, np.int64)
    count = span.next - offset
    return Batch(
        PartitionId(span.partition), offset, count, Microseconds(0), columns, None, nothing
    )
