"""Bodies of the frames that carry no messages: link, delete and checkpoint.

Each is a MessagePack array in the order of the fields below. A later version appends fields; a
reader ignores the ones it does not know and fills in the defaults of the ones it misses. A settle
frame's body belongs to the subscriptions and is kept as it is.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast

import msgspec

from penstock.formats.frames import Buffer
from penstock.model.errors import FormatError


class Delete(msgspec.Struct, array_like=True, frozen=True):
    """Offsets of one partition that are no longer there."""

    start: int
    """New first offset of the partition: all below are gone. 0 when it does not move."""
    offsets: bytes
    """Roaring bitmap (64 bit, portable serialisation) of single offsets."""
    reason: str
    """For people: `message`, `purge`, `limit`, `retention`, `takeover`, `damage`."""


class ObjectRef(msgspec.Struct, array_like=True, frozen=True):
    """A staged object whose rows get offsets by a link."""

    key: str
    rows: int
    size_bytes: int
    crc32c: int
    etag: str | None = None
    """What the store calls its version, where the writer was told."""


class LinkPart(msgspec.Struct, array_like=True, frozen=True):
    """Offsets of one partition and the objects whose rows get them, in this order."""

    partition: int
    first_offset: int
    objects: list[ObjectRef]

    @property
    def rows(self) -> int:
        return sum(ref.rows for ref in self.objects)


class Link(msgspec.Struct, array_like=True, frozen=True):
    """Offsets given to rows that lie in objects; `app` and `epoch` make a retry harmless."""

    app: str
    epoch: int
    parts: list[LinkPart]
    subjects: bytes = b""
    """Of all rows: see formats/link_subjects.py. Empty when they carry the topic's id."""


ONCE: Final = "once-"
"""So begin the names of applications that link once and never again."""
ONCE_SECONDS: Final = 3600
"""Their links are remembered for so long: longer than anybody asks for one again."""
LINK_RANGES_MAX: Final = 1 << 16
"""Offsets of links are remembered for so many partitions, the newest; of older links the epoch."""
LINK_APPS_MAX: Final = 50_000
"""Of so many applications the last links are remembered; a further one is refused."""


class Transaction(msgspec.Struct, array_like=True, frozen=True):
    """The last link an application made: first and next offset by partition."""

    epoch: int
    ranges: dict[int, tuple[int, int]]
    """Empty where many links came after it."""
    timestamp: int = 0
    """Of its frame, in microseconds since 1970."""


class Start(msgspec.Struct, array_like=True, frozen=True):
    """First frame of every file: all that is needed without the files before it."""

    topic: str
    last_timestamp: int
    partitions: bytes
    """Partition numbers, uint32 each, ascending."""
    starts: bytes
    """First offset kept in each, int64."""
    nexts: bytes
    """Next offset of each, int64."""
    deleted: dict[int, bytes]
    """Roaring bitmap of deleted offsets of each partition that has any."""
    transactions: dict[str, Transaction]
    lineage: str = ""
    """Names the WAL of one machine; after a takeover elsewhere the topic has another one."""
    durability: str = "fsync"
    """What an acknowledgement of the topic promises: `fsync` or `cloud`."""
    settle_floor: int = -1
    """First frame whose settlements may still be needed, -1 without any."""
    floor: int = 0
    """Where partitions begin that are not listed: after a takeover or damage they may have been
    used.
    """


class Ends(msgspec.Struct, array_like=True, frozen=True):
    """Of a checkpoint between: where the partitions touched since the last one end."""

    partitions: bytes
    """Partition numbers, uint32 each, ascending."""
    nexts: bytes
    """Next offset of each, int64."""


class Seal(msgspec.Struct, array_like=True, frozen=True):
    """Last frame of a finished file."""

    crc32c: int
    """Over every byte of the file before this frame."""
    table: bytes
    """Where the batches and links are: see formats/table.py."""


Body = Delete | Link | Start | Ends | Seal
_T = TypeVar("_T", Delete, Link, Start, Ends, Seal)

# Made here, in one thread: what msgspec learns of a type at its first use it learns unguarded, and
# logs that were recovered in several threads at once ended the process.
_DECODERS: Final[dict[type[Body], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Delete, Link, Start, Ends, Seal)
}


def encode(body: Body) -> bytes:
    return msgspec.msgpack.encode(body)


def decode(kind: type[_T], data: Buffer) -> _T:
    """Raises FormatError; the checksum was right, so this is a bug or a foreign writer."""
    try:
        return cast(_T, _DECODERS[kind].decode(data))
    except msgspec.DecodeError as error:
        raise FormatError(f"the body is no {kind.__name__}: {error}") from error
