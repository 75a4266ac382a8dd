"""Names of directories and files of the log.

A topic's directory is `{tenant}/{namespace}/{encoded id}`, where the id keeps a-z, 0-9, `_` and `-`
and every other byte of its UTF-8 becomes `%xx`; an id that would be too long for a file system ends
in a digest instead. A WAL file is `wal-{sequence}-{first frame}.log`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from penstock.model.names import TopicName

ENCODED_BYTES_MAX: Final = 200
"""File systems take 255 bytes; the rest is room for suffixes."""

BROKEN_SUFFIX: Final = ".broken"
TEMPORARY_SUFFIX: Final = ".tmp"

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_WAL: Final = re.compile(r"wal-(\d{10})-(\d{16})\.log")


def encode_name(name: str) -> str:
    """A name that is safe on any file system and in any bucket; different names stay different."""
    data = name.encode()
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    if len(text) <= ENCODED_BYTES_MAX:
        return text
    digest = hashlib.sha256(data).hexdigest()
    return f"{text[: ENCODED_BYTES_MAX - 66]}%%{digest}"


def topic_directory(topic: TopicName) -> str:
    """Relative path of a topic's directory."""
    return f"{topic.tenant}/{topic.namespace}/{encode_name(topic.topic)}"


def wal_name(sequence: int, first_frame: int) -> str:
    return f"wal-{sequence:010d}-{first_frame:016d}.log"


def parse_wal_name(name: str) -> tuple[int, int] | None:
    """Sequence and first frame number, or None if this is no WAL file's name."""
    match = _WAL.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None
