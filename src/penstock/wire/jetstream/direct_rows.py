"""Header blocks of replies to direct gets: the message's own fields, then those that describe it.

The reserved fields are removed from the stored headers first, so that a publisher cannot make a
message look like another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.wire import headers as header_blocks
from penstock.wire.headers import VERSION
from penstock.wire.jetstream.times import stamps

RESERVED: Final = frozenset(
    {
        b"Nats-Stream",
        b"Nats-Subject",
        b"Nats-Sequence",
        b"Nats-Time-Stamp",
        b"Nats-Num-Pending",
        b"Nats-Pending-Messages",
        b"Nats-Last-Sequence",
        b"Nats-UpTo-Sequence",
    }
)
_FIRST: Final = VERSION + b"\r\n"
_MARK: Final = b"\nNats-"
_POSITION: Final = b"Nats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: %b\r\n"
_BATCH: Final = b"Nats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n"


def reply_headers(
    stream: str,
    subjects: Sequence[bytes],
    headers: Sequence[bytes] | None,
    seqs: Sequence[int],
    timestamps_us: Sequence[int],
) -> list[bytes]:
    """The header block of each message of a run."""
    line = _start(stream, headers) + _POSITION + b"\r\n"
    rows = zip(subjects, seqs, stamps(timestamps_us), strict=True)
    added = [line % row for row in rows]
    return added if headers is None else _append(headers, added)


def batch_headers(
    stream: str,
    subjects: Sequence[bytes],
    headers: Sequence[bytes] | None,
    seqs: Sequence[int],
    timestamps_us: Sequence[int],
    pending: int,
    last_seq: int,
) -> list[bytes]:
    """The header blocks of a part of a batch, with `pending` messages from its first on.

    `last_seq` is the sequence of the message before the part.
    """
    line = _start(stream, headers) + _POSITION + _BATCH + b"\r\n"
    left = range(pending - 1, pending - 1 - len(seqs), -1)
    before = [last_seq, *seqs[:-1]]
    rows = zip(subjects, seqs, stamps(timestamps_us), left, before, strict=True)
    added = [line % row for row in rows]
    return added if headers is None else _append(headers, added)


def end_of_batch(pending: int, last_seq: int, up_to_seq: int | None = None) -> bytes:
    """The header block of the status that ends a batch."""
    fields = {
        b"Nats-Pending-Messages": pending,
        b"Nats-Num-Pending": pending,
        b"Nats-Last-Sequence": last_seq,
    }
    if up_to_seq is not None:
        fields[b"Nats-UpTo-Sequence"] = up_to_seq
    pairs = [(name, b"%d" % value) for name, value in fields.items()]
    return header_blocks.status(204, b"EOB", *pairs)


def _start(stream: str, own: Sequence[bytes] | None) -> bytes:
    """The start of the added fields; without own headers, of the whole block."""
    field = b"Nats-Stream: %b\r\n" % stream.encode().replace(b"%", b"%%")
    return _FIRST + field if own is None else field


def _append(own: Sequence[bytes], added: list[bytes]) -> list[bytes]:
    """The messages' own fields, followed by the added ones."""
    if _MARK in b"".join(own):
        own = [header_blocks.without(b, RESERVED) if _MARK in b else b for b in own]
    rows = zip(own, added, strict=True)
    return [(block[:-2] if block else _FIRST) + fields for block, fields in rows]
