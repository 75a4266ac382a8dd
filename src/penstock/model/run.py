"""Runs: messages of one partition to append together, before they have offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from penstock.model.columns import Columns, content_bytes
from penstock.model.errors import RunInvalid
from penstock.model.limits import (
    MESSAGES_PER_BYTE_MAX,
    PARTITION_ID_MAX,
    RUN_BYTES_MAX,
    RUN_MESSAGES_MAX,
)
from penstock.model.units import ONLY_PARTITION, PartitionId


class Origin(Enum):
    """Where a run comes from; the rules of a topic may depend on it."""

    CLIENT = "client"
    """Published over any protocol."""
    BROKER = "broker"
    """Made by the broker itself: an authorised broadcast, or a delete marker."""
    COUNTER = "counter"
    """Sums of a stream of counters."""
    MIRROR = "mirror"
    """Copied by a mirror."""


@dataclass(slots=True)
class Run:
    """Raw messages as lists, one for each column.

    `subjects` is one value when all messages share it. An empty header block means no headers.
    Without `timestamps`, the log sets the time of the append.
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
        """Bytes of all columns; raises RunInvalid when they do not fit or break a limit."""
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


class EncodedRows(NamedTuple):
    """The body of a frame in pieces, with its CRC32C if it is large."""

    pieces: list[bytes | bytearray | memoryview]
    crc32c: int | None


@dataclass(slots=True)
class ColumnRun:
    """Messages as Arrow columns: raw ones, or rows of a typed topic.

    `encoded` is the encoded frame body, if it is known already.
    """

    content: Columns | pa.RecordBatch
    partition: PartitionId = ONLY_PARTITION
    timestamps: pa.Int64Array | None = None
    encoded: EncodedRows | None = None
    size_bytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.size_bytes = content_bytes(self.content)

    @property
    def count(self) -> int:
        if isinstance(self.content, Columns):
            return len(self.content.payload)
        return int(self.content.num_rows)

    def measure(self) -> int:
        """Bytes of all columns; raises RunInvalid when they do not fit or break a limit."""
        if isinstance(self.content, Columns):
            _check_columns(self.content)
        if self.timestamps is not None:
            _same_length("timestamps", self.timestamps, self.count)
        count, size = self.count, self.size_bytes
        _within_limits(count, size, self.partition)
        if not isinstance(self.content, Columns) and count > MESSAGES_PER_BYTE_MAX * size:
            raise RunInvalid(f"{count} rows in {size} bytes: a row must take a bit or more")
        return size


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
    """Length of joined subjects; raises RunInvalid unless they are UTF-8, as tables need them."""
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
