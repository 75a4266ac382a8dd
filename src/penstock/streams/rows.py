"""Messages as plain lists, the form in which streams process and deliver them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.formats import json_text
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.units import Offset


@dataclass(frozen=True, slots=True)
class Rows:
    """Messages column by column, in offset order."""

    offsets: Sequence[int]
    """A range if no offset is missing."""
    subjects: Sequence[bytes]
    headers: Sequence[bytes] | None
    """None if no message has any."""
    payloads: Sequence[bytes]
    timestamps: Sequence[int]
    """Microseconds since 1970."""

    @property
    def count(self) -> int:
        return len(self.payloads)

    @property
    def seqs(self) -> Sequence[int]:
        """The messages' NATS sequences."""
        offsets = self.offsets
        if isinstance(offsets, range):
            return range(offsets.start + 1, offsets.stop + 1)
        return [offset + 1 for offset in offsets]

    def part(self, start: int, stop: int) -> Rows:
        """The messages in a range of indexes."""
        return Rows(
            self.offsets[start:stop],
            self.subjects[start:stop],
            None if self.headers is None else self.headers[start:stop],
            self.payloads[start:stop],
            self.timestamps[start:stop],
        )

    def take(self, indexes: Sequence[int]) -> Rows:
        """The messages at these indexes."""
        return Rows(
            [self.offsets[index] for index in indexes],
            [self.subjects[index] for index in indexes],
            None if self.headers is None else [self.headers[index] for index in indexes],
            [self.payloads[index] for index in indexes],
            [self.timestamps[index] for index in indexes],
        )


NO_ROWS = Rows(range(0), [], None, [], [])


def rows_of(batch: Batch, subject: bytes) -> Rows:
    """The messages of a batch; rows of a typed topic become JSON objects under the topic's
    subject.
    """
    content, count = batch.content, batch.messages
    offsets: Sequence[int] = range(batch.first_offset, batch.first_offset + count)
    if batch.positions is not None:
        offsets = batch.offsets().tolist()
    stamps = batch.timestamps
    times = [batch.first_timestamp] * count if stamps is None else stamps.to_pylist()
    if not isinstance(content, Columns):
        return Rows(offsets, [subject] * count, None, _json_rows(batch), times)
    shared = content.subject
    subjects = [shared] * count if isinstance(shared, bytes) else shared.to_pylist()
    headers = None
    if content.headers is not None:
        headers = [block or b"" for block in content.headers.to_pylist()]
    return Rows(offsets, subjects, headers, content.payload.to_pylist(), times)


def row_of(batch: Batch, offset: int, subject: bytes) -> Rows:
    """One message of a batch without deleted messages."""
    content, index = batch.content, offset - batch.first_offset
    if not isinstance(content, Columns) or batch.timestamps is not None:
        return rows_of(batch.starting_at(Offset(offset)).limited_to(1), subject)
    own, block = content.subject, content.headers
    return Rows(
        range(offset, offset + 1),
        [own if isinstance(own, bytes) else own[index].as_py()],
        None if block is None else [block[index].as_py() or b""],
        [content.payload[index].as_py()],
        [batch.first_timestamp],
    )


def joined(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows that follow one another."""
    if len(parts) == 1:
        return parts[0]
    offsets: Sequence[int] = [offset for part in parts for offset in part.offsets]
    if len(offsets) == offsets[-1] - offsets[0] + 1:
        offsets = range(offsets[0], offsets[-1] + 1)
    headers = None
    if any(part.headers is not None for part in parts):
        headers = [block for part in parts for block in part.headers or [b""] * part.count]
    return Rows(
        offsets,
        [subject for part in parts for subject in part.subjects],
        headers,
        [payload for part in parts for payload in part.payloads],
        [stamp for part in parts for stamp in part.timestamps],
    )


def _json_rows(batch: Batch) -> list[bytes]:
    text = b"".join(json_text.text(batch.content)).removesuffix(b",")
    return [bytes(row) for row in msgspec.json.decode(b"[%b]" % text, type=list[msgspec.Raw])]


def first_rows(batches: Sequence[Batch], messages_max: int, subject: bytes) -> Rows:
    """The first messages of these batches; `subject` is used for messages without one."""
    parts: list[Rows] = []
    for batch in batches:
        count = batch.messages
        if count:
            first = batch if count <= messages_max else batch.first_messages(messages_max)
            parts.append(rows_of(first, subject))
        if count >= messages_max:
            break
        messages_max -= count
    return joined(parts) if parts else NO_ROWS
