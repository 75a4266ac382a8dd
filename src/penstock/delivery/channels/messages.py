"""Messages of channels: how they are stored, and a cache that reads them one by one.

    NATS/1.0
    X-Broker-Message-ID: m-1                 if the producer gave it an id
    X-Broker-Producer-ID: p1
    X-Broker-Message-Priority: 7             if it is not 0
    Content-Type: application/json
    X-Broker-Metadata-Headers: X-Foo         the names of the headers that callbacks receive
    X-Foo: bar

A message that was published over another protocol has no such headers, and callbacks receive all
headers it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from penstock.delivery.channels.headers import (
    CONTENT_TYPE,
    MESSAGE_ID,
    callback_headers,
    field_value,
    valid_id,
)
from penstock.formats import header_block, json_text
from penstock.formats.paths import encode_name
from penstock.host.tasks import Timer
from penstock.ledger.job_ids import message_id
from penstock.ledger.job_states import PRIORITY_MAX, key_of
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.units import ONLY_PARTITION
from penstock.topics import OpenTopic

PRODUCER_ID: Final = "X-Broker-Producer-ID"
PRIORITY: Final = "X-Broker-Message-Priority"
METADATA_HEADERS: Final = "X-Broker-Metadata-Headers"
CONTENT_TYPE_DEFAULT: Final = "application/octet-stream"
JSON: Final = "application/json"

CACHE_READ_BYTES: Final = 256 << 10
CACHED_BATCHES_MAX: Final = 8
CACHE_SECONDS: Final = 5.0
"""How long the cache keeps batches after it has read some."""


class JobMessage(NamedTuple):
    """One message of a channel."""

    offset: int
    timestamp_us: int
    id: str
    """The id that its producer gave it; empty if there is none."""
    producer: str
    priority: int
    content_type: str
    headers: list[tuple[str, str]]
    payload: bytes
    dropped_headers: int = 0
    """How many headers no callback receives: invalid, reserved, or beyond the limits."""

    def public_id(self, key: str) -> str:
        """The id that clients see: its producer's, else the assigned one."""
        return self.id or self.assigned_id(key)

    def assigned_id(self, key: str) -> str:
        """The id that the key of the channel, the offset and the timestamp make."""
        return message_id(key.encode(), self.offset, self.timestamp_us)


class NewMessage(NamedTuple):
    """A message to be broadcast."""

    id: str
    producer: str
    priority: int
    content_type: str
    headers: Sequence[tuple[str, str]]
    payload: bytes

    def encode_headers(self) -> bytes:
        """Encode its headers; raises FormatError if one cannot be stored."""
        pairs = [(MESSAGE_ID, self.id)] if self.id else []
        pairs.append((PRODUCER_ID, self.producer))
        if self.priority:
            pairs.append((PRIORITY, str(self.priority)))
        pairs.append((CONTENT_TYPE, self.content_type))
        if self.headers:
            pairs.append((METADATA_HEADERS, ",".join(name for name, _ in self.headers)))
        return header_block.encode([*pairs, *self.headers])


def message_subject(channel: str, id_: str) -> bytes:
    """The subject of a message; one with a producer's id can be found by its subject."""
    return f"{channel}.{encode_name(id_)}".encode() if id_ else channel.encode()


def message_at(batch: Batch, row: int, offset: int) -> JobMessage:
    """The message in a row of a batch; a message of a typed topic is JSON."""
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
    headers, dropped = callback_headers(pairs, names)
    content_type = field_value(ours.get(CONTENT_TYPE.lower(), ""))
    return JobMessage(
        offset,
        stamp,
        valid_id(ours.get(MESSAGE_ID.lower(), "")),
        ours.get(PRODUCER_ID.lower(), ""),
        parse_priority(ours.get(PRIORITY.lower(), "")),
        content_type or CONTENT_TYPE_DEFAULT,
        headers,
        content.payload[row].as_py(),
        dropped,
    )


def parse_priority(text: str) -> int:
    """The priority in a header: its distance from 0 in either direction; 0 if it is no number."""
    digits = text.strip().removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdecimal()):
        return 0
    return min(int(digits[:18]), PRIORITY_MAX)


def priorities(batch: Batch) -> dict[int, int]:
    """Priorities of a batch by offset; parses the headers only of messages that have one."""
    content = batch.content
    if not isinstance(content, Columns) or content.headers is None:
        return {}
    headers = content.headers
    rows = np.flatnonzero(pc.match_substring(headers, PRIORITY, ignore_case=True).fill_null(False))
    offsets = batch.offsets()
    found = {}
    for row in rows.tolist():
        pairs = header_block.decode(headers[row].as_py())
        text = next((value for name, value in pairs if name.lower() == PRIORITY.lower()), "")
        if priority := parse_priority(text):
            found[int(offsets[row])] = priority
    return found


def job_keys(batch: Batch, by_offset: Mapping[int, int]) -> list[int]:
    """The keys of the jobs for a batch whose messages have these priorities."""
    return [key_of(by_offset.get(offset, 0), offset) for offset in batch.offsets().tolist()]


class MessageCache:
    """Reads single messages of a channel, for deliveries and views.

    Reads whole batches and keeps them for a short time, so that neighbouring messages, and the same
    message for other endpoints, cost no further read.
    """

    def __init__(self, opened: OpenTopic) -> None:
        self._partition = opened.partition(ONLY_PARTITION)
        self._batches: deque[Batch] = deque(maxlen=CACHED_BATCHES_MAX)
        self._expiry = Timer(self._batches.clear)

    async def message(self, offset: int) -> JobMessage | None:
        """A message; None if it is deleted. Raises what reading raises."""
        if not self._partition.count_live(offset, offset + 1):
            return None
        just_stored = self._partition.cached_batch(offset)
        found = _locate(offset, self._batches) or _locate(
            offset, () if just_stored is None else (just_stored,)
        )
        if found is None:
            batches = await self._partition.read(offset, CACHE_READ_BYTES)
            if not isinstance(batches, list):
                return None
            self._batches.extendleft(reversed(batches[:CACHED_BATCHES_MAX]))
            if self._expiry.when is None:
                self._expiry.after(CACHE_SECONDS)
            found = _locate(offset, self._batches)
        if found is None:
            return None
        batch, row = found
        return message_at(batch, row, offset)


def _locate(offset: int, batches: Iterable[Batch]) -> tuple[Batch, int] | None:
    """The batch and the row that have an offset."""
    for batch in batches:
        position = offset - batch.first_offset
        if 0 <= position < batch.count:
            if batch.positions is None:
                return batch, position
            row = int(np.searchsorted(batch.positions, position))
            if row < len(batch.positions) and batch.positions[row] == position:
                return batch, row
    return None
