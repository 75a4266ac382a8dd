"""Arrow IPC streams that come from and go to clients.

What a client sends is not believed: its buffers are checked before anything reads them. It may not
be compressed nor dictionary-encoded, so that memory is bounded by the bytes that came.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from penstock.model.errors import FormatError

NOTE: Final = b"penstock"
"""Key of the schema's metadata under which a reply tells what it is."""

_U16: Final = struct.Struct("<H")
_I32: Final = struct.Struct("<i")
_MESSAGE_HEADER: Final = 2
_RECORD_BATCH_COMPRESSION: Final = 3


def read(body: bytes | memoryview) -> pa.Table:
    """The rows of one stream, over the same bytes; raises FormatError."""
    buffer = pa.py_buffer(body)
    try:
        _demand_plain(buffer)
        table = pa.ipc.open_stream(buffer).read_all()
        table.validate(full=True)
        # Nobody checked that these are UTF-8, and an error may tell any of them.
        _ = [(field.name, str(field.type)) for field in table.schema]
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        raise FormatError(f"not a valid Arrow IPC stream: {_first_line(error)}") from None
    return table


def write(schema: pa.Schema, batches: Iterable[pa.RecordBatch], note: bytes) -> bytes:
    """One stream whose schema carries the note."""
    sink = pa.BufferOutputStream()
    noted = schema.with_metadata({NOTE: note})
    with pa.ipc.new_stream(sink, noted) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _demand_plain(buffer: pa.Buffer) -> None:
    for message in pa.ipc.MessageReader.open_stream(buffer):
        if message.type == "dictionary":
            raise FormatError("dictionary-encoded columns are not taken: send plain ones")
        if message.type == "record batch" and _is_compressed(memoryview(message.metadata)):
            raise FormatError("compressed Arrow streams are not taken: send plain ones")


def _is_compressed(message: memoryview) -> bool:
    """Whether the record batch of a message names a compression; its bytes are a FlatBuffer."""
    (root,) = _I32.unpack_from(message)
    place = root + _field(message, root, _MESSAGE_HEADER)
    (away,) = _I32.unpack_from(message, place)
    return _field(message, place + away, _RECORD_BATCH_COMPRESSION) != 0


def _field(message: memoryview, table: int, index: int) -> int:
    """Where a table has a field, counted from the table; 0 when it has none."""
    (back,) = _I32.unpack_from(message, table)
    start = table - back
    (size,) = _U16.unpack_from(message, start)
    slot = 4 + 2 * index
    return 0 if slot >= size else int(_U16.unpack_from(message, start + slot)[0])


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
