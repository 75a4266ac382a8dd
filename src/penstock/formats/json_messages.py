"""Raw messages as JSON: decodes lists of objects into columns, and encodes batches as text."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Struct, UnsetType

from penstock.formats import header_block
from penstock.formats.json_rows import decode
from penstock.formats.json_text import Piece, joined, parts, quoted, text_pieces
from penstock.model.batch import Batch
from penstock.model.columns import Columns
from penstock.model.errors import FormatError
from penstock.model.subjects import valid_subject

MESSAGES_MAX: Final = 1 << 22
"""Messages of one batch, so that the Python objects of a batch fit in memory."""

FEW: Final = 16
"""Largest number of messages that are encoded one by one."""

_ROW_BYTES: Final = 80
"""Approximate length of a message's text without its payload and subject."""


class PushedMessage(Struct, forbid_unknown_fields=True, gc=False):
    """A pushed raw message, with exactly one of the two payloads."""

    subject: str | UnsetType = UNSET
    headers: list[tuple[str, str]] = []
    payload: str | UnsetType = UNSET
    payload_b64: bytes | UnsetType = UNSET


class MessageLists(NamedTuple):
    """Raw messages as lists, as in a run."""

    subjects: bytes | list[bytes]
    payloads: list[bytes]
    headers: list[bytes] | None


_DECODER: Final = msgspec.json.Decoder(list[PushedMessage])


def messages(data: bytes, subject: str, only: bool = False) -> MessageLists:
    """Decode a JSON list of messages; raises FormatError, which names the message.

    Messages without a subject get `subject`; with `only`, messages may have no other subject.
    """
    if data.count(b"{") > MESSAGES_MAX:
        raise FormatError(f"at most {MESSAGES_MAX} messages fit one batch")
    items: list[PushedMessage] = decode(_DECODER, data)
    payloads = [_payload(index, item) for index, item in enumerate(items)]
    headers = None
    if any(item.headers for item in items):
        headers = [_headers(index, item) for index, item in enumerate(items)]
    if {item.subject for item in items} <= {UNSET, subject}:
        return MessageLists(subject.encode(), payloads, headers)
    _check_subjects(items, subject if only else None)
    default = subject.encode()
    subjects = [default if item.subject is UNSET else item.subject.encode() for item in items]
    return MessageLists(subjects, payloads, headers)


def columns(
    data: bytes, subject: str, only: bool = False
) -> tuple[bytes | pa.BinaryArray, pa.BinaryArray, pa.BinaryArray | None]:
    """Decode a JSON list of messages to Arrow columns: subject, payload, headers."""
    subjects, payloads, headers = messages(data, subject, only)
    return (
        subjects if isinstance(subjects, bytes) else pa.array(subjects, pa.binary()),
        pa.array(payloads, pa.binary()),
        None if headers is None else pa.array(headers, pa.binary()),
    )


def text(batch: Batch) -> Iterator[bytes]:
    """Encode messages as JSON objects, each followed by a comma, in pieces."""
    content = batch.content
    assert isinstance(content, Columns)
    if batch.messages <= FEW:
        yield _few(batch, content)
        return
    for start, count in parts(content.payload, _ROW_BYTES):
        stamps = None if batch.timestamps is None else batch.timestamps.slice(start, count)
        yield _text(content.slice(start, count), stamps, batch.first_timestamp)


def _few(batch: Batch, content: Columns) -> bytes:
    """Encode few messages one by one, which takes less time than Arrow kernels take to start."""
    shared = content.subject if isinstance(content.subject, bytes) else None
    subjects = content.subjects().to_pylist() if shared is None else [shared] * batch.messages
    headers = None if content.headers is None else content.headers.to_pylist()
    stamps = None if batch.timestamps is None else batch.timestamps.to_pylist()
    pieces = []
    for index, payload in enumerate(content.payload.to_pylist()):
        stamp = batch.first_timestamp if stamps is None else stamps[index]
        lead = f'{{"subject":{quoted(_shown(subjects[index]))},"timestamp":"{_one_time(stamp)}Z"'
        block = None if headers is None else headers[index]
        pieces.append(f"{lead}{_header_member(block)}{_payload_member(payload)}}},")
    return "".join(pieces).encode()


def _text(content: Columns, stamps: pa.Int64Array | None, first: int) -> bytes:
    pieces: list[Piece] = ['{"subject":', *_subject_pieces(content.subject), ',"timestamp":"']
    pieces += [_one_time(first)] if stamps is None else [_times(stamps)]
    pieces.append('Z"')
    if content.headers is not None:
        pieces.append(_header_members(content.headers))
    pieces += [*_payload_pieces(content.payload), "},"]
    return joined(pieces, len(content.payload))


def _times(stamps: pa.Int64Array) -> pa.StringArray:
    # Without a time zone: with one, Arrow takes fifty times as long for the same text.
    shown = stamps.view(pa.timestamp("us")).cast(pa.string())
    return pc.binary_replace_slice(shown, 10, 11, "T")


def _one_time(stamp: int) -> str:
    return str(np.datetime64(stamp, "us"))


def _shown(subject: bytes) -> str:
    return subject.decode("utf-8", "replace")


def _subject_pieces(subject: bytes | pa.BinaryArray) -> list[Piece]:
    if isinstance(subject, bytes):
        return [quoted(_shown(subject))]
    return text_pieces(subject.cast(pa.string()))


def _payload_pieces(payload: pa.BinaryArray) -> list[Piece]:
    """The column as text if all values are UTF-8; otherwise each value by itself."""
    try:
        return [',"payload":', *text_pieces(payload.cast(pa.string()))]
    except pa.ArrowInvalid:
        return [pa.array([_payload_member(value) for value in payload.to_pylist()], pa.string())]


def _payload_member(value: bytes) -> str:
    try:
        return f',"payload":{quoted(value.decode())}'
    except UnicodeDecodeError:
        return f',"payload_b64":"{base64.b64encode(value).decode()}"'


def _header_members(headers: pa.BinaryArray) -> pa.StringArray:
    blocks = headers.to_pylist()
    members = {block: _header_member(block) for block in set(blocks)}
    return pa.array([members[block] for block in blocks], pa.string())


def _header_member(block: bytes | None) -> str:
    if not block:
        return ""
    return f',"headers":{msgspec.json.encode(header_block.decode(block)).decode()}'


def _payload(index: int, item: PushedMessage) -> bytes:
    if (item.payload is UNSET) == (item.payload_b64 is UNSET):
        raise FormatError(f"data[{index}]: one of payload and payload_b64 is needed")
    if item.payload is not UNSET:
        return item.payload.encode()
    assert item.payload_b64 is not UNSET
    return item.payload_b64


def _headers(index: int, item: PushedMessage) -> bytes:
    try:
        return header_block.encode(item.headers)
    except FormatError as error:
        raise FormatError(f"data[{index}].headers: {error}") from None


def _check_subjects(items: list[PushedMessage], only: str | None) -> None:
    valid = {UNSET, only}
    for index, item in enumerate(items):
        if item.subject in valid:
            continue
        assert item.subject is not UNSET
        if only is not None:
            raise FormatError(f"data[{index}].subject: must be that of the partition, {only!r}")
        if not valid_subject(item.subject.encode()):
            raise FormatError(f"data[{index}].subject: {item.subject!r} is not a subject")
        valid.add(item.subject)
