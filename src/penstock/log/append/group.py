"""A group: the runs and records that were appended since the last write, in order.

Consecutive runs of one partition are joined into one batch, so that many publishers with one
message each cost one frame; of runs that are columns, only small ones are joined. A record closes
the batch of its partition, so that a deletion follows the messages that it deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.formats import batches, packed
from penstock.formats.frames import (
    ENTRIES_MAX,
    Buffer,
    Codec,
    FrameHeader,
    Kind,
    encode_frame,
)
from penstock.model.batch import Batch, concat_contents, same_kind
from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid
from penstock.model.limits import PARTITION_ID_MAX, RUN_MESSAGES_MAX
from penstock.model.run import ColumnRun, EncodedRows, Run
from penstock.model.units import Microseconds, Offset, PartitionId

JOINED_RUN_BYTES_MAX: Final = 32 << 10
"""Copying a run of columns up to this size costs less than a frame of its own."""


class Sealed(NamedTuple):
    """A frame of a group, numbered and stamped."""

    header: FrameHeader
    pieces: list[Buffer]
    item: Batch | Record


@dataclass(slots=True)
class Joined:
    """Runs that become one batch."""

    partition: PartitionId
    first_offset: Offset
    size_bytes: int
    subjects: bytes | list[bytes]
    payloads: list[bytes]
    headers: list[bytes] | None

    def takes(self, run: Run, size_bytes: int, frame_bytes: int) -> bool:
        fits = self.size_bytes + size_bytes <= frame_bytes
        return fits and len(self.payloads) + run.count <= RUN_MESSAGES_MAX

    def join(self, run: Run, size_bytes: int) -> None:
        before, more = len(self.payloads), len(run.payloads)
        mine, theirs = self.subjects, run.subjects
        if not (isinstance(mine, bytes) and mine == theirs):
            self.subjects = [mine] * before if isinstance(mine, bytes) else mine
            self.subjects += [theirs] * more if isinstance(theirs, bytes) else theirs
        if self.headers is not None or run.headers is not None:
            self.headers = self.headers or [b""] * before
            self.headers += run.headers or [b""] * more
        self.payloads += run.payloads
        self.size_bytes += size_bytes


@dataclass(slots=True)
class JoinedColumns:
    """Runs of columns that become one batch; a run with timestamps is never joined."""

    partition: PartitionId
    first_offset: Offset
    size_bytes: int
    place: int
    count: int
    contents: list[Columns | pa.RecordBatch]
    timestamps: pa.Int64Array | None = None

    def takes(self, run: ColumnRun, size_bytes: int, frame_bytes: int) -> bool:
        fits = self.size_bytes + size_bytes <= frame_bytes
        fits = fits and self.count + run.count <= RUN_MESSAGES_MAX
        return fits and same_kind(self.contents[-1], run.content)

    @property
    def content(self) -> Columns | pa.RecordBatch:
        return concat_contents(self.contents)

    def join(self, run: ColumnRun, size_bytes: int) -> None:
        self.contents.append(run.content)
        self.count += run.count
        self.size_bytes += size_bytes


@dataclass(slots=True)
class Record:
    """A frame that is no batch, with its encoded body; raises RunInvalid if it does not fit."""

    kind: Kind
    partition: PartitionId
    first_offset: Offset
    count: int
    body: bytes
    flags: int = 0
    timestamp: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.partition <= PARTITION_ID_MAX:
            raise RunInvalid(f"partition {self.partition} is not within 0 to {PARTITION_ID_MAX}")
        if not 0 <= self.count <= ENTRIES_MAX:
            raise RunInvalid(f"a frame may have {ENTRIES_MAX} entries, this one has {self.count}")


class Group:
    """Runs and records that become the next frames."""

    __slots__ = ("_open", "bodies", "items", "size_bytes", "stores")

    def __init__(self) -> None:
        self.items: list[Joined | JoinedColumns | Record] = []
        self.bodies: dict[int, EncodedRows] = {}
        """Encoded bodies that runs brought along, by the index of their item."""
        self.size_bytes = 0
        self.stores = False
        """Whether the group has more than checkpoints."""
        self._open: dict[int, Joined | JoinedColumns] = {}

    def add(self, run: Run | ColumnRun, first: Offset, size_bytes: int, frame_bytes: int) -> None:
        """Add a run; it is joined to the previous one of its partition up to `frame_bytes`."""
        self._add(run, first, size_bytes, frame_bytes)
        self.size_bytes += size_bytes
        self.stores = True

    def _add(self, run: Run | ColumnRun, first: Offset, size_bytes: int, frame_bytes: int) -> None:
        if isinstance(run, Run) and run.timestamps is not None:
            columns = packed.columns(*_lists(run))
            stamps = pa.array(run.timestamps, pa.int64())
            run = ColumnRun(columns, run.partition, stamps)
        if isinstance(run, ColumnRun):
            self._add_columns(run, first, size_bytes, frame_bytes)
            return
        last = self._open.get(run.partition)
        if isinstance(last, Joined) and last.takes(run, size_bytes, frame_bytes):
            last.join(run, size_bytes)
            return
        joined = Joined(run.partition, first, size_bytes, *_lists(run))
        self._open[run.partition] = joined
        self.items.append(joined)

    def record(self, record: Record, touched: Iterable[int] = ()) -> None:
        """Add a record; later runs of its partitions begin new batches."""
        self.stores |= record.kind is not Kind.CHECKPOINT
        self.size_bytes += len(record.body)
        for partition in touched or (record.partition,):
            self._open.pop(partition, None)
        self.items.append(record)

    def stamp(self, now: Microseconds, floor: Microseconds) -> list[Batch | Record]:
        """Batches and records in order, with timestamps that never decrease nor precede `floor`.

        Messages without a timestamp get `now`; others keep theirs, past or future.
        """
        stamped: list[Batch | Record] = []
        for item in self.items:
            stamps = item.timestamps if isinstance(item, JoinedColumns) else None
            if stamps is None:
                first = floor = max(now, floor)
            else:
                rising = np.maximum.accumulate(stamps.to_numpy())
                stamps = pa.array(np.maximum(rising, floor))
                first = Microseconds(stamps[0].as_py())
                floor = Microseconds(stamps[-1].as_py())
            if isinstance(item, Joined):
                content = packed.columns(item.subjects, item.payloads, item.headers)
                count = len(item.payloads)
                stamped.append(Batch(item.partition, item.first_offset, count, first, content))
            elif isinstance(item, Record):
                item.timestamp = first
                stamped.append(item)
            else:
                batch = Batch(item.partition, item.first_offset, item.count, first, item.content)
                batch.timestamps = stamps
                stamped.append(batch)
        return stamped

    def _add_columns(
        self, run: ColumnRun, first: Offset, size_bytes: int, frame_bytes: int
    ) -> None:
        last = self._open.pop(run.partition, None)
        small = size_bytes <= JOINED_RUN_BYTES_MAX and run.timestamps is None
        if small and isinstance(last, JoinedColumns) and last.takes(run, size_bytes, frame_bytes):
            last.join(run, size_bytes)
            self.bodies.pop(last.place, None)
            self._open[run.partition] = last
            return
        place = len(self.items)
        joined = JoinedColumns(
            run.partition, first, size_bytes, place, run.count, [run.content], run.timestamps
        )
        self.items.append(joined)
        if run.encoded is not None and run.timestamps is None:
            self.bodies[place] = run.encoded
        if small:
            self._open[run.partition] = joined


def seal(
    item: Batch | Record,
    body: EncodedRows | None,
    mark: int,
    number: int,
    durable: int,
    epoch: int,
) -> Sealed:
    """Encode the frame of a batch or record; `body` is the encoded body if there is one."""
    codec: Codec
    pieces: list[Buffer]
    if isinstance(item, Record):
        codec, flags, pieces = Codec.NATIVE, item.flags, [item.body] if item.body else []
        kind, stamp = item.kind, Microseconds(item.timestamp)
    else:
        kind, stamp = Kind.BATCH, item.first_timestamp
        if body is not None:
            codec, flags, pieces = Codec.ARROW, 0, body.pieces
        else:
            codec, flags, pieces = batches.encode(item.content, item.timestamps)
    header = FrameHeader(
        mark,
        sum(map(len, pieces)),
        kind,
        codec,
        flags,
        item.partition,
        number,
        durable,
        epoch,
        item.first_offset,
        stamp,
        item.count,
    )
    return Sealed(header, encode_frame(header, pieces, body and body.crc32c), item)


def _lists(run: Run) -> tuple[bytes | list[bytes], list[bytes], list[bytes] | None]:
    """Subjects, payloads and headers of a run as lists, which belong to the log from now on."""
    return (
        run.subjects if isinstance(run.subjects, bytes) else _list(run.subjects),
        _list(run.payloads),
        None if run.headers is None else _list(run.headers),
    )


def _list(values: Sequence[bytes]) -> list[bytes]:
    return values if isinstance(values, list) else list(values)
