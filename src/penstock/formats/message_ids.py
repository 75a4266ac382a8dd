"""The file of message ids: the duplicate window of a stream for messages of deleted WAL files.

It is a MessagePack array of the fields below, followed by a CRC32C over it (4 bytes, little
endian). A later version appends fields.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from penstock.model.errors import FormatError, VersionUnknown

VERSION: Final = 1
_CRC_BYTES: Final = 4


class MessageId(NamedTuple):
    """A message id, with the sequence and the time of the message."""

    message_id: bytes
    sequence: int
    stored_us: int


class MessageIdsBody(msgspec.Struct, array_like=True, frozen=True):
    """The message ids of a stream in order of sequences."""

    version: int
    sequences: bytes
    """int64 each."""
    times: bytes
    """Microseconds since 1970, int64 each."""
    lengths: bytes
    """Lengths of the ids, uint32 each."""
    ids: bytes
    """The ids, concatenated."""


def encode(ids: Iterable[MessageId]) -> bytes:
    """The bytes of the file."""
    items = list(ids)
    body = MessageIdsBody(
        VERSION,
        array("q", [item.sequence for item in items]).tobytes(),
        array("q", [item.stored_us for item in items]).tobytes(),
        array("I", [len(item.message_id) for item in items]).tobytes(),
        b"".join(item.message_id for item in items),
    )
    data = msgspec.msgpack.encode(body)
    return data + crc32c(data).to_bytes(_CRC_BYTES, "little")


def decode(data: bytes) -> Iterator[MessageId]:
    """The message ids in the bytes of the file; raises FormatError before the first one."""
    body, checksum = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if len(data) <= _CRC_BYTES or crc32c(body).to_bytes(_CRC_BYTES, "little") != checksum:
        raise FormatError("the file of message ids is damaged")
    try:
        content = msgspec.msgpack.decode(body, type=MessageIdsBody)
    except msgspec.DecodeError as error:
        raise FormatError(f"the file of message ids is damaged: {error}") from error
    if content.version > VERSION:
        raise VersionUnknown("the file of message ids", content.version, VERSION)
    return _entries(content)


def _entries(body: MessageIdsBody) -> Iterator[MessageId]:
    ends = pairwise(accumulate(array("I", body.lengths), initial=0))
    sequences, times = array("q", body.sequences), array("q", body.times)
    for (start, stop), sequence, stored_us in zip(ends, sequences, times, strict=True):
        yield MessageId(body.ids[start:stop], sequence, stored_us)
