"""Builds an object from messages that were collected from the WAL. Runs in a thread or process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

import pyarrow as pa

from penstock.formats import objects as form
from penstock.formats.objects import OBJECT_VERSION, ObjectFacts, ObjectWriter
from penstock.host.shared_memory import SharedFile, mapped_view, writable_path
from penstock.log import Collected
from penstock.model.batch import Batch
from penstock.model.columns import Columns, content_bytes
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.tiers.deletions import Deletions
from penstock.tiers.manifest.entries import ObjectEntry, joined_ranges, new_entry

SINK_BYTES: Final = 256 << 10
"""The size of a write to the object's memory."""


class ObjectBuilder:
    """Encodes messages into one object as they are added.

    However large the object becomes, only its last part is in memory in another form as well.
    """

    def __init__(self, topic: TopicName, first_frame: int, memory: SharedFile) -> None:
        """The object is written to `memory`."""
        self._topic, self._first_frame, self._next_frame = topic, first_frame, first_frame
        self._memory = memory
        with writable_path(memory) as path:
            self._sink = pa.BufferedOutputStream(pa.OSFile(path, "w"), SINK_BYTES)
        self._writer: ObjectWriter | None = None
        self._schema: pa.Schema | None = None
        """The schema of a typed topic's own columns."""
        self._ranges: list[PartitionRange] = []
        self._rows = 0
        self._first_timestamps: list[int] = []
        self._last_timestamps: list[int] = []
        self._raw_size = 0

    @property
    def size(self) -> int:
        """The bytes of the object so far."""
        return 0 if self._writer is None else self._writer.size

    def can_add(
        self, collected: Collected, gap_is_recorded: Callable[[PartitionRange], bool]
    ) -> bool:
        """Whether these messages can extend the object: they have the same schema and the same
        single partition, and follow without a gap that is not recorded.

        More partitions would break the order of rows, which is by partition.
        """
        if collected.links:
            return False
        if not self._ranges or not collected.batches:
            return True
        ranges = [*self._ranges, *_ranges(collected.batches)]
        if len({span.partition for span in ranges}) > 1:
            return False
        gap = PartitionRange(ranges[0].partition, ranges[0].next, ranges[-1].first)
        follows = gap.first == gap.next or gap_is_recorded(gap)
        return follows and self._schema == _own_schema(collected.batches[0])

    def add(self, collected: Collected, deletions: Deletions) -> None:
        """Encode the messages of these batches that are not deleted."""
        self._next_frame = collected.cursor.frame
        if not collected.batches:
            return
        batches = sorted(collected.batches, key=lambda batch: (batch.partition, batch.first_offset))
        live = [deletions.without_deleted(batch) for batch in batches]
        self._schema = _own_schema(batches[0])
        self._ranges = joined_ranges([*self._ranges, *_ranges(batches)])
        self._rows += sum(batch.messages for batch in live)
        self._first_timestamps.append(min(batch.first_timestamp for batch in batches))
        self._last_timestamps.append(max(batch.last_timestamp for batch in batches))
        self._raw_size += sum(content_bytes(batch.content) for batch in live)
        table = form.storable(live)
        if table is not None:
            if self._writer is None:
                self._writer = ObjectWriter(self._sink, table.schema, self._schema is not None)
            self._writer.write(table)

    def finish(
        self, epoch: int, created_us: int, unique: str, backend: str, sequence: int
    ) -> ObjectEntry | None:
        """Complete the object and return its manifest entry; None if no offsets were added."""
        if not self._ranges:
            return None
        schema = self._schema
        facts = ObjectFacts(
            version=OBJECT_VERSION,
            topic=str(self._topic),
            ranges=self._ranges,
            rows=self._rows,
            first_timestamp=min(self._first_timestamps),
            last_timestamp=max(self._last_timestamps),
            epoch=epoch,
            first_frame=self._first_frame,
            next_frame=self._next_frame,
            typed=schema is not None,
            schema=b"" if schema is None else schema.serialize().to_pybytes(),
        )
        if self._writer is None:
            self._writer = ObjectWriter(self._sink, form.stored_schema(facts), facts.typed)
        self._writer.finish(facts)
        self._sink.close()
        data = mapped_view(self._memory)
        key = form.object_key(self._topic, created_us, self._ranges, unique)
        return new_entry(key, facts, data, created_us, backend, sequence, self._raw_size)


def _own_schema(batch: Batch) -> pa.Schema | None:
    """The schema of a typed topic's rows; None for raw messages."""
    return None if isinstance(batch.content, Columns) else batch.content.schema


def _ranges(batches: Iterable[Batch]) -> Iterable[PartitionRange]:
    """The range of each partition; the batches are ordered by partition and offset."""
    for partition, group in groupby(batches, key=lambda batch: batch.partition):
        in_partition = list(group)
        yield PartitionRange(partition, in_partition[0].first_offset, in_partition[-1].next_offset)
