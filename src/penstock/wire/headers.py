"""Header blocks as on the wire and in the log: `NATS/1.0`, an optional status, then fields."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

VERSION: Final = b"NATS/1.0"
_END: Final = b"\r\n\r\n"
_LINE_ENDS: Final = b"\r\n"


def get(block: bytes, name: bytes) -> bytes | None:
    """The first value of a field, trimmed; the case of the name matters. None if it is missing."""
    match = _field(name).search(block)
    return None if match is None else match[1].strip()


def status(code: int, text: bytes = b"", *fields: tuple[bytes, bytes]) -> bytes:
    """A block with a status line, followed by fields."""
    line = b"%b %d" % (VERSION, code)
    return _join(line + b" " + text if text else line, fields)


def with_fields(block: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The block with fields appended; an empty block becomes one with these fields."""
    return _join(block.rstrip(_LINE_ENDS) if block else VERSION, fields)


def without(block: bytes, names: frozenset[bytes]) -> bytes:
    """The block without the fields of these names."""
    if not block:
        return block
    first, *lines = block.rstrip(_LINE_ENDS).split(b"\r\n")
    lines = [line for line in lines if line.partition(b":")[0].strip() not in names]
    return b"\r\n".join([first, *lines]) + _END


def without_prefixes(block: bytes, prefixes: tuple[bytes, ...]) -> bytes:
    """The block without fields whose names begin with one of these."""
    first, *lines = block.rstrip(_LINE_ENDS).split(b"\r\n")
    return b"\r\n".join([first, *(line for line in lines if not line.startswith(prefixes))]) + _END


def _join(start: bytes, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"\r\n".join([start, *(b"%b: %b" % field for field in fields)]) + _END


@lru_cache(maxsize=256)
def _field(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"\r\n%b[ \t]*:([^\r\n]*)" % re.escape(name))
