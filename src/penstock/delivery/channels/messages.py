"""Messages as jobs carry them: who sent one, what it is, and which of its headers are passed on.

    NATS/1.0
    X-Broker-Message-ID: m-1                 when the sender gave it an id
    X-Broker-Producer-ID: p1
    X-Broker-Message-Priority: 7             when it is not 0
    Content-Type: application/json
    X-Broker-Metadata-Headers: X-Foo         the names of the headers that are passed on
    X-Foo: bar

A message of another protocol has none of the first ones, and all its headers are passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from penstock.delivery.channels.headers import (
    CONTENT_TYPE,
    MESSAGE_ID,
    field_value,
    passed,
    valid_id,
)
from penstock.formats import header_block, json_text
from penstock.formats.paths import encode_name
from penstock.ledger.job_states import PRIORITY_MAX, key_of
from penstock.model.batch import Batch
from penstock.model.columns import Columns

PRODUCER_ID: Final = "X-Broker-Producer-ID"
PRIORITY: Final = "X-Broker-Message-Priority"
METADATA_HEADERS: Final = "X-Broker-Metadata-Headers"
CONTENT_TYPE_DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"


class JobMessage(NamedTuple):
    """One message of a channel."""

    offset: int
    timestamp_us: int
    id: str
    """Empty when its sender gave it none."""
    producer: str
    priority: int
    content_type: str
    headers: list[tuple[str, str]]
    payload: bytes
    dropped: int = 0
    """Headers that no callback receives: invalid, reserved, or beyond the limits."""


class Outgoing(NamedTuple):
    """A message on its way into a channel."""

    id: str
    producer: str
    priority: int
    content_type: str
    headers: Sequence[tuple[str, str]]
    payload: bytes

    def block(self) -> bytes:
        """Its header block; raises FormatError when a header does not fit in one."""
        pairs = [(MESSAGE_ID, self.id)] if self.id else []
        pairs.append((PRODUCER_ID, self.producer))
        if self.priority:
            pairs.append((PRIORITY, str(self.priority)))
        pairs.append((CONTENT_TYPE, self.content_type))
        if self.headers:
            pairs.append((METADATA_HEADERS, ",".join(name for name, _ in self.headers)))
        return header_block.encode([*pairs, *self.headers])


def subject(channel: str, id_: str) -> bytes:
    """What a message is stored under: with an id of its own, it is found by it."""
    return f"{channel}.{encode_name(id_)}".encode() if id_ else channel.encode()


def message_at(batch: Batch, row: int, offset: int) -> JobMessage:
    """The message in this row of a batch, which has this offset; one of a typed topic is JSON."""
    stamps = batch.timestamps
    stamp = batch.first_timestamp if stamps is None else stamps[row].as_py()
    content = batch.content
    if not isinstance(content, Columns):
        text = b"".join(json_text.text(content.slice(row, 1))).rstrip(b",")
        return JobMessage(offset, stamp, "", "", 0, JSON, [], text)
    block = b"" if content.headers is None else content.headers[row].as_py() or b""
    pairs = header_block.decode(block)
    ours = {key.lower(): value for key, value in reversed(pairs)}
    listed = ours.get(METADATA_HEADERS.lower())
    names = None if listed is None else {name.lower() for name in listed.split(",")}
    headers, dropped = passed(pairs, names)
    content_type = field_value(ours.get(CONTENT_TYPE.lower(), ""))
    return JobMessage(
        offset,
        stamp,
        valid_id(ours.get(MESSAGE_ID.lower(), "")),
        ours.get(PRODUCER_ID.lower(), ""),
        priority(ours.get(PRIORITY.lower(), "")),
        content_type or CONTENT_TYPE_DEFAULT,
        headers,
        content.payload[row].as_py(),
        dropped,
    )


def priority(text: str) -> int:
    """Of a message: how far from 0, whatever the sign; 0 for what is no whole number."""
    digits = text.strip().removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()):
        return 0
    return min(int(digits[:18]), PRIORITY_MAX)


def priorities(batch: Batch) -> dict[int, int]:
    """Of the messages that have one, by offset; none of the others is looked at."""
    content = batch.content
    if not isinstance(content, Columns) or content.headers is None:
        return {}
    headers = content.headers
    rows = np.flatnonzero(pc.match_substring(headers, PRIORITY, ignore_case=True).fill_null(False))
    offsets = batch.offsets()
    found = {}
    for row in rows.tolist():
        pairs = header_block.decode(headers[row].as_py())
        told = next((v for k, v in pairs if k.lower() == PRIORITY.lower()), "")
        if given := priority(told):
            found[int(offsets[row])] = given
    return found


def keys_of(batch: Batch, given: dict[int, int]) -> list[int]:
    """The keys of the jobs for a batch."""
    return [key_of(given.get(offset, 0), offset) for offset in batch.offsets().tolist()]
