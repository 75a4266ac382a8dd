"""Headers of messages: which ones a callback receives, and what the topic of a channel admits.

A header is sent to a callback if its name is a token and its value a field value of RFC 9110, and
if it belongs to the message: not to one connection or one caller, and not to the broker.

Every message of a channel must be within the limits of this module, whatever protocol publishes it.
Behind a gateway that signs broadcasts, the topic admits nothing else: an unsigned publish would
create jobs past the gateway. The rules apply once for each run, and only to topics of channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from functools import partial
from typing import Final, NamedTuple

import pyarrow.compute as pc

from penstock.formats import header_block
from penstock.host.notifier import Cancel
from penstock.model.columns import Columns
from penstock.model.errors import RunInvalid, SignatureRequired
from penstock.model.run import ColumnRun, Origin, Run
from penstock.topics import OpenTopic

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
"""Never sent: these belong to one connection or to one caller."""

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LINE_END: Final = b"\r\n"
_LINES_AROUND: Final = 2
"""The first line of a block and the empty one that ends it."""


class CallbackHeaders(NamedTuple):
    """The headers for callbacks, and how many others of the message were dropped."""

    headers: list[tuple[str, str]]
    dropped: int


def may_pass(name: str) -> bool:
    """Whether a callback may receive a header of this name; never true for names of secrets.

    CGI and WSGI receivers read `_` in a name as `-`, so both are the same here.
    """
    lower = name.lower().replace("_", "-")
    reserved = _is_ours(lower) or lower in _RESERVED or lower.startswith(_PROXY)
    return bool(_TOKEN.fullmatch(name)) and not reserved


def field_value(text: str) -> str | None:
    """The value without the whitespace around it; None if it has control characters."""
    return None if _CONTROL.search(text) else text.strip(" \t")


def valid_id(text: str) -> str:
    """The id that a producer gave a message; empty if it is too long or HTTP cannot carry it.

    Publishing refuses such ids, but linked objects may contain them.
    """
    value = field_value(text)
    return "" if value is None or len(value) > ID_CHARACTERS_MAX else value


def callback_headers(pairs: Iterable[tuple[str, str]], listed: Set[str] | None) -> CallbackHeaders:
    """The headers for callbacks, from the names `listed` in lower case or, without them, from all.

    Leaves out the broker's own headers and unlisted ones; counts as dropped what it refuses.
    """
    headers: list[tuple[str, str]] = []
    dropped = size_bytes = 0
    for name, text in pairs:
        lower = name.lower()
        if _is_ours(lower) or (listed is not None and lower not in listed):
            continue
        value = field_value(text) if may_pass(name) else None
        size = len(name) + len(text)
        if value is None or len(headers) == HEADERS_MAX or size_bytes + size > HEADER_BYTES_MAX:
            dropped += 1
            continue
        size_bytes += size
        headers.append((name, value))
    return CallbackHeaders(headers, dropped)


def exceeded_limit(block: bytes) -> str | None:
    """The limit that a header block exceeds, as a sentence; None if it is within all limits."""
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
    count = sum(not _is_ours(name.lower()) for name, _ in pairs)
    if count > HEADERS_MAX:
        return f"a message has {count} headers, HEADERS_MAX is {HEADERS_MAX}"
    return None


def _is_ours(lower: str) -> bool:
    return lower.startswith(_OURS) or lower == CONTENT_TYPE.lower()


# -- admission to the topic of a channel


def guard_topic(opened: OpenTopic, signed_only: bool) -> Cancel:
    """Apply the rules of channels to a topic; returns the function that ends this."""
    opened.signed_only = signed_only
    return opened.add_admission(partial(_admit, opened.topic.name.full, signed_only))


def _admit(topic: str, signed_only: bool, run: Run | ColumnRun, origin: Origin) -> None:
    """Raises SignatureRequired or RunInvalid if the topic of a channel does not admit a run."""
    if origin is Origin.BROKER:
        return
    if signed_only:
        raise SignatureRequired(topic)
    for block in _long_header_blocks(run):
        limit = exceeded_limit(block)
        if limit is not None:
            raise RunInvalid(f"topic {topic} is a channel: {limit}")


def _long_header_blocks(run: Run | ColumnRun) -> Iterable[bytes]:
    """The header blocks of a run that may exceed a limit; most runs have none."""
    if isinstance(run, Run):
        headers = run.headers or ()
        return [block for block in headers if len(block) > ID_CHARACTERS_MAX]
    if not isinstance(run.content, Columns) or run.content.headers is None:
        return ()
    column = run.content.headers
    long = pc.greater(pc.binary_length(column), ID_CHARACTERS_MAX)
    blocks: list[bytes] = column.filter(long).to_pylist()
    return blocks
