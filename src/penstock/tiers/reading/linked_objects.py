"""Objects that another engine put into the bucket and whose rows got offsets by a link.

They are Parquet files without offsets: row n has the n-th offset of the range. All rows of a link
have the link's timestamp. A file with a column `payload`, and otherwise only columns of the
envelope, contains raw messages; any other file contains rows of a typed topic. A raw message whose
column `subject` is missing or null has the topic's id as its subject.
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
from penstock.tiers.manifest.entries import ObjectEntry, Transactions

_LEAD: Final = ("partition", "offset", "timestamp")


def entries_of(frames: Iterable[LinkFrame], **facts: int | str) -> list[ObjectEntry]:
    """The manifest entries of linked objects, according to the links, each with these facts."""
    return [
        msgspec.structs.replace(linked_entry(ref, span, frame.timestamp), **facts)
        for frame in frames
        for part in frame.link.parts
        for ref, span in _ranges(part.partition, part.first_offset, part.objects)
        if ref.rows
    ]


def updated_transactions(
    before: Transactions, frames: Iterable[LinkFrame], known: Mapping[str, Transaction]
) -> Transactions:
    """The last link of each application, for the manifest, after these links.

    `known` are the applications in the log. Applications that link only once are dropped with it.
    The offsets of a link are dropped once the log has dropped them.
    """
    new = {
        frame.link.app: (
            frame.link.epoch,
            {extent.partition: (extent.first, extent.next) for extent in link_ranges(frame.link)},
        )
        for frame in frames
    }
    merged = {app: link for app, link in before.items() if app not in new} | new
    return {
        app: (link[0], {}) if app in known and link[1] and not known[app].ranges else link
        for app, link in merged.items()
        if app in known or not app.startswith(ONCE)
    }


def find(where: InObjects, offset: Offset) -> tuple[ObjectEntry, PartitionRange] | None:
    """The object of a link that covers the offset, while the link is in the WAL only."""
    for ref, span in _ranges(where.partition, where.first_offset, where.objects):
        if span.first <= offset < span.next:
            return linked_entry(ref, span, where.timestamp), span
    return None


def row_groups(metadata: pq.FileMetaData, row: int) -> tuple[list[int], int]:
    """The row group that contains this row and all later ones, and the number of its first row."""
    first = 0
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        if row < first + rows:
            return list(range(index, metadata.num_row_groups)), first
        first += rows
    return [], first


def decode(entry: ObjectEntry, table: pa.Table, subject: bytes, offset: Offset) -> Batch | None:
    """The rows as a batch that begins at `offset`; None if there are none."""
    if not table.num_rows:
        return None
    return Batch(
        PartitionId(entry.ranges[0].partition),
        offset,
        table.num_rows,
        Microseconds(entry.first_timestamp),
        _content(table.combine_chunks(), subject),
    )


def _ranges(
    partition: int, first: int, refs: Iterable[ObjectRef]
) -> Iterable[tuple[ObjectRef, PartitionRange]]:
    """Each object of a link with its range."""
    for ref in refs:
        yield ref, PartitionRange(partition, first, first + ref.rows)
        first += ref.rows


def linked_entry(ref: ObjectRef, span: PartitionRange, timestamp: int = 0) -> ObjectEntry:
    """The entry of an object according to its link; facts in the object itself are missing."""
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
    """The messages of a table whose columns have one chunk each."""
    names = table.schema.names
    if not _is_raw(table.schema):
        return table.select([name for name in names if name not in _LEAD]).to_batches()[0]
    headers = _binary(table, "headers") if "headers" in names else None
    of_rows = subjects(table.column("subject").chunk(0), subject) if "subject" in names else subject
    return Columns(of_rows, _binary(table, "payload"), headers)


def subject_column_index(metadata: pq.FileMetaData) -> int | None:
    """The index of the column with the subjects of raw messages; None if there is none."""
    schema = metadata.schema.to_arrow_schema()
    if not _is_raw(schema) or "subject" not in schema.names:
        return None
    index: int = schema.names.index("subject")
    return index


def subjects(column: pa.Array, subject: bytes) -> pa.BinaryArray:
    """The subjects in their stored form; `subject` in place of null."""
    return column.cast(pa.binary()).fill_null(subject)


def _is_raw(schema: pa.Schema) -> bool:
    return not set(schema.names) - set(ENVELOPE.names) and _is_bytes(schema, "payload")


def _is_bytes(schema: pa.Schema, name: str) -> bool:
    kinds = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
    return name in schema.names and schema.field(name).type in kinds


def _binary(table: pa.Table, name: str) -> pa.BinaryArray:
    return table.column(name).chunk(0).cast(pa.binary()).fill_null(b"")
