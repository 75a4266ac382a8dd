"""Subjects of the rows of a link, where they have some of their own: as the link's frame has them.

[offsets int32 x rows+1] [subjects], of all parts in their order: the buffers of an Arrow array.
Decoding copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.formats.bodies import Link
from penstock.formats.extents import Extent, link_extents
from penstock.model.errors import FormatError


def encode(subjects: pa.BinaryArray) -> bytes:
    """A column without nulls, of less than 2 GiB."""
    _, offsets, values = subjects.buffers()
    rows, first = len(subjects), subjects.offset
    window = np.frombuffer(offsets, np.int32)[first : first + rows + 1]
    start, stop = int(window[0]), int(window[-1])
    data = memoryview(values)[start:stop] if stop > start else b""
    return b"".join(((window - start).astype(np.int32).tobytes(), data))


def decode(data: bytes, rows: int) -> pa.BinaryArray:
    """Raises FormatError."""
    end = 4 * (rows + 1)
    if len(data) < end or end + int.from_bytes(data[end - 4 : end], "little") != len(data):
        raise FormatError(f"the subjects of {rows} linked rows do not add up")
    buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(pa.binary(), rows, [None, buffer.slice(0, end), buffer.slice(end)])


def parts(link: Link) -> Iterator[tuple[Extent, pa.BinaryArray | None]]:
    """The offsets of a link by partition, and their subjects if they have some of their own."""
    extents = link_extents(link)
    if not link.subjects:
        yield from ((extent, None) for extent in extents)
        return
    rows = sum(extent.next - extent.first for extent in extents)
    subjects, row = decode(link.subjects, rows), 0
    for extent in extents:
        count = extent.next - extent.first
        yield extent, subjects.slice(row, count)
        row += count
