"""Subjects of linked rows in the body of a link, if the rows have subjects of their own.

The layout is [offsets int32 x rows+1] [subjects] for all parts in order, the buffers of an Arrow
array, so that decoding copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.formats.bodies import LinkBody, link_ranges
from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange


def encode(subjects: pa.BinaryArray) -> bytes:
    """Encode a column without nulls of less than 2 GiB."""
    _, offsets, values = subjects.buffers()
    rows, first = len(subjects), subjects.offset
    window = np.frombuffer(offsets, np.int32)[first : first + rows + 1]
    start, stop = int(window[0]), int(window[-1])
    data = memoryview(values)[start:stop] if stop > start else b""
    return b"".join(((window - start).astype(np.int32).tobytes(), data))


def decode(data: bytes, rows: int) -> pa.BinaryArray:
    """Decode the subjects of all rows of a link; raises FormatError."""
    end = 4 * (rows + 1)
    if len(data) < end or end + int.from_bytes(data[end - 4 : end], "little") != len(data):
        raise FormatError(f"the subjects of {rows} linked rows do not add up")
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(pa.binary(), rows, [None, buffer.slice(0, end), buffer.slice(end)])


def parts(link: LinkBody) -> Iterator[tuple[PartitionRange, pa.BinaryArray | None]]:
    """The offsets of a link by partition, with their subjects if the link has any."""
    extents = link_ranges(link)
    if not link.subjects:
        yield from ((extent, None) for extent in extents)
        return
    rows = sum(extent.next - extent.first for extent in extents)
    subjects, row = decode(link.subjects, rows), 0
    for extent in extents:
        count = extent.next - extent.first
        yield extent, subjects.slice(row, count)
        row += count
