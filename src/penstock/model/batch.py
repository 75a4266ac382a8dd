"""Runs of messages: what is appended (Run), and what is stored and read (Batch).

A message never travels alone: every door hands over a run, the log stores it as a batch, and
readers get batches. Columns are Arrow arrays, so a batch of any size is a handful of Python
objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.errors import RunInvalid
from penstock.model.limits import PARTITION_ID_MAX, RUN_BYTES_MAX, RUN_MESSAGES_MAX
from penstock.model.units import ONLY_PARTITION, Microseconds, Offset, PartitionId

BATCH_OVERHEAD_BYTES: Final = 512
"""What a cached batch costs beyond its bytes: the Python and Arrow objects around them."""

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
"""A raw message as a row; null or empty headers mean the message has none."""


class OffsetRange(NamedTuple):
    """Offsets from `first` up to, not including, `next`."""

    first: Offset
    next: Offset

    @property
    def messages(self) -> int:
        return self.next - self.first


@dataclass(slots=True)
class Run:
    """Raw messages of one partition to append together, column by column.

    `subjects` is one value when all messages share it. An empty header block means none. Without
    `timestamps` the log stamps the messages when it takes them.
    """

    subjects: bytes | Sequence[bytes]
    payloads: Sequence[bytes]
    headers: Sequence[bytes] | None = None
    partition: PartitionId = ONLY_PARTITION
    timestamps: Sequence[int] | None = None

    @property
    def count(self) -> int:
        return len(self.payloads)

    def measure(self) -> int:
        """Bytes of all columns; raises RunInvalid when the columns do not fit together."""
        count = len(self.payloads)
        size = sum(map(len, self.payloads))
        if isinstance(self.subjects, bytes):
            size += _subject_bytes(self.subjects)
        else:
            _same_length("subjects", self.subjects, count)
            size += _subject_bytes(b" ".join(self.subjects))
        if self.headers is not None:
            _same_length("headers", self.headers, count)
            size += sum(map(len, self.headers))
        if self.timestamps is not None:
            _same_length("timestamps", self.timestamps, count)
        _within_limits(count, size, self.partition)
        return size


class Columns:
    """Raw messages as Arrow columns; `subject` is one value when all messages share it.

    `payload` may be given as a function that makes it, which is called when somebody looks.
    `packed` is the body of their frame where that is known already.
    """

    __slots__ = ("_make", "_payload", "headers", "packed", "subject")

    def __init__(
        self,
        subject: bytes | pa.BinaryArray,
        payload: pa.BinaryArray | Callable[[], pa.BinaryArray],
        headers: pa.BinaryArray | None = None,
        packed: bytes | None = None,
    ) -> None:
        self.subject, self.headers, self.packed = subject, headers, packed
        self._make = self._payload = payload

    @property
    def payload(self) -> pa.BinaryArray:
        if self._payload is self._make and callable(self._make):
            self._payload = self._make()
        return self._payload

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns):
            return NotImplemented
        return bool(
            self.subject == other.subject
            and self.payload == other.payload
            and self.headers == other.headers
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Columns({self.subject!r}, {self.payload!r}, {self.headers!r})"

    def slice(self, start: int, count: int) -> Columns:
        return Columns(
            self.subject if isinstance(self.subject, bytes) else self.subject.slice(start, count),
            self.payload.slice(start, count),
            None if self.headers is None else self.headers.slice(start, count),
        )

    def take(self, picks: pa.Int64Array) -> Columns:
        return Columns(
            self.subject if isinstance(self.subject, bytes) else self.subject.take(picks),
            self.payload.take(picks),
            None if self.headers is None else self.headers.take(picks),
        )

    def subjects(self) -> pa.BinaryArray:
        if isinstance(self.subject, bytes):
            return pa.repeat(pa.scalar(self.subject, pa.binary()), len(self.payload))
        return self.subject


@dataclass(slots=True)
class ColumnRun:
    """Messages that are columns already: raw ones, or rows of a typed topic."""

    content: Columns | pa.RecordBatch
    partition: PartitionId = ONLY_PARTITION
    timestamps: pa.Int64Array | None = None

    @property
    def count(self) -> int:
        if isinstance(self.content, Columns):
            return len(self.content.payload)
        return int(self.content.num_rows)

    def measure(self) -> int:
        """Bytes of all columns; raises RunInvalid when they do not fit together or a limit."""
        if isinstance(self.content, Columns):
            _check_columns(self.content)
        if self.timestamps is not None:
            _same_length("timestamps", self.timestamps, self.count)
        size = content_bytes(self.content)
        _within_limits(self.count, size, self.partition)
        return size


class OffsetSet(Protocol):
    """A set of offsets, ordered: a roaring bitmap."""

    def range_cardinality(self, start: int, stop: int, /) -> int: ...
    def iter_equal_or_larger(self, value: int, /) -> Iterator[int]: ...


@dataclass(slots=True)
class Batch:
    """Offsets `first_offset` to `first_offset + count - 1` of one partition, and their messages.

    `positions` tells which of these offsets the messages have, counted from the first; None when
    every offset has one, as in a batch that was just stored. All messages carry `first_timestamp`
    unless `timestamps` says otherwise.
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
        """Memory this batch keeps alive, objects included: a part counts its whole buffers."""
        return _held_bytes(self.content) + BATCH_OVERHEAD_BYTES

    @property
    def last_timestamp(self) -> Microseconds:
        """Of the last message; timestamps never decrease."""
        if not self.timestamps:
            return self.first_timestamp
        return Microseconds(self.timestamps[-1].as_py())

    def starting_at(self, offset: Offset) -> Batch:
        """The part from `offset` on; the same batch when it starts there or later."""
        skip = offset - self.first_offset
        return self if skip <= 0 else self._part(skip, self.count)

    def limited_to(self, count: int) -> Batch:
        """The first `count` offsets of this batch."""
        return self if count >= self.count else self._part(0, count)

    def without(self, deleted: OffsetSet) -> Batch:
        """The same offsets without the messages of the deleted ones."""
        first = self.first_offset
        gone = deleted.range_cardinality(first, self.next_offset)
        if not gone:
            return self
        alive = np.ones(self.count, np.bool_)
        dead = np.fromiter(islice(deleted.iter_equal_or_larger(first), gone), np.int64)
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
        """Microseconds of every message."""
        if self.timestamps is not None:
            return self.timestamps
        return pa.repeat(pa.scalar(self.first_timestamp, pa.int64()), self.messages)

    def to_arrow(self) -> pa.RecordBatch:
        """The messages as rows: the envelope; for rows, its first three columns and theirs."""
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
    """Batches that follow one another without a gap, as one; their content is of one kind."""
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
        _concat_content([b.content for b in batches]),
        timestamps,
        positions,
    )


def coalesce(batches: Sequence[Batch], bytes_max: int) -> list[Batch]:
    """Small neighbours of one kind joined up to `bytes_max`; large ones are left as they are."""
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
    """Nothing is stored at the asked offset yet; the next message gets `next_offset`."""

    next_offset: Offset


@dataclass(frozen=True, slots=True)
class Gone:
    """The asked offset was dropped by retention or purge; reading can start at `earliest`."""

    earliest: Offset


def _held_bytes(content: Columns | pa.RecordBatch) -> int:
    """Whole buffers: Arrow adds them up in 0.1 us, the bytes a slice uses take it 2 us."""
    if isinstance(content, pa.RecordBatch):
        return int(content.get_total_buffer_size())
    if content.packed is not None:
        return len(content.packed)
    size, subject = content.payload.get_total_buffer_size(), content.subject
    size += len(subject) if isinstance(subject, bytes) else subject.get_total_buffer_size()
    return int(size if content.headers is None else size + content.headers.get_total_buffer_size())


def content_bytes(content: Columns | pa.RecordBatch) -> int:
    if isinstance(content, pa.RecordBatch):
        return int(content.nbytes)
    size = content.payload.nbytes
    size += len(content.subject) if isinstance(content.subject, bytes) else content.subject.nbytes
    return int(size if content.headers is None else size + content.headers.nbytes)


def alike(one: Batch, other: Batch) -> bool:
    """Whether both are raw messages, or rows of one schema."""
    if isinstance(one.content, Columns) or isinstance(other.content, Columns):
        return isinstance(one.content, Columns) and isinstance(other.content, Columns)
    return bool(one.content.schema.equals(other.content.schema))


def _concat_content(contents: Sequence[Columns | pa.RecordBatch]) -> Columns | pa.RecordBatch:
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


def _check_columns(columns: Columns) -> None:
    if isinstance(columns.subject, bytes):
        _subject_bytes(columns.subject)
    else:
        _same_length("subjects", columns.subject, len(columns.payload))
        try:
            columns.subject.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise RunInvalid(f"a subject is not UTF-8: {error}") from None
    if columns.headers is not None:
        _same_length("headers", columns.headers, len(columns.payload))
    if columns.payload.null_count:
        raise RunInvalid("a payload is null")


def _subject_bytes(subjects: bytes) -> int:
    """Their length; they must be UTF-8, since a subject is text in every table."""
    try:
        subjects.decode()
    except UnicodeDecodeError as error:
        raise RunInvalid(f"a subject is not UTF-8: {error}") from None
    return len(subjects)


def _same_length(name: str, column: Sequence[object], count: int) -> None:
    if len(column) != count:
        raise RunInvalid(f"a run has {count} payloads but {len(column)} {name}")


def _within_limits(count: int, size: int, partition: int) -> None:
    if not 1 <= count <= RUN_MESSAGES_MAX:
        raise RunInvalid(f"a run must have 1 to {RUN_MESSAGES_MAX} messages, this one has {count}")
    if size > RUN_BYTES_MAX:
        raise RunInvalid(f"a run may have {RUN_BYTES_MAX} bytes, this one has {size}")
    if not 0 <= partition <= PARTITION_ID_MAX:
        raise RunInvalid(f"partition {partition} is not within 0 to {PARTITION_ID_MAX}")
