"""The `Nats-Stream-Source` header of a copied message: which source it came from, and its sequence.

The value is `stream sequence filter destination subject identity`, separated by spaces. Filter and
destination are `>` where the source names none; those of several transforms are joined by a form
feed. Stream, filter and destination together are the *key* of a source: sources with the same key
share their position. The identity tells a stream from a later one of the same name.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from penstock.model.times import time_text_us
from penstock.wire import headers
from penstock.wire.jetstream.stream_config import StreamSource

FIELD: Final = b"Nats-Stream-Source"
EVERYTHING: Final = ">"
JOINED_BY: Final = "\f"
REMOVED_PREFIXES: Final = (FIELD, b"Nats-Expected-", b"Nats-Batch-")
"""Fields of the original message that are not copied: they were for its own stream."""
IDENTITY_LENGTH: Final = 8
IDENTITY_LETTERS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase


class SourceOrigin(NamedTuple):
    """Where a copied message came from."""

    key: str
    sequence: int
    identity: str


def source_key(source: StreamSource) -> str:
    """The key of a configured source."""
    transforms = source.subject_transforms
    if not transforms:
        return f"{source.name} {source.filter_subject or EVERYTHING} {EVERYTHING}"
    filters = JOINED_BY.join(transform.src or EVERYTHING for transform in transforms)
    destinations = JOINED_BY.join(transform.dest or EVERYTHING for transform in transforms)
    return f"{source.name} {filters} {destinations}"


def identity(created_us: int) -> str:
    """The identity of a stream, derived from the time at which it was created."""
    digest = sha256(time_text_us(created_us).encode()).digest()
    letters = (IDENTITY_LETTERS[byte % len(IDENTITY_LETTERS)] for byte in digest)
    return "".join(letters)[:IDENTITY_LENGTH]


def origin_of(block: bytes) -> SourceOrigin | None:
    """Where a message with this header block was copied from; None if it was not copied."""
    value = headers.get(block, FIELD) if FIELD in block else None
    parts = value.decode(errors="replace").split(" ") if value else []
    if len(parts) < 5 or not parts[1].isdigit():
        return None
    stream, sequence, chosen, destination, _, *identities = parts
    key = f"{stream} {chosen} {destination}"
    return SourceOrigin(key, int(sequence), identities[0] if identities else "")


def mark(
    key: str,
    origin_identity: str,
    blocks: Sequence[bytes],
    sequences: Sequence[int],
    subjects: Sequence[bytes],
) -> list[bytes]:
    """Header blocks of copies: those of the messages, with the field that names their origin."""
    stream, _, subjects_part = key.encode().replace(b"%", b"%%").partition(b" ")
    values = (FIELD, stream, subjects_part, origin_identity.encode())
    line = b"%b: %b %%d %b %%b %b\r\n\r\n" % values
    bare = headers.VERSION + b"\r\n" + line
    rows = zip(blocks, sequences, subjects, strict=True)
    return [
        _copied(block) + line % (sequence, subject) if block else bare % (sequence, subject)
        for block, sequence, subject in rows
    ]


def _copied(block: bytes) -> bytes:
    """The fields of a block that are copied, without its end."""
    if b"Nats-" in block:
        block = headers.without_prefixes(block, REMOVED_PREFIXES)
    return block.rstrip(b"\r\n") + b"\r\n"
