"""Rows of a task become objects in the bucket that nobody sees yet: the first of two phases.

Names are used once, so a task that is tried again or twice at a time leaves objects that count and
objects that never will; only the link tells them apart.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from penstock.client.calls import schema_of
from penstock.formats import arrow_rows
from penstock.formats.api import TopicReply
from penstock.formats.objects import ROW_GROUP_BYTES, ROW_GROUP_ROWS, SUFFIX, staged_prefix
from penstock.formats.plan_api import StagedObject
from penstock.model import names, partition_value
from penstock.model.errors import FormatError
from penstock.spark.buckets import Bucket
from penstock.spark.columns import LEAD
from penstock.spark.errors import ColumnsInvalid, WriteRefused

STAGED_BYTES: Final = 128 << 20
"""Of rows in memory that become one object, or one for each partition."""

_RAW: Final = pa.schema(
    [
        # First: the owner reads the subjects and nothing behind them.
        pa.field("subject", pa.string()),
        pa.field("headers", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def stored_schema(topic: TopicReply) -> pa.Schema:
    """The columns of staged files."""
    own = schema_of(topic)
    return _RAW if own is None else own


def check_columns(topic: TopicReply, given: list[str]) -> None:
    """Raises ColumnsInvalid unless rows with these columns can be written to the topic."""
    known = stored_schema(topic)
    for name in given:
        if name not in known.names and name not in LEAD:
            raise ColumnsInvalid(
                f"topic {topic.name} has no column {name!r}; known: {', '.join(known.names)}"
            )
    for field in known:
        if field.name not in given and not field.nullable:
            raise ColumnsInvalid(f"column {field.name!r} of topic {topic.name} is missing")


@dataclass(frozen=True, slots=True)
class Stage:
    """Lays rows of one topic into its bucket."""

    topic: TopicReply
    bucket: Bucket

    def rows(self, batches: Iterable[pa.RecordBatch]) -> list[StagedObject]:
        """Objects of all these rows, in order; raises ColumnsInvalid when one does not fit."""
        staged: list[StagedObject] = []
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(self._fitted(batch))
            size += held[-1].nbytes
            if size >= STAGED_BYTES:
                staged += self._put(held)
                held, size = [], 0
        return staged + self._put(held)

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch in the topic's own columns."""
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
        return [self._object(part, value) for value, part in self._divided(table)]

    def _divided(self, table: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
        """By the partition column, if there is one; rows of a partition keep their order."""
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
    told = subjects.drop_null()
    try:
        arrow_rows.check_subjects(told)
    except FormatError as error:
        raise ColumnsInvalid(str(error)) from None


def refuse_unwritable(topic: TopicReply, overwrite: bool) -> None:
    """Raises WriteRefused for what no write can be."""
    if overwrite:
        raise WriteRefused(f"topic {topic.name} cannot be overwritten; use mode append")
    if topic.durability == "memory":
        raise WriteRefused(f"topic {topic.name} lives in memory: push to it instead")
    if topic.fields is None and topic.partition_column is not None:
        raise WriteRefused(f"topic {topic.name} is partitioned by subject: push to it instead")
