"""Reads messages that are in objects only, by offset and by time, and reports damaged objects."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import structlog

from penstock.log import READ_BYTES, InObjects, Log
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import DataDamaged, LogClosed
from penstock.model.names import TopicName
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects import ObjectMissing
from penstock.tiers.manifest.manifest import Manifest
from penstock.tiers.reading import linked_objects
from penstock.tiers.reading.object_reader import ObjectReader, ObjectRowsDamaged

_events = structlog.get_logger(__name__)


class ColdReads:
    """Reads the uploaded messages of one topic."""

    def __init__(
        self, topic: TopicName, log: Log, manifest: Manifest, objects: ObjectReader
    ) -> None:
        self._topic, self._log, self._manifest, self._objects = topic, log, manifest, objects

    async def offset_at(self, partition: PartitionId, timestamp: Microseconds) -> Offset:
        """The first live offset that is not older than `timestamp`, in an object or in the log."""
        for entry in self._manifest.index.ordered():
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
                timestamps = batch.timestamp_column().to_numpy()
                position = int(np.searchsorted(timestamps, timestamp))
                if position < batch.messages:
                    return self._log.state.next_live(
                        partition, Offset(int(batch.offsets()[position]))
                    )
                offset = batch.next_offset
        return await self._log.offset_at(partition, timestamp)

    async def read(self, where: InObjects, offset: Offset) -> list[Batch]:
        """Batches from `offset` on.

        An empty batch covers offsets without messages: those before `where`, or the remaining ones
        of an object. Raises DataDamaged if no object covers the offset or its object is damaged,
        and LogClosed if objects are deleted because the topic is.
        """
        if offset < where.first_offset:
            return [_empty_batch(where.partition, offset, where.first_offset)]
        end, cause = int(where.next_offset), "no object has it"
        for _ in range(2):
            located = self._manifest.index.find(where.partition, offset)
            located = located or linked_objects.find(where, offset)
            if located is None:
                end = min(self._manifest.index.next_first(where.partition, offset) or end, end)
                break
            entry, span = located
            try:
                batches = await self._objects.read(entry, span, offset, READ_BYTES)
            except ObjectMissing as error:
                end, cause = span.next, str(error)
                continue
            except ObjectRowsDamaged as error:
                raise self.damaged(where.partition, offset, span.next, str(error)) from error
            return batches or [_empty_batch(where.partition, offset, span.next)]
        if self._log.closed:
            raise LogClosed(str(self._topic))
        raise self.damaged(where.partition, offset, end, cause)

    def damaged(self, partition: PartitionId, first: Offset, next_: int, cause: str) -> DataDamaged:
        """Log the damage as an event and return the error to raise."""
        _events.error(
            "data_damaged", topic=str(self._topic), partition=partition, first=first, cause=cause
        )
        return DataDamaged(str(self._topic), partition, first, Offset(next_), cause)


def _empty_batch(partition: int, offset: Offset, next_: int) -> Batch:
    columns = Columns(b"", pa.array([], pa.binary()))
    no_offsets = np.empty(0, np.int64)
    count = next_ - offset
    return Batch(PartitionId(partition), offset, count, Microseconds(0), columns, None, no_offsets)
