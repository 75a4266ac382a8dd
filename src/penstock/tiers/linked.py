"""Objects that another writer laid into the bucket, and whose rows got offsets by a link.

They are Parquet files without offsets: the n-th row has the n-th offset of the range. All rows of a
link carry its time. A file with a column `payload`, and beside it none but those of the envelope,
holds raw messages; any other holds rows of a typed topic. Without a column `subject`, or with null
in it, a raw message carries the topic's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.formats.bodies import ONCE, ObjectRef, Transaction, link_ranges
from penstock.log import InObjects, LinkFrame
from penstock.model.batch import ENVELOPE, Batch
from penstock.model.columns import Columns
from penstock.model.units import Microseconds, Offset, PartitionId, PartitionRange
from penstock.tiers.entries import ObjectEntry, Transactions

_LEAD: Final = ("partition", "offset", "timestamp")


def entries_of(frames: Iterable[LinkFrame], **facts: int | str) -> list[ObjectEntry]:
    """What the manifest says of linked objects: what the links tell, and these facts of all."""
    return [
        msgspec.structs.replace(entry_of(ref, span, frame.timestamp), **facts)
        for frame in frames
        for part in frame.link.parts
        for ref, span in _spans(part.partition, part.first_offset, part.objects)
        if ref.rows
    ]


def transactions(
    before: Transactions, frames: Iterable[LinkFrame], known: Mapping[str, Transaction]
) -> Transactions:
    """What the manifest says of applications once it has these links.

    `known` are those that the log remembers: of the others, those that link once are left out. Of
    those without offsets there, the manifest has none either.
    """
    made = {
        frame.link.app: (
            frame.link.epoch,
            {extent.partition: (extent.first, extent.next) for extent in link_ranges(frame.link)},
        )
        for frame in frames
    }
    all_ = {app: done for app, done in before.items() if app not in made} | made
    return {
        app: (done[0], {}) if app in known and done[1] and not known[app].ranges else done
        for app, done in all_.items()
        if app in known or not app.startswith(ONCE)
    }


def find(where: InObjects, offset: Offset) -> tuple[ObjectEntry, PartitionRange] | None:
    """The object of a link that has the offset, while only the WAL knows of it."""
    for ref, span in _spans(where.partition, where.first_offset, where.objects):
        if span.first <= offset < span.next:
            return entry_of(ref, span, where.timestamp), span
    return None


def row_groups(metadata: pq.FileMetaData, row: int) -> tuple[list[int], int]:
    """Row groups from the one that has this row on, and its first row."""
    first = 0
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        if row < first + rows:
            return list(range(index, metadata.num_row_groups)), first
        first += rows
    return [], first


def decode(entry: ObjectEntry, table: pa.Table, subject: bytes, offset: Offset) -> Batch | None:
    """Rows as a batch that begins at `offset`; None when there are none."""
    if not table.num_rows:
        return None
    return Batch(
        PartitionId(entry.ranges[0].partition),
        offset,
        table.num_rows,
        Microseconds(entry.first_timestamp),
        _content(table.combine_chunks(), subject),
    )


def _spans(
    partition: int, first: int, refs: Iterable[ObjectRef]
) -> Iterable[tuple[ObjectRef, PartitionRange]]:
    for ref in refs:
        yield ref, PartitionRange(partition, first, first + ref.rows)
        first += ref.rows


def entry_of(ref: ObjectRef, span: PartitionRange, timestamp: int = 0) -> ObjectEntry:
    """What is known of an object that only a link, or its writer, has told of."""
    return ObjectEntry(
        object_id=ref.key,
        start_offset=span.first,
        end_offset=span.next - 1,
        size=ref.size_bytes,
        etag=ref.etag,
        created_at=0,
        completed=True,
        upload_id=None,
        backend="",
        sequence=0,
        ranges=[span],
        rows=ref.rows,
        crc32c=ref.crc32c,
        footer_bytes=0,
        footer_crc32c=0,
        first_timestamp=timestamp,
        last_timestamp=timestamp,
        epoch=0,
        first_frame=0,
        next_frame=0,
        linked=True,
    )


def _content(table: pa.Table, subject: bytes) -> Columns | pa.RecordBatch:
    """Of a table whose columns are one piece each."""
    if not _is_raw(table.schema):
        own = table.select([name for name in table.schema.names if name not in _LEAD])
        return own.to_batches()[0]
    names = table.schema.names
    headers = _binary(table, "headers") if "headers" in names else None
    own = subjects(table.column("subject").chunk(0), subject) if "subject" in names else subject
    return Columns(own, _binary(table, "payload"), headers)


def subject_place(metadata: pq.FileMetaData) -> int | None:
    """Where among the columns of a file the subjects of raw messages are; None if nowhere."""
    schema = metadata.schema.to_arrow_schema()
    if not _is_raw(schema) or "subject" not in schema.names:
        return None
    place: int = schema.names.index("subject")
    return place


def subjects(column: pa.Array, subject: bytes) -> pa.BinaryArray:
    """Subjects as they are stored; `subject` where there is none."""
    return column.cast(pa.binary()).fill_null(subject)


def _is_raw(schema: pa.Schema) -> bool:
    return not set(schema.names) - set(ENVELOPE.names) and _is_bytes(schema, "payload")


def _is_bytes(schema: pa.Schema, name: str) -> bool:
    kinds = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
    return name in schema.names and schema.field(name).type in kinds


def _binary(table: pa.Table, name: str) -> pa.BinaryArray:
    return table.column(name).chunk(0).cast(pa.binary()).fill_null(b"")
