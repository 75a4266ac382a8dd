"""Headers of a message, stored as the block that NATS sends before a payload.

The block is `NATS/1.0`, a line `key: value` for each header and an empty line. Lines end in CR LF.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from penstock.model.errors import FormatError

FIRST_LINE: Final = b"NATS/1.0"
BLOCK_PATTERN: Final = r"\ANATS/1\.0\r\n(?:[!-9;-~]+:[^\r\n]*\r\n)+\r\n\z"
"""A regular expression (RE2) of valid blocks."""

_KEY: Final = re.compile(r"[!-9;-~]+")
_BREAK: Final = re.compile(r"[\r\n]")


def encode(pairs: Iterable[tuple[str, str]]) -> bytes:
    """The block of these headers, or nothing without headers; raises FormatError."""
    lines = [_line(key, value) for key, value in pairs]
    return b"%b\r\n%b\r\n" % (FIRST_LINE, b"".join(lines)) if lines else b""


def decode(block: bytes) -> list[tuple[str, str]]:
    """The headers of a block, for display; a line without a colon is a key without a value.

    Bytes that are not UTF-8 are replaced.
    """
    pairs = []
    for line in block.split(b"\r\n")[1:]:
        if line:
            key, _, value = line.decode("utf-8", "replace").partition(":")
            pairs.append((key, value.removeprefix(" ")))
    return pairs


def _line(key: str, value: str) -> bytes:
    if not _KEY.fullmatch(key):
        rule = "visible ASCII characters without ':'"
        raise FormatError(f"header key {key!r} must be {rule}")
    if _BREAK.search(value):
        raise FormatError(f"the value of header {key!r} must not have line breaks")
    return f"{key}: {value}\r\n".encode()
