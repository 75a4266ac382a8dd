"""The writers of the data source: tasks stage objects in the bucket, then the driver links them.

Staged objects are invisible until the topic's owner links them, once for each batch. A link is
keyed by an application and a number: the query and its batch, `txnAppId` and `txnVersion`, or, for
a batch write without those, a unique name, which the owner remembers as long as it can be
repeated.
Repeating a link has no further effect, so a commit whose reply was lost is repeated, here and after
a restart. `abort` removes nothing, because Spark also calls it after a commit that succeeded.

Keys of staged objects are used once: a task that is retried, or runs twice at the same time, leaves
objects that are never linked, and the owner sweeps them.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.client import link_objects, topic_schema
from penstock.formats import arrow_rows
from penstock.formats.api import TopicReply
from penstock.formats.bodies import ONCE
from penstock.formats.objects import ROW_GROUP_BYTES, ROW_GROUP_ROWS, SUFFIX, staged_prefix
from penstock.formats.plan_api import LinkReply, StagedObject
from penstock.model import names, partition_value
from penstock.model.errors import FormatError
from penstock.spark import planning
from penstock.spark.buckets import SparkBucket
from penstock.spark.columns import LEAD
from penstock.spark.errors import ColumnsInvalid, WriteRefused
from penstock.spark.options import SourceOptions
from penstock.spark.planning import ask_broker
from penstock.spark.readers import reachable_bucket

STAGED_BYTES: Final = 128 << 20
"""Bytes of rows that become one object, or one object for each partition."""

_RAW: Final = pa.schema(
    [
        # The subject is first: the owner reads only subjects.
        pa.field("subject", pa.string()),
        pa.field("headers", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def stored_schema(topic: TopicReply) -> pa.Schema:
    """The columns of staged objects."""
    own = topic_schema(topic)
    return _RAW if own is None else own


def check_columns(topic: TopicReply, columns: list[str]) -> None:
    """Raise ColumnsInvalid unless rows with these columns can be written to the topic."""
    known = stored_schema(topic)
    for name in columns:
        if name not in known.names and name not in LEAD:
            raise ColumnsInvalid(
                f"topic {topic.name} has no column {name!r}; known: {', '.join(known.names)}"
            )
    for field in known:
        if field.name not in columns and not field.nullable:
            raise ColumnsInvalid(f"column {field.name!r} of topic {topic.name} is missing")


@dataclass(frozen=True, slots=True)
class RowStager:
    """Writes rows of one topic to its bucket, as objects to be linked."""

    topic: TopicReply
    bucket: SparkBucket

    def rows(self, batches: Iterable[pa.RecordBatch]) -> list[StagedObject]:
        """Stage rows in order and return their objects; raises ColumnsInvalid for a misfit."""
        staged: list[StagedObject] = []
        pending: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            pending.append(self._in_topic_columns(batch))
            size += pending[-1].nbytes
            if size >= STAGED_BYTES:
                staged += self._put(pending)
                pending, size = [], 0
        return staged + self._put(pending)

    def _in_topic_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the columns and types of the topic."""
        arrays = []
        schema = stored_schema(self.topic)
        for field in schema:
            if field.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            array = batch.column(field.name)
            try:
                array = array.cast(field.type)
            except pa.ArrowInvalid as error:
                raise ColumnsInvalid(f"column {field.name!r}: {error}") from None
            if array.null_count and not field.nullable:
                raise ColumnsInvalid(
                    f"column {field.name!r} has nulls, which topic {self.topic.name} does not allow"
                )
            arrays.append(array)
        if self.topic.fields is None:
            _check_subjects(arrays[0])
        return pa.record_batch(arrays, schema)

    def _put(self, batches: list[pa.RecordBatch]) -> list[StagedObject]:
        if not batches:
            return []
        table = pa.Table.from_batches(batches)
        if self.topic.fields is None:
            optional = ("subject", "headers")
            rows = table.num_rows
            table = table.drop_columns([n for n in optional if table.column(n).null_count == rows])
        return [self._object(part, value) for value, part in self._by_partition(table)]

    def _by_partition(self, table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        """Split rows by the partition column, if there is one, in their order."""
        column = self.topic.partition_column
        if column is None:
            yield None, table
            return
        codes = table.column(column).combine_chunks().dictionary_encode()
        order = pc.sort_indices(
            pa.table({"code": codes.indices, "row": pa.array(range(table.num_rows))}),
            sort_keys=[("code", "ascending"), ("row", "ascending")],
        )
        table, ranked = table.take(order), codes.indices.take(order).to_numpy()
        for code, value in enumerate(codes.dictionary.to_pylist()):
            first, stop = ranked.searchsorted([code, code + 1]).tolist()
            tagged = partition_value.of_plain(table.schema.field(column).type, value)
            yield tagged.to_json(), table.slice(first, stop - first)

    def _object(self, table: pa.Table, value: Any) -> StagedObject:
        row_bytes = max(1, table.nbytes // table.num_rows)
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            row_group_size=max(1, min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // row_bytes)),
            compression="zstd",
            write_page_checksum=True,
            store_schema=False,
        )
        data = sink.getvalue()
        prefix = staged_prefix(names.topic(self.topic.name))
        key = f"{prefix}{time.time_ns() // 1000:017d}-{uuid.uuid4().hex}{SUFFIX}"
        info = self.bucket.put(key, data)
        return StagedObject(
            key, table.num_rows, data.size, crc32c(memoryview(data)), info.etag, value
        )


def _check_subjects(subjects: pa.StringArray) -> None:
    present = subjects.drop_null()
    try:
        arrow_rows.check_subjects(present)
    except FormatError as error:
        raise ColumnsInvalid(str(error)) from None


def refuse_unwritable(topic: TopicReply, overwrite: bool) -> None:
    """Raise WriteRefused for topics and modes that do not allow a write."""
    if overwrite:
        raise WriteRefused(f"topic {topic.name} cannot be overwritten; use mode append")
    if topic.durability == "memory":
        raise WriteRefused(f"topic {topic.name} is kept in memory only: push to it instead")
    if topic.fields is None and topic.partition_column is not None:
        raise WriteRefused(f"topic {topic.name} is partitioned by subject: push to it instead")


QUERY: Final = "sql.streaming.queryId"
"""Spark's property with the id of a streaming query, which is stored in its checkpoint."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The objects that one task staged."""

    objects: list[StagedObject] = dataclasses.field(default_factory=list)
    query: str | None = None


class _Commit:
    """Staging and linking, shared by batch and streaming writers."""

    def __init__(
        self, options: SourceOptions, topic: TopicReply, schema: StructType, overwrite: bool
    ) -> None:
        refuse_unwritable(topic, overwrite)
        check_columns(topic, schema.names)
        self.options = options
        bucket = reachable_bucket(options, planning.make_plan(options, with_objects=False))
        if bucket is None:
            raise WriteRefused(
                f"topic {topic.name}: Spark cannot reach its bucket, where rows are staged"
            )
        self.stage = RowStager(topic, bucket)

    def link(self, app: str, epoch: int, messages: Sequence[StagedRows | None]) -> LinkReply:
        objects = [item for message in messages if message for item in message.objects]
        topic = self.options.topic
        return ask_broker(self.options.broker, lambda: link_objects(topic, app, epoch, objects))


class TopicWriter(DataSourceArrowWriter):
    """Writes a batch; the whole batch becomes visible at once."""

    def __init__(
        self, options: SourceOptions, topic: TopicReply, schema: StructType, overwrite: bool
    ) -> None:
        self._commit = _Commit(options, topic, schema, overwrite)
        self._transaction = options.transaction or (f"{ONCE}{uuid.uuid4().hex}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return StagedRows(self._commit.stage.rows(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit.link(*self._transaction, _staged_rows(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: objects that are never linked are swept later."""


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each exactly once."""

    def __init__(
        self, options: SourceOptions, topic: TopicReply, schema: StructType, overwrite: bool
    ) -> None:
        if options.transaction is not None:
            raise WriteRefused(
                "a stream has transactions of its own; leave out txnAppId and txnVersion"
            )
        self._commit = _Commit(options, topic, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY)
        return StagedRows(self._commit.stage.rows(iterator), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        staged = _staged_rows(messages)
        queries = {message.query for message in staged if message is not None}
        if not any(message and message.objects for message in staged):
            return
        query = next(iter(queries - {None}), None)
        if query is None or len(queries) != 1:
            raise WriteRefused(f"Spark does not name the query of batch {batchId}")
        self._commit.link(f"query-{query}", batchId, staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: objects that are never linked are swept later."""


def _staged_rows(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows | None]:
    return [message if isinstance(message, StagedRows) else None for message in messages]
