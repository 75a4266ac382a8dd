"""Ids of jobs and messages: where they lie, and a tag that only the channel's key can make.

An id cannot be guessed from another one, and one of another channel, consumer or message does not
pass for it.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

_JOB: Final = struct.Struct(">IQ")
_OFFSET_SKIPPED: Final = 2
"""Offsets stay below 2**44: the first two of their eight bytes are zero and left out."""
_JOB_TAG: Final = 5
_MESSAGE_TAG: Final = 6


class JobPlace(NamedTuple):
    """The consumer's number within its channel, and the message's offset."""

    consumer: int
    offset: int


def job_id(key: bytes, place: JobPlace) -> str:
    """30 characters."""
    packed = _JOB.pack(*place)
    tag = _tag(key, b"job", packed, _JOB_TAG)
    return (packed[:4] + packed[4 + _OFFSET_SKIPPED :] + tag).hex()


def job_place(key: bytes, text: str) -> JobPlace | None:
    """Where the job of an id is; None for whatever is no such id."""
    data = _bytes(text)
    if data is None or len(data) != 10 + _JOB_TAG:
        return None
    packed = data[:4] + bytes(_OFFSET_SKIPPED) + data[4:10]
    if not hmac.compare_digest(_tag(key, b"job", packed, _JOB_TAG), data[10:]):
        return None
    return JobPlace(*_JOB.unpack(packed))


def message_id(key: bytes, offset: int) -> str:
    """24 characters: the id of a message whose sender gave it none."""
    packed = offset.to_bytes(6, "big")
    return (packed + _tag(key, b"message", packed, _MESSAGE_TAG)).hex()


def message_offset(key: bytes, text: str) -> int | None:
    """The offset of a message by such an id."""
    data = _bytes(text)
    if data is None or len(data) != 6 + _MESSAGE_TAG:
        return None
    if not hmac.compare_digest(_tag(key, b"message", data[:6], _MESSAGE_TAG), data[6:]):
        return None
    return int.from_bytes(data[:6], "big")


def _tag(key: bytes, kind: bytes, packed: bytes, size: int) -> bytes:
    short = key if len(key) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.sha256(key).digest()
    return hashlib.blake2b(kind + packed, key=short, digest_size=size).digest()


def _bytes(text: str) -> bytes | None:
    """Exactly the bytes that this text is written for, so that every job has one id."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    return data if data.hex() == text else None
