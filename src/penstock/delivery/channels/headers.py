"""Which headers of a message a callback receives, and the limits that hold for every protocol.

A header is sent to a callback if its name is a token and its value a field value of RFC 9110, and
if it belongs to the message: not to one connection or one caller, and not to the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import Final, NamedTuple

from penstock.formats import header_block

MESSAGE_ID: Final = "X-Broker-Message-ID"
CONTENT_TYPE: Final = "Content-Type"

ID_CHARACTERS_MAX: Final = 255
HEADERS_MAX: Final = 100
"""Headers of one message that are sent to callbacks."""
HEADER_BYTES_MAX: Final = 64 << 10
"""Bytes of all headers of one message."""

_OURS: Final = ("x-broker-", "webhook-", "nats-")
_PROXY: Final = "proxy-"
_RESERVED: Final = frozenset(
    [
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "max-forwards",
        "proxy",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-request-id",
    ]
)
"""Never sent: they belong to one connection, or to one caller."""

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LINE_END: Final = b"\r\n"
_LINES_AROUND: Final = 2
"""The first line of a block and the empty one that ends it."""


class Passed(NamedTuple):
    """The headers for callbacks, and how many others of the message were dropped."""

    headers: list[tuple[str, str]]
    dropped: int


def passed_on(name: str) -> bool:
    """Whether a header of this name may reach a consumer; no name of a secret may.

    CGI and WSGI receivers read `_` in a name as `-`, so both are the same here.
    """
    lower = name.lower().replace("_", "-")
    reserved = _ours(lower) or lower in _RESERVED or lower.startswith(_PROXY)
    return bool(_TOKEN.fullmatch(name)) and not reserved


def field_value(text: str) -> str | None:
    """The value without the whitespace around it; None if it has control characters."""
    return None if _CONTROL.search(text) else text.strip(" \t")


def valid_id(text: str) -> str:
    """An id that a producer gave a message; empty if it exceeds the limit or HTTP cannot carry it.

    Such ids are refused where a message is published; objects that were linked may have them.
    """
    value = field_value(text)
    return "" if value is None or len(value) > ID_CHARACTERS_MAX else value


def passed(pairs: Iterable[tuple[str, str]], listed: Set[str] | None) -> Passed:
    """The headers for callbacks, of those `listed` in lower case or of all.

    Headers of the broker and unlisted ones are left out; others that are not sent count as dropped.
    """
    found: list[tuple[str, str]] = []
    dropped = size_bytes = 0
    for name, text in pairs:
        lower = name.lower()
        if _ours(lower) or (listed is not None and lower not in listed):
            continue
        value = field_value(text) if passed_on(name) else None
        size = len(name) + len(text)
        if value is None or len(found) == HEADERS_MAX or size_bytes + size > HEADER_BYTES_MAX:
            dropped += 1
            continue
        size_bytes += size
        found.append((name, value))
    return Passed(found, dropped)


def excess(block: bytes) -> str | None:
    """The limit that a header block exceeds, as a sentence; None if it is within all of them."""
    if len(block) <= ID_CHARACTERS_MAX:
        return None
    if len(block) > HEADER_BYTES_MAX:
        return (
            f"a message has {len(block)} bytes of headers, HEADER_BYTES_MAX is {HEADER_BYTES_MAX}"
        )
    pairs = header_block.decode(block)
    id_ = next((value for name, value in pairs if name.lower() == MESSAGE_ID.lower()), "")
    if len(id_) > ID_CHARACTERS_MAX:
        return f"{MESSAGE_ID} has {len(id_)} characters, ID_CHARACTERS_MAX is {ID_CHARACTERS_MAX}"
    if block.count(_LINE_END) - _LINES_AROUND <= HEADERS_MAX:
        return None
    count = sum(not _ours(name.lower()) for name, _ in pairs)
    if count > HEADERS_MAX:
        return f"a message has {count} headers, HEADERS_MAX is {HEADERS_MAX}"
    return None


def _ours(lower: str) -> bool:
    return lower.startswith(_OURS) or lower == CONTENT_TYPE.lower()
