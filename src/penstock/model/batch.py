"""Batches: messages of one partition with their offsets, as they are stored and read.

Servers append runs and readers receive batches, never single messages. The columns of a batch are
Arrow arrays, so that a batch of any size is a handful of Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.columns import Columns, held_bytes
from penstock.model.units import Microseconds, Offset, PartitionId

BATCH_OVERHEAD_BYTES: Final = 512
"""Memory of a cached batch beyond its bytes: the Python and Arrow objects around them."""

ENVELOPE: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("subject", pa.binary(), nullable=False),
        pa.field("headers", pa.binary(), nullable=True),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
"""Columns of a raw message as a row; null or empty headers mean that it has none."""


class OffsetSet(Protocol):
    """An ordered set of offsets, such as a roaring bitmap."""

    def range_cardinality(self, start: int, stop: int, /) -> int: ...
    def iter_equal_or_larger(self, value: int, /) -> Iterator[int]: ...


@dataclass(slots=True)
class Batch:
    """The messages at offsets `first_offset` to `first_offset + count - 1` of one partition.

    `positions` holds the offset of each message, relative to the first offset; None means that
    every offset has a message, as in a batch that was just stored. All messages have
    `first_timestamp` unless there are `timestamps`.
    """

    partition: PartitionId
    first_offset: Offset
    count: int
    first_timestamp: Microseconds
    content: Columns | pa.RecordBatch
    timestamps: pa.Int64Array | None = None
    positions: npt.NDArray[np.int64] | None = None

    @property
    def next_offset(self) -> Offset:
        return Offset(self.first_offset + self.count)

    @property
    def messages(self) -> int:
        return self.count if self.positions is None else len(self.positions)

    @property
    def nbytes(self) -> int:
        """Memory that this batch keeps alive, with whole buffers even if it is a slice of them."""
        return held_bytes(self.content) + BATCH_OVERHEAD_BYTES

    @property
    def last_timestamp(self) -> Microseconds:
        """The timestamp of the last message; timestamps never decrease."""
        if not self.timestamps:
            return self.first_timestamp
        return Microseconds(self.timestamps[-1].as_py())

    def starting_at(self, offset: Offset) -> Batch:
        """The part from `offset` on; this batch itself when it starts there or later."""
        skip = offset - self.first_offset
        return self if skip <= 0 else self._part(skip, self.count)

    def limited_to(self, count: int) -> Batch:
        """The first `count` offsets of this batch."""
        return self if count >= self.count else self._part(0, count)

    def first_messages(self, count: int) -> Batch:
        """The part that ends with the `count`-th message; the batch has at least `count`."""
        held = self.positions
        return self.limited_to(count if held is None else int(held[count - 1]) + 1)

    def without(self, deleted: OffsetSet) -> Batch:
        """This batch without the messages at deleted offsets; its offset range stays."""
        first = self.first_offset
        deleted_count = deleted.range_cardinality(first, self.next_offset)
        if not deleted_count:
            return self
        alive = np.ones(self.count, np.bool_)
        dead = np.fromiter(islice(deleted.iter_equal_or_larger(first), deleted_count), np.int64)
        alive[dead - first] = False
        held = self._held()
        rows = np.flatnonzero(alive[held])
        picks = pa.array(rows)
        timestamps = None if self.timestamps is None else self.timestamps.take(picks)
        return replace(
            self, content=self.content.take(picks), timestamps=timestamps, positions=held[rows]
        )

    def offsets(self) -> npt.NDArray[np.int64]:
        """The offset of every message."""
        return self._held() + self.first_offset

    def timestamp_column(self) -> pa.Int64Array:
        """The timestamp of every message, in microseconds."""
        if self.timestamps is not None:
            return self.timestamps
        return pa.repeat(pa.scalar(self.first_timestamp, pa.int64()), self.messages)

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as rows: the envelope, or its first three columns and a typed topic's."""
        lead = [
            pa.repeat(pa.scalar(self.partition, pa.int32()), self.messages),
            pa.array(self.offsets()),
            self.timestamp_column().view(pa.timestamp("us", tz="UTC")),
        ]
        content = self.content
        if isinstance(content, pa.RecordBatch):
            schema = pa.schema([*(ENVELOPE.field(i) for i in range(3)), *content.schema])
            return pa.record_batch([*lead, *content.columns], schema=schema)
        headers = content.headers
        if headers is None:
            headers = pa.nulls(self.messages, pa.binary())
        columns = [*lead, content.subjects(), headers, content.payload]
        return pa.record_batch(columns, schema=ENVELOPE)

    def _held(self) -> npt.NDArray[np.int64]:
        if self.positions is not None:
            return self.positions
        return np.arange(self.count, dtype=np.int64)

    def _part(self, start: int, stop: int) -> Batch:
        """The offsets from position `start` up to, not including, `stop`."""
        low, high, positions = start, stop, self.positions
        if positions is not None:
            low, high = np.searchsorted(positions, (start, stop)).tolist()
            positions = positions[low:high] - start
        timestamps = None if self.timestamps is None else self.timestamps.slice(low, high - low)
        first_timestamp = self.first_timestamp
        if timestamps:
            first_timestamp = Microseconds(timestamps[0].as_py())
        return Batch(
            self.partition,
            Offset(self.first_offset + start),
            stop - start,
            first_timestamp,
            self.content.slice(low, high - low),
            timestamps,
            positions,
        )


def concat(batches: Sequence[Batch]) -> Batch:
    """Join batches of one kind of content that follow one another without a gap."""
    first = batches[0]
    if len(batches) == 1:
        return first
    positions = None
    if any(batch.positions is not None for batch in batches):
        positions = np.concatenate([b.offsets() for b in batches]) - first.first_offset
    timestamps = None
    if any(b.timestamps is not None or b.first_timestamp != first.first_timestamp for b in batches):
        timestamps = pa.concat_arrays([b.timestamp_column() for b in batches])
    return Batch(
        first.partition,
        first.first_offset,
        sum(b.count for b in batches),
        first.first_timestamp,
        concat_contents([b.content for b in batches]),
        timestamps,
        positions,
    )


def coalesce(batches: Sequence[Batch], bytes_max: int) -> list[Batch]:
    """Join small neighbours of one kind up to `bytes_max`; large batches stay as they are."""
    joined: list[list[Batch]] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if not joined or size > bytes_max or not alike(joined[-1][-1], batch):
            joined.append([])
            size = batch.nbytes
        joined[-1].append(batch)
    return [concat(group) for group in joined]


@dataclass(frozen=True, slots=True)
class AtHead:
    """Answer of a read at the end of the log: the next message will get `next_offset`."""

    next_offset: Offset


@dataclass(frozen=True, slots=True)
class Gone:
    """Answer of a read below the log start offset, which is `earliest`."""

    earliest: Offset


def alike(first: Batch, second: Batch) -> bool:
    """Whether both batches hold raw messages, or rows of the same schema."""
    return same_kind(first.content, second.content)


def same_kind(first: Columns | pa.RecordBatch, second: Columns | pa.RecordBatch) -> bool:
    """Whether both contents are raw messages, or rows of the same schema."""
    if isinstance(first, Columns) or isinstance(second, Columns):
        return isinstance(first, Columns) and isinstance(second, Columns)
    return bool(first.schema.equals(second.schema))


def concat_contents(contents: Sequence[Columns | pa.RecordBatch]) -> Columns | pa.RecordBatch:
    """Concatenate contents of one kind."""
    if len(contents) == 1:
        return contents[0]
    if isinstance(contents[0], pa.RecordBatch):
        return pa.concat_batches(contents)
    columns = [content for content in contents if isinstance(content, Columns)]
    subject = columns[0].subject
    if not isinstance(subject, bytes) or any(c.subject != subject for c in columns[1:]):
        subject = pa.concat_arrays([c.subjects() for c in columns])
    headers = None
    if any(c.headers is not None for c in columns):
        headers = pa.concat_arrays([_headers(c) for c in columns])
    return Columns(subject, pa.concat_arrays([c.payload for c in columns]), headers)


def _headers(columns: Columns) -> pa.BinaryArray:
    if columns.headers is not None:
        return columns.headers
    return pa.repeat(pa.scalar(b"", pa.binary()), len(columns.payload))
