"""Slices as Arrow batches, in Spark's Python workers: whole columns, never rows.

An object that is gone since the plan was made (it was merged, and its time of grace is over) is
asked of the broker, which knows where its messages are now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from penstock.client import calls, plans
from penstock.client.exchange import BrokerRefused, BrokerUnreachable, Conversation
from penstock.client.results import Fetched
from penstock.client.sync import SyncClient
from penstock.formats.plan_api import PlanPartition
from penstock.model import partition_value
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.objects.interface import ObjectMissing
from penstock.spark.buckets import Bucket
from penstock.spark.errors import DataLost, DataUnread
from penstock.spark.slices import FetchSlice, ObjectSlice, Slice, Span, deleted_of

ROWS_PER_BATCH: Final = 64 << 10
"""Decoded and sent at a time: some megabytes, which the next ones are decoded into."""
MESSAGES_PER_FETCH: Final = 100_000
FETCH_TIMEOUT_MS: Final = 2000
TRIES_MAX: Final = 8
RETRY_SECONDS: Final = 0.25
"""First pause after a failure; doubles."""

_T = TypeVar("_T")

_clients: dict[str, SyncClient] = {}


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything a worker needs to read slices of one topic."""

    topic: TopicName
    broker: str
    bucket: Bucket | None
    columns: pa.Schema
    """What is wanted, in this order."""
    values: dict[int, Any]
    """Partition values by number, tagged."""
    fail_on_data_loss: bool = True

    def batches(self, pieces: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
        """The messages of these slices."""
        for piece in pieces:
            found = self._object(piece) if isinstance(piece, ObjectSlice) else self._fetched(piece)
            for batch in found:
                if batch.num_rows:
                    yield self._fitted(batch)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """In the wanted columns, to the letter."""
        fitted = in_columns(batch, self.columns)
        for field, array in zip(self.columns, fitted.columns, strict=True):
            if array.null_count and not field.nullable:
                raise DataUnread(f"topic {self.topic}: column {field.name!r} has nulls")
        return fitted

    # -- objects

    def _object(self, piece: ObjectSlice) -> Iterator[pa.RecordBatch]:
        assert self.bucket is not None
        try:
            file = self.bucket.parquet(piece.key, piece.size)
        except ObjectMissing:
            for span in piece.spans:
                value = self.values.get(span.partition)
                yield from self._fetched(FetchSlice(span.partition, value, span.first, span.next))
            return
        try:
            with file:
                yield from _rows(piece, file, self.topic, self.columns.names)
        except (OSError, pa.ArrowException) as error:
            raise DataUnread(f"topic {self.topic}: object {piece.key}: {error}") from error

    # -- the broker

    def _fetched(self, piece: FetchSlice) -> Iterator[pa.RecordBatch]:
        tagged = None if piece.value is None else partition_value.of_json(piece.value)
        offset, empty = piece.first, 0
        while offset < piece.next:
            limits = calls.limits(FETCH_TIMEOUT_MS, 1, min(MESSAGES_PER_FETCH, piece.next - offset))
            fetched = self._fetch(offset, tagged, limits)
            if fetched is not None and len(fetched):
                offset, empty = fetched.next_offset, 0
                yield from _below(fetched.table, piece.next).to_batches(ROWS_PER_BATCH)
                continue
            offset = self._past(piece, offset, gone=fetched is None)
            empty += 1
            if offset < piece.next and empty == TRIES_MAX:
                raise DataUnread(
                    f"topic {self.topic}, partition {piece.partition}: offsets from {offset} on "
                    "are committed, but the broker does not give them in time"
                )

    def _fetch(
        self, offset: int, tagged: PartitionValue | None, limits: dict[str, int | None]
    ) -> Fetched | None:
        """None when the offset is gone."""
        try:
            return patiently(self.broker, lambda: calls.fetch(self.topic, offset, tagged, limits))
        except BrokerRefused as error:
            if "is gone" in str(error):
                return None
            raise DataUnread(str(error)) from error

    def _past(self, piece: FetchSlice, offset: int, gone: bool) -> int:
        """Where to go on when nothing came: behind what has no messages any more."""
        plan = patiently(self.broker, lambda: plans.plan(self.topic, with_objects=False))
        now = next(item for item in plan.partitions if item.partition_id == piece.partition)
        if gone and now.start_offset > offset:
            if self.fail_on_data_loss:
                raise DataLost(str(self.topic), piece.partition, offset, now.start_offset)
            return min(now.start_offset, piece.next)
        return piece.next if _is_empty(now, offset, piece.next) else offset


def stored_tables(
    bucket: Bucket, topic: TopicName, piece: ObjectSlice, stored: pa.Schema
) -> Iterator[pa.Table]:
    """The rows of an object that count, in the columns and types of our own objects."""
    with bucket.parquet(piece.key, piece.size) as file:
        for batch in _rows(piece, file, topic, stored.names):
            yield pa.Table.from_batches([in_columns(batch, stored)])


def in_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = [batch.column(field.name).cast(field.type) for field in columns]
    return pa.record_batch(arrays, columns)


def _rows(
    piece: ObjectSlice, file: pq.ParquetFile, topic: TopicName, wanted: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows that count, with the wanted columns and perhaps others."""
    names = [name for name in file.schema_arrow.names if name in wanted]
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
    groups = [n for n in groups if _may_have(file.metadata.row_group(n), piece.spans)]
    names = [*names, *(name for name in ("partition", "offset") if name not in names)]
    dead = _dead(piece)
    for batch in _decoded(file, groups, names):
        yield _counting(batch, piece.spans, dead)


def _linked_rows(
    piece: ObjectSlice, file: pq.ParquetFile, topic: TopicName, names: list[str]
) -> Iterator[pa.RecordBatch]:
    (span,) = piece.spans
    first, dead = span.base, _dead(piece)
    subject = topic.topic if "payload" in file.schema_arrow.names else None
    for group in range(file.metadata.num_row_groups):
        next_ = first + file.metadata.row_group(group).num_rows
        if next_ <= span.first or first >= span.next:
            first = next_
            continue
        for batch in _decoded(file, [group], names):
            rows = _with_envelope(batch, subject, span.partition, first, piece.timestamp)
            yield rows if piece.whole else _counting(rows, piece.spans, dead)
            first += batch.num_rows


def _decoded(file: pq.ParquetFile, groups: list[int], names: list[str]) -> Iterator[pa.RecordBatch]:
    """Columns of row groups; every page is checked as it is read, and that no row is left out."""
    missing = sum(file.metadata.row_group(group).num_rows for group in groups)
    for batch in file.iter_batches(ROWS_PER_BATCH, groups, names, use_threads=False):
        missing -= batch.num_rows
        yield batch
    if missing:
        raise pa.ArrowInvalid(f"{missing} rows are missing")


def promptly(broker: str, conversation: Conversation[_T]) -> _T:
    """Carry out a conversation with the broker, now or not at all."""
    client = _clients.get(broker)
    if client is None:
        client = _clients[broker] = SyncClient(broker)
    return client.run(conversation)


def patiently(broker: str, conversation: Callable[[], Conversation[_T]]) -> _T:
    """The same, again and again while the broker does not answer."""
    for attempt in range(TRIES_MAX):
        try:
            return promptly(broker, conversation())
        except (BrokerUnreachable, BrokerRefused) as error:
            busy = isinstance(error, BrokerUnreachable) or error.status in (429, 503)
            if not busy or attempt == TRIES_MAX - 1:
                raise
            time.sleep(RETRY_SECONDS * 2**attempt)
    raise AssertionError("unreachable")


def _is_empty(partition: PlanPartition, first: int, next_: int) -> bool:
    start = max(first, partition.start_offset)
    return start >= next_ or deleted_of(partition).range_cardinality(start, next_) == next_ - start


def _below(table: pa.Table, next_: int) -> pa.Table:
    """Rows before an offset; those of a fetch ascend."""
    offsets = table.column("offset").to_numpy()
    return table.slice(0, int(np.searchsorted(offsets, next_)))


def _may_have(group: Any, spans: Sequence[Span]) -> bool:
    """Whether a row group may have rows of these spans, as its statistics tell."""
    partitions, offsets = group.column(0).statistics, group.column(1).statistics
    if partitions is None or offsets is None:
        return True
    return any(
        partitions.min <= span.partition <= partitions.max
        and offsets.min < span.next
        and offsets.max >= span.first
        for span in spans
    )


def _dead(piece: ObjectSlice) -> list[tuple[int, BitMap64]]:
    return [(partition, BitMap64.deserialize(data)) for partition, data in piece.deleted]


def _counting(
    batch: pa.RecordBatch, spans: Sequence[Span], dead: Sequence[tuple[int, BitMap64]]
) -> pa.RecordBatch:
    """The rows that count: within the spans and not deleted."""
    partitions = batch.column("partition").to_numpy()
    offsets = batch.column("offset").to_numpy()
    kept = np.zeros(len(offsets), np.bool_)
    for span in spans:
        kept |= (partitions == span.partition) & (offsets >= span.first) & (offsets < span.next)
    for partition, deleted in dead:
        kept &= ~((partitions == partition) & _among(deleted, offsets))
    return batch if kept.all() else batch.filter(pa.array(kept))


def _among(dead: BitMap64, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of these offsets are in the set; only its part between them is looked at."""
    if not len(offsets):
        return np.zeros(0, np.bool_)
    between = BitMap64()
    between.add_range(int(offsets.min()), int(offsets.max()) + 1)
    values = np.asarray((dead & between).to_array(), np.uint64).astype(np.int64)
    return np.isin(offsets, values)


def _with_envelope(
    batch: pa.RecordBatch, subject: str | None, partition: int, first: int, timestamp: int
) -> pa.RecordBatch:
    """Rows of a linked object with the columns that they do not have themselves; `subject` is that
    of raw messages without one.
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
        told = own.get("subject", pa.nulls(count, pa.string()))
        own["subject"] = told.cast(pa.string()).fill_null(subject)
        if "payload" in own:
            own["payload"] = own["payload"].cast(pa.binary()).fill_null(b"")
    if "headers" not in own:
        own["headers"] = pa.nulls(count, pa.binary())
    return pa.record_batch({**lead, **own})
