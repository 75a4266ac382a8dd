"""Ids of jobs and messages: xids that contain the time, the offset and the endpoint.

    bits  32        44        20
          seconds   offset    endpoint's number XOR pad       written as 20 characters of base32hex

`pad` is a keyed hash of the seconds and the offset, so an id with another offset or time, or of
another channel, decodes to a random endpoint number. An id is not a credential: callers must
compare the endpoint number with that of the endpoint whose token they have checked. A message id
is the id of number 0, with a hash of its own.

Earlier versions issued 30 (job) and 24 (message) hexadecimal digits, which are still decoded.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import Final, NamedTuple

_ENDPOINT_BITS: Final = 20
_OFFSET_BITS: Final = 44
ENDPOINTS_MAX: Final = (1 << _ENDPOINT_BITS) - 1
"""Highest endpoint number that fits in an id: a channel can create this many endpoints."""
_SECONDS_MASK: Final = (1 << 32) - 1
_XID_BYTES: Final = 12
_XID_CHARACTERS: Final = 20
_PADDING: Final = b"===="
_JOB_KIND: Final = b"job"
_MESSAGE_KIND: Final = b"message"
_MESSAGE_NUMBER: Final = 0
"""Endpoints are numbered from 1."""

_HEX_JOB: Final = struct.Struct(">IQ")
_HEX_OFFSET_SKIPPED: Final = 2
"""Offsets are below 2**44: the hexadecimal format omits the two leading zero bytes."""
_HEX_JOB_TAG: Final = 5
_HEX_MESSAGE_TAG: Final = 6


class JobPlace(NamedTuple):
    """The number of an endpoint within its channel, and the offset of a message."""

    endpoint: int
    offset: int


def job_id(key: bytes, place: JobPlace, time_us: int) -> str:
    """The id of a job whose message was stored at this time.

    An endpoint number above ENDPOINTS_MAX, which only earlier versions assigned, gets an id of the
    hexadecimal format.
    """
    if place.endpoint > ENDPOINTS_MAX:
        return _hex_job_id(key, place)
    return _xid(key, _JOB_KIND, place, time_us)


def job_place(key: bytes, text: str) -> JobPlace | None:
    """The endpoint number and offset in a job id of either format; None for any other text."""
    return _read_xid(key, _JOB_KIND, text) or _read_hex_job(key, text)


def message_id(key: bytes, offset: int, time_us: int) -> str:
    """The id of a message without a producer's id that was stored at this time."""
    return _xid(key, _MESSAGE_KIND, JobPlace(_MESSAGE_NUMBER, offset), time_us)


def message_offset(key: bytes, text: str) -> int | None:
    """The offset in a message id of either format; None for any other text."""
    place = _read_xid(key, _MESSAGE_KIND, text)
    if place is not None:
        return place.offset if place.endpoint == _MESSAGE_NUMBER else None
    return _read_hex_message(key, text)


def random_id(time_us: int, random: bytes) -> str:
    """An xid of this time and 8 random bytes, for a message that has no offset yet."""
    seconds = time_us // 1_000_000 & _SECONDS_MASK
    return _encode_xid(seconds.to_bytes(4, "big") + random)


def _xid(key: bytes, kind: bytes, place: JobPlace, time_us: int) -> str:
    prefix = (time_us // 1_000_000 & _SECONDS_MASK) << _OFFSET_BITS | place.offset
    value = prefix << _ENDPOINT_BITS | place.endpoint ^ _pad(key, kind, prefix)
    return _encode_xid(value.to_bytes(_XID_BYTES, "big"))


def _read_xid(key: bytes, kind: bytes, text: str) -> JobPlace | None:
    if len(text) != _XID_CHARACTERS or not text.isascii():
        return None
    try:
        data = base64.b32hexdecode(text.upper().encode() + _PADDING)
    except binascii.Error:
        return None
    if _encode_xid(data) != text:
        return None
    value = int.from_bytes(data, "big")
    prefix = value >> _ENDPOINT_BITS
    number = value & ENDPOINTS_MAX ^ _pad(key, kind, prefix)
    return JobPlace(number, prefix & (1 << _OFFSET_BITS) - 1)


def _encode_xid(data: bytes) -> str:
    return base64.b32hexencode(data)[:_XID_CHARACTERS].decode().lower()


def _pad(key: bytes, kind: bytes, prefix: int) -> int:
    digest = _tag(key, b"xid " + kind, prefix.to_bytes(10, "big"), 3)
    return int.from_bytes(digest, "big") & ENDPOINTS_MAX


def _hex_job_id(key: bytes, place: JobPlace) -> str:
    packed = _HEX_JOB.pack(*place)
    tag = _tag(key, _JOB_KIND, packed, _HEX_JOB_TAG)
    return (packed[:4] + packed[4 + _HEX_OFFSET_SKIPPED :] + tag).hex()


def _read_hex_job(key: bytes, text: str) -> JobPlace | None:
    data = _hex_bytes(text)
    if data is None or len(data) != 10 + _HEX_JOB_TAG:
        return None
    packed = data[:4] + bytes(_HEX_OFFSET_SKIPPED) + data[4:10]
    if not hmac.compare_digest(_tag(key, _JOB_KIND, packed, _HEX_JOB_TAG), data[10:]):
        return None
    return JobPlace(*_HEX_JOB.unpack(packed))


def _read_hex_message(key: bytes, text: str) -> int | None:
    data = _hex_bytes(text)
    if data is None or len(data) != 6 + _HEX_MESSAGE_TAG:
        return None
    if not hmac.compare_digest(_tag(key, _MESSAGE_KIND, data[:6], _HEX_MESSAGE_TAG), data[6:]):
        return None
    return int.from_bytes(data[:6], "big")


def _tag(key: bytes, kind: bytes, packed: bytes, size: int) -> bytes:
    short = key if len(key) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.sha256(key).digest()
    return hashlib.blake2b(kind + packed, key=short, digest_size=size).digest()


def _hex_bytes(text: str) -> bytes | None:
    """The bytes of hexadecimal digits; None unless the text is their one canonical form."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    return data if data.hex() == text else None
