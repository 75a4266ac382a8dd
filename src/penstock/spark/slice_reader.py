"""Reads slices as Arrow batches in Spark's Python workers, by columns and never by rows.

If an object of the plan no longer exists, because it was merged and its grace time is over, the
messages are fetched from the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from penstock.client import (
    BrokerRefused,
    FetchedTable,
    fetch_limits,
    fetch_table,
    get_plan,
)
from penstock.formats.plan_api import PlanPartition
from penstock.model import partition_value
from penstock.model.errors import OffsetGone
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.objects import ObjectMissing
from penstock.spark.buckets import SparkBucket
from penstock.spark.errors import DataLost, DataUnread
from penstock.spark.planning import ATTEMPTS_MAX, ask_broker
from penstock.spark.slices import FetchSlice, ObjectSlice, Slice, SliceSpan, deleted_of

ROWS_PER_BATCH: Final = 64 << 10
"""Rows decoded at a time: some megabytes, whose memory the next batch reuses."""
MESSAGES_PER_FETCH: Final = 100_000
FETCH_TIMEOUT_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class SliceReader:
    """Reads slices of one topic; it is sent to the workers."""

    topic: TopicName
    broker: str
    bucket: SparkBucket | None
    columns: pa.Schema
    """The columns to return, in order."""
    values: dict[int, Any]
    """Tagged partition values by partition number."""
    fail_on_data_loss: bool = True

    def batches(self, pieces: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """The messages of slices, in order."""
        for piece in pieces:
            batches = (
                self._read_object(piece)
                if isinstance(piece, ObjectSlice)
                else self._fetch_slice(piece)
            )
            for batch in batches:
                if batch.num_rows:
                    yield self._in_columns(batch)

    def _in_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the requested columns; raises DataUnread for unexpected nulls."""
        converted = in_columns(batch, self.columns)
        for field, array in zip(self.columns, converted.columns, strict=True):
            if array.null_count and not field.nullable:
                raise DataUnread(f"topic {self.topic}: column {field.name!r} has nulls")
        return converted

    # -- objects

    def _read_object(self, piece: ObjectSlice) -> Iterator[pa.RecordBatch]:
        assert self.bucket is not None
        try:
            file = self.bucket.parquet(piece.key, piece.size)
        except ObjectMissing:
            for span in piece.spans:
                value = self.values.get(span.partition)
                yield from self._fetch_slice(
                    FetchSlice(span.partition, value, span.first, span.next)
                )
            return
        try:
            with file:
                yield from _rows(piece, file, self.topic, self.columns.names)
        except (OSError, pa.ArrowException) as error:
            raise DataUnread(f"topic {self.topic}: object {piece.key}: {error}") from error

    # -- the broker

    def _fetch_slice(self, piece: FetchSlice) -> Iterator[pa.RecordBatch]:
        tagged = None if piece.value is None else partition_value.of_json(piece.value)
        offset, empty = piece.first, 0
        while offset < piece.next:
            limits = fetch_limits(FETCH_TIMEOUT_MS, 1, min(MESSAGES_PER_FETCH, piece.next - offset))
            fetched = self._fetch(offset, tagged, limits)
            if fetched is not None and len(fetched):
                offset, empty = fetched.next_offset, 0
                yield from _below(fetched.table, piece.next).to_batches(ROWS_PER_BATCH)
                continue
            offset = self._next_offset(piece, offset, gone=fetched is None)
            empty += 1
            if offset < piece.next and empty == ATTEMPTS_MAX:
                raise DataUnread(
                    f"topic {self.topic}, partition {piece.partition}: offsets from {offset} on "
                    "are committed, but the broker does not return them in time"
                )

    def _fetch(
        self, offset: int, tagged: PartitionValue | None, limits: dict[str, int | None]
    ) -> FetchedTable | None:
        """Fetch messages; None if the offset was deleted."""
        try:
            return ask_broker(self.broker, lambda: fetch_table(self.topic, offset, tagged, limits))
        except BrokerRefused as error:
            if error.code == OffsetGone.code:
                return None
            raise DataUnread(str(error)) from error

    def _next_offset(self, piece: FetchSlice, offset: int, gone: bool) -> int:
        """The offset to continue at after an empty fetch, behind offsets without messages."""
        plan = ask_broker(self.broker, lambda: get_plan(self.topic, with_objects=False))
        partition = next(item for item in plan.partitions if item.partition_id == piece.partition)
        if gone and partition.start_offset > offset:
            if self.fail_on_data_loss:
                raise DataLost(str(self.topic), piece.partition, offset, partition.start_offset)
            return min(partition.start_offset, piece.next)
        return piece.next if _is_empty(partition, offset, piece.next) else offset


def object_tables(
    bucket: SparkBucket, topic: TopicName, piece: ObjectSlice, stored: pa.Schema
) -> Iterator[pa.Table]:
    """The live rows of an object, in the columns and types of objects that the broker writes."""
    with bucket.parquet(piece.key, piece.size) as file:
        for batch in _rows(piece, file, topic, stored.names):
            yield pa.Table.from_batches([in_columns(batch, stored)])


def in_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = [batch.column(field.name).cast(field.type) for field in columns]
    return pa.record_batch(arrays, columns)


def _rows(
    piece: ObjectSlice, file: pq.ParquetFile, topic: TopicName, requested: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The live rows of an object, with at least the requested columns that it has."""
    names = [name for name in file.schema_arrow.names if name in requested]
    return (
        _linked_rows(piece, file, topic, names) if piece.linked else _own_rows(piece, file, names)
    )


def _own_rows(
    piece: ObjectSlice, file: pq.ParquetFile, names: list[str]
) -> Iterator[pa.RecordBatch]:
    groups = list(range(file.metadata.num_row_groups))
    if piece.whole:
        yield from _decoded(file, groups, names or ["offset"])
        return
    groups = [n for n in groups if _may_contain(file.metadata.row_group(n), piece.spans)]
    names = [*names, *(name for name in ("partition", "offset") if name not in names)]
    dead = _deleted_sets(piece)
    for batch in _decoded(file, groups, names):
        yield _live_rows(batch, piece.spans, dead)


def _linked_rows(
    piece: ObjectSlice, file: pq.ParquetFile, topic: TopicName, names: list[str]
) -> Iterator[pa.RecordBatch]:
    (span,) = piece.spans
    first, dead = span.base, _deleted_sets(piece)
    subject = topic.topic if "payload" in file.schema_arrow.names else None
    for group in range(file.metadata.num_row_groups):
        next_ = first + file.metadata.row_group(group).num_rows
        if next_ <= span.first or first >= span.next:
            first = next_
            continue
        for batch in _decoded(file, [group], names):
            rows = _with_envelope(batch, subject, span.partition, first, piece.timestamp)
            yield rows if piece.whole else _live_rows(rows, piece.spans, dead)
            first += batch.num_rows


def _decoded(file: pq.ParquetFile, groups: list[int], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Columns of row groups, with page checksums verified; raises ArrowInvalid for missing rows."""
    missing = sum(file.metadata.row_group(group).num_rows for group in groups)
    for batch in file.iter_batches(ROWS_PER_BATCH, groups, names, use_threads=False):
        missing -= batch.num_rows
        yield batch
    if missing:
        raise pa.ArrowInvalid(f"{missing} rows are missing")


def _is_empty(partition: PlanPartition, first: int, next_: int) -> bool:
    start = max(first, partition.start_offset)
    return start >= next_ or deleted_of(partition).range_cardinality(start, next_) == next_ - start


def _below(table: pa.Table, next_: int) -> pa.Table:
    """The rows before an offset, of rows in ascending order."""
    offsets = table.column("offset").to_numpy()
    return table.slice(0, int(np.searchsorted(offsets, next_)))


def _may_contain(group: Any, spans: Sequence[SliceSpan]) -> bool:
    """Whether a row group may have rows of these spans, by its statistics."""
    partitions, offsets = group.column(0).statistics, group.column(1).statistics
    if partitions is None or offsets is None:
        return True
    return any(
        partitions.min <= span.partition <= partitions.max
        and offsets.min < span.next
        and offsets.max >= span.first
        for span in spans
    )


def _deleted_sets(piece: ObjectSlice) -> list[tuple[int, BitMap64]]:
    return [(partition, BitMap64.deserialize(data)) for partition, data in piece.deleted]


def _live_rows(
    batch: pa.RecordBatch, spans: Sequence[SliceSpan], dead: Sequence[tuple[int, BitMap64]]
) -> pa.RecordBatch:
    """The rows within the spans that are not deleted."""
    partitions = batch.column("partition").to_numpy()
    offsets = batch.column("offset").to_numpy()
    live = np.zeros(len(offsets), np.bool_)
    for span in spans:
        live |= (partitions == span.partition) & (offsets >= span.first) & (offsets < span.next)
    for partition, deleted in dead:
        live &= ~((partitions == partition) & _among(deleted, offsets))
    return batch if live.all() else batch.filter(pa.array(live))


def _among(dead: BitMap64, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of these offsets are in the set; only the relevant part of the set is expanded."""
    if not len(offsets):
        return np.zeros(0, np.bool_)
    between = BitMap64()
    between.add_range(int(offsets.min()), int(offsets.max()) + 1)
    values = np.asarray((dead & between).to_array(), np.uint64).astype(np.int64)
    return np.isin(offsets, values)


def _with_envelope(
    batch: pa.RecordBatch, subject: str | None, partition: int, first: int, timestamp: int
) -> pa.RecordBatch:
    """Rows of a linked object with partition, offset, timestamp and headers added.

    `subject` is the subject of raw messages that have none; None for typed topics.
    """
    count = batch.num_rows
    stamp = pa.scalar(timestamp, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    lead = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array(np.arange(first, first + count, dtype=np.int64)),
        "timestamp": pa.repeat(stamp, count),
    }
    own = {name: batch.column(name) for name in batch.schema.names if name not in lead}
    if subject is not None:
        subjects = own.get("subject", pa.nulls(count, pa.string()))
        own["subject"] = subjects.cast(pa.string()).fill_null(subject)
        if "payload" in own:
            own["payload"] = own["payload"].cast(pa.binary()).fill_null(b"")
    if "headers" not in own:
        own["headers"] = pa.nulls(count, pa.binary())
    return pa.record_batch({**lead, **own})
