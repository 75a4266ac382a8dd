"""Names of directories and files of the log.

A topic's directory is `{tenant}/{namespace}/{encoded id}`. The encoded id keeps a-z, 0-9, `_` and
`-`; every other byte of its UTF-8 becomes `%xx`. An id that is too long for a file system ends in a
digest. A WAL file is `wal-{sequence}-{first frame}.log`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from penstock.model.names import TopicName

ENCODED_BYTES_MAX: Final = 200
"""File systems allow 255 bytes; the difference is for suffixes."""

BROKEN_SUFFIX: Final = ".broken"
TEMPORARY_SUFFIX: Final = ".tmp"

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_WAL: Final = re.compile(r"wal-([0-9]{10})-([0-9]{16})\.log")


def encode_name(name: str) -> str:
    """Encode a name for file systems and buckets; different names have different encodings."""
    data = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    if len(text) <= ENCODED_BYTES_MAX:
        return text
    digest = hashlib.sha256(data).hexdigest()
    return f"{text[: ENCODED_BYTES_MAX - 66]}%%{digest}"


def topic_directory(topic: TopicName) -> str:
    """The relative path of a topic's directory."""
    return f"{topic.tenant}/{topic.namespace}/{encode_name(topic.topic)}"


def wal_name(sequence: int, first_frame: int) -> str:
    return f"wal-{sequence:010d}-{first_frame:016d}.log"


def parse_wal_name(name: str) -> tuple[int, int] | None:
    """Sequence and first frame number of a WAL file; None for other names."""
    match = _WAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None
