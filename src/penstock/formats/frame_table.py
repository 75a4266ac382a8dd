"""Frame tables: the file positions of messages by partition, offset and time.

An entry stands for consecutive frames of one partition, up to STRETCH_BYTES, in file order. The
encoded table is the number of entries (uint32), then the columns below, little endian and
compressed with zstd.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange

STRETCH_BYTES: Final = 64 << 10
ENTRIES_MAX: Final = 1 << 24
"""More than the frames of a file of a gigabyte; a larger table is damage."""

_COUNT: Final = struct.Struct("<I")
_COLUMNS: Final = ("<u4", "<i8", "<i8", "<i8", "<u4", "<i8")
_CODES: Final = {"<u4": "I", "<i8": "q"}
_NO_ROWS: Final = array("I")
_ENTRY_BYTES: Final = sum(np.dtype(c).itemsize for c in _COLUMNS)


class TableEntry(NamedTuple):
    """Consecutive frames of a partition; the fields are in stored order of the columns."""

    partition: int
    first_offset: int
    next_offset: int
    position: int
    length: int
    first_timestamp: int


class FrameTableWriter:
    """The table of an active file.

    One thread may add entries while others look them up: an entry is complete before lookups find
    it, and an entry that grows gets its bytes before its offsets.
    """

    def __init__(self) -> None:
        self._columns = (array("I"), array("q"), array("q"), array("q"), array("I"), array("q"))
        self._rows: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, extent: PartitionRange, position: int, length: int, timestamp: int) -> None:
        """Add the offsets of a frame; frames must be added in file order."""
        partitions, _, nexts, positions, lengths, _ = self._columns
        partition, first, next_ = extent
        if partitions and partitions[-1] == partition:
            adjacent = positions[-1] + lengths[-1] == position and nexts[-1] == first
            if adjacent and lengths[-1] + length <= STRETCH_BYTES:
                lengths[-1] += length
                nexts[-1] = next_
                return
        row = (partition, first, next_, position, length, timestamp)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self._rows.setdefault(partition, array("I")).append(len(partitions) - 1)

    def encode(self) -> bytes:
        raw = b"".join(column.tobytes() for column in self._columns)
        return _COUNT.pack(len(self)) + bytes(pa.compress(raw, codec="zstd", asbytes=True))

    def rows(self, partition: int) -> Sequence[int]:
        return self._rows.get(partition, _NO_ROWS)

    def columns(self) -> Sequence[Sequence[int]]:
        return self._columns


class FrameTable:
    """The table of a sealed file."""

    def __init__(self, columns: tuple[npt.NDArray[np.int64], ...]) -> None:
        self._columns = tuple(array(_CODES[c.dtype.str], c.tobytes()) for c in columns)
        self._rows: dict[int, Sequence[int]] = {}
        partitions = columns[0]
        order = np.argsort(partitions, kind="stable").astype(np.uint32)
        values, starts = np.unique(partitions[order], return_index=True)
        stops = [*starts.tolist(), len(order)][1:]
        for value, start, stop in zip(values.tolist(), starts.tolist(), stops, strict=True):
            self._rows[value] = array("I", order[start:stop].tobytes())

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def nbytes(self) -> int:
        return len(self) * (_ENTRY_BYTES + 4) + 128 * len(self._rows)

    @property
    def partitions(self) -> list[int]:
        return list(self._rows)

    def rows(self, partition: int) -> Sequence[int]:
        return self._rows.get(partition, _NO_ROWS)

    def columns(self) -> Sequence[Sequence[int]]:
        return self._columns


def decode(data: bytes) -> FrameTable:
    """Decode a table; raises FormatError."""
    if len(data) < _COUNT.size:
        raise FormatError(f"a frame table has at least {_COUNT.size} bytes, found {len(data)}")
    (count,) = _COUNT.unpack_from(data)
    if count > ENTRIES_MAX:
        raise FormatError(f"a frame table may have {ENTRIES_MAX} entries, this one has {count}")
    try:
        raw = pa.decompress(
            data[_COUNT.size :], codec="zstd", decompressed_size=count * _ENTRY_BYTES, asbytes=True
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"a frame table cannot be decompressed: {error}") from error
    columns, position = [], 0
    for kind in _COLUMNS:
        columns.append(np.frombuffer(raw, kind, count, position))
        position += count * np.dtype(kind).itemsize
    return FrameTable(tuple(columns))


def entries_from(
    table: FrameTable | FrameTableWriter, partition: int, offset: int
) -> Iterator[TableEntry]:
    """Entries of a partition in order, from the one that holds `offset` or comes after it."""
    rows = table.rows(partition)
    columns = table.columns()
    nexts = columns[2]
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if nexts[rows[middle]] <= offset:
            low = middle + 1
        else:
            high = middle
    for index in range(low, len(rows)):
        row = rows[index]
        yield TableEntry._make(column[row] for column in columns)


def entry_at_time(
    table: FrameTable | FrameTableWriter, partition: int, timestamp: int
) -> TableEntry | None:
    """The last entry that starts before `timestamp`, or the first one; None without entries."""
    rows = table.rows(partition)
    columns = table.columns()
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if columns[5][rows[middle]] < timestamp:
            low = middle + 1
        else:
            high = middle
    if not len(rows):
        return None
    return TableEntry._make(column[rows[max(low - 1, 0)]] for column in columns)
