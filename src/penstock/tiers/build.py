"""Make an object from what is collected from the WAL. Its calls are for a thread."""

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
from penstock.tiers.entries import ObjectEntry, entry_of, joined

SINK_BYTES: Final = 256 << 10
"""Bytes of an object that are written at once."""


class Building:
    """An object under way. What is added is encoded at once, so that however large the object gets,
    only its last part is in memory in other forms, too.
    """

    def __init__(self, topic: TopicName, first_frame: int, memory: SharedFile) -> None:
        """Its bytes go to `memory`."""
        self._topic, self._first_frame, self._next_frame = topic, first_frame, first_frame
        self._memory = memory
        with writable_path(memory) as path:
            self._sink = pa.BufferedOutputStream(pa.OSFile(path, "w"), SINK_BYTES)
        self._writer: ObjectWriter | None = None
        self._schema: pa.Schema | None = None
        """Of a typed topic's own columns."""
        self._ranges: list[PartitionRange] = []
        self._rows = 0
        self._first_timestamps: list[int] = []
        self._last_timestamps: list[int] = []
        self._raw_size = 0

    @property
    def size(self) -> int:
        """Bytes of the object so far."""
        return 0 if self._writer is None else self._writer.size

    def takes(
        self, collected: Collected, gap_is_recorded: Callable[[PartitionRange], bool]
    ) -> bool:
        """Whether these may be added: messages like those that are here, behind them in the one
        partition that both have, since rows are in the order of partitions.
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
        """Encode what is left of these batches."""
        self._next_frame = collected.cursor.frame
        if not collected.batches:
            return
        batches = sorted(collected.batches, key=lambda batch: (batch.partition, batch.first_offset))
        kept = [deletions.without(batch) for batch in batches]
        self._schema = _own_schema(batches[0])
        self._ranges = joined([*self._ranges, *_ranges(batches)])
        self._rows += sum(batch.messages for batch in kept)
        self._first_timestamps.append(min(batch.first_timestamp for batch in batches))
        self._last_timestamps.append(max(batch.last_timestamp for batch in batches))
        self._raw_size += sum(content_bytes(batch.content) for batch in kept)
        table = form.storable(kept)
        if table is not None:
            if self._writer is None:
                self._writer = ObjectWriter(self._sink, table.schema, self._schema is not None)
            self._writer.write(table)

    def finish(
        self, epoch: int, created_us: int, unique: str, backend: str, sequence: int
    ) -> ObjectEntry | None:
        """The entry it will have; None when no offsets were added at all."""
        if not self._ranges:
            return None
        own = self._schema
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
            typed=own is not None,
            schema=b"" if own is None else own.serialize().to_pybytes(),
        )
        if self._writer is None:
            self._writer = ObjectWriter(self._sink, form.stored_schema(facts), facts.typed)
        self._writer.finish(facts)
        self._sink.close()
        data = mapped_view(self._memory)
        key = form.object_key(self._topic, created_us, self._ranges, unique)
        return entry_of(key, facts, data, created_us, backend, sequence, self._raw_size)


def _own_schema(batch: Batch) -> pa.Schema | None:
    """Of the rows of a typed topic."""
    return None if isinstance(batch.content, Columns) else batch.content.schema


def _ranges(batches: Iterable[Batch]) -> Iterable[PartitionRange]:
    for partition, group in groupby(batches, key=lambda batch: batch.partition):
        mine = list(group)
        yield PartitionRange(partition, mine[0].first_offset, mine[-1].next_offset)
