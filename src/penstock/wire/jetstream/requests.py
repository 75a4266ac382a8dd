"""The requests of the JetStream API, except those with configurations.

Requests about streams and consumers are parsed strictly. Pull requests and direct gets are parsed
leniently: unknown fields are ignored.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from penstock.model.times import parse_time
from penstock.wire.jetstream.errors import BAD_JSON, BAD_REQUEST
from penstock.wire.jetstream.strict import Duration, Int, Int64, Time, Uint64, read
from penstock.wire.jetstream.times import ZERO_TIME

_T = TypeVar("_T", bound=Struct)
_NUMBER: Final = re.compile(rb"[+-]?\d{1,18}")


class StreamInfoRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """STREAM.INFO."""

    deleted_details: bool = False
    subjects_filter: str = ""
    offset: Int = 0


class PageRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """NAMES and LIST, of streams and of consumers."""

    offset: Int = 0
    subject: str = ""


class PurgeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """STREAM.PURGE: of the messages that match `filter`, delete all, those before `seq`, or all but
    the last `keep`.
    """

    filter: str = ""
    seq: Uint64 = 0
    keep: Uint64 = 0


class MessageGet(Struct, frozen=True, forbid_unknown_fields=True):
    """STREAM.MSG.GET; fields of direct gets are parsed to be refused."""

    seq: Uint64 = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: Int = 0
    max_bytes: Int = 0
    start_time: Time = ""
    multi_last: tuple[str, ...] = ()
    up_to_seq: Uint64 = 0
    up_to_time: Time = ""
    no_hdr: bool = False


class MessageDelete(Struct, frozen=True, forbid_unknown_fields=True):
    """STREAM.MSG.DELETE."""

    seq: Uint64 = 0
    no_erase: bool = False


class PauseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """CONSUMER.PAUSE; without a time the consumer resumes."""

    pause_until: Time = ""


class ResetRequest(Struct, frozen=True):
    """CONSUMER.RESET; without a sequence to the ack floor."""

    seq: Uint64 = 0


class UnpinRequest(Struct, frozen=True):
    """CONSUMER.UNPIN."""

    group: str = ""


class NextRequest(Struct, frozen=True):
    """CONSUMER.MSG.NEXT; durations are nanoseconds."""

    batch: Int = 0
    expires: Duration = 0
    no_wait: bool = False
    max_bytes: Int = 0
    idle_heartbeat: Duration = 0
    group: str = ""
    min_pending: Int64 = 0
    min_ack_pending: Int64 = 0
    id: str = ""
    priority: Int = 0


class DirectGet(Struct, frozen=True):
    """DIRECT.GET; see `parse_direct_get`."""

    seq: Uint64 = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: Int = 0
    max_bytes: Int = 0
    start_time: Time = ""
    multi_last: tuple[str, ...] = ()
    up_to_seq: Uint64 = 0
    up_to_time: Time = ""
    no_hdr: bool = False


class DirectRefusal(Enum):
    """The reason why a direct get is refused."""

    EMPTY = b"Empty Request"
    MALFORMED = b"Malformed Request"
    BAD = b"Bad Request"


_SINGLE: Final = NextRequest(batch=1)
_NEXT: Final = msgspec.json.Decoder(NextRequest)
_DIRECT: Final = msgspec.json.Decoder(DirectGet)
_NO_GET: Final = DirectGet()


def parse_info(body: bytes) -> StreamInfoRequest:
    """Parse STREAM.INFO; raises ApiError, as all strict parsers do."""
    return read(_document(body), StreamInfoRequest, "JSApiStreamInfoRequest")


def parse_page(body: bytes, type_name: str) -> PageRequest:
    return read(_document(body), PageRequest, type_name)


def parse_purge(body: bytes) -> PurgeRequest:
    request = read(_document(body), PurgeRequest, "JSApiStreamPurgeRequest")
    if request.seq and request.keep:
        raise BAD_REQUEST.error()
    return request


def parse_message_get(body: bytes) -> MessageGet:
    request = read(body, MessageGet, "JSApiMsgGetRequest")
    by_time = bool(request.start_time)
    selectors = (
        bool(request.seq or request.next_by_subj or by_time),
        bool(request.last_by_subj),
    )
    if (
        selectors not in ((True, False), (False, True))
        or (request.seq and by_time)
        or request.batch
        or request.max_bytes
        or request.multi_last
    ):
        raise BAD_REQUEST.error()
    return request


def parse_message_delete(body: bytes) -> MessageDelete:
    request = read(body, MessageDelete, "JSApiMsgDeleteRequest")
    if not request.seq:
        raise BAD_REQUEST.error()
    return request


def parse_pause(body: bytes) -> int | None:
    """Nanoseconds since 1970, or None to resume."""
    request = read(_document(body), PauseRequest, "JSApiConsumerPauseRequest")
    until = request.pause_until
    return parse_time(until) if until not in ("", ZERO_TIME) else None


def parse_reset(body: bytes) -> int:
    """The sequence to restart at; 0 for the ack floor."""
    return read(_document(body), ResetRequest, "JSApiConsumerResetRequest").seq


def parse_unpin(body: bytes) -> str:
    """The priority group to unpin."""
    if not body:
        raise BAD_JSON.error("unexpected end of JSON input")
    group = read(body, UnpinRequest, "JSApiConsumerUnpinRequest").group
    if not group:
        raise BAD_JSON.error("consumer group not specified")
    return group


def parse_next(body: bytes) -> NextRequest:
    """Parse a pull request: a JSON object or a number of messages; any other body means 1.

    Raises ValueError with a text for the client.
    """
    if body[:1] == b"{":
        return _lenient(_NEXT, body)
    if _NUMBER.fullmatch(body):
        return NextRequest(batch=int(body))
    return _SINGLE


def parse_direct_get(body: bytes) -> DirectGet | DirectRefusal:
    """Parse a direct get on the stream's subject, whose body names the message."""
    request = _direct(body)
    if request is _NO_GET or isinstance(request, DirectRefusal):
        return DirectRefusal.EMPTY if request is _NO_GET else request
    selector = request.seq or request.last_by_subj or request.next_by_subj or request.start_time
    if not selector and not request.multi_last:
        return DirectRefusal.EMPTY
    return DirectRefusal.BAD if _is_contradictory(request) else request


def parse_direct_get_subject(body: bytes, subject: str) -> DirectGet | DirectRefusal:
    """Parse a direct get whose subject names the message's subject; the body may set `no_hdr`."""
    request = _direct(body)
    if isinstance(request, DirectRefusal):
        return request
    if request != DirectGet(no_hdr=request.no_hdr):
        return DirectRefusal.BAD
    return DirectGet(last_by_subj=subject, no_hdr=request.no_hdr)


def _is_contradictory(request: DirectGet) -> bool:
    last, multi = bool(request.last_by_subj), bool(request.multi_last)
    return bool(
        (request.seq and (last or request.start_time))
        or (last and (request.next_by_subj or request.batch or request.start_time))
        or (multi and (last or request.next_by_subj))
        or (request.up_to_seq and request.up_to_time)
    )


def _direct(body: bytes) -> DirectGet | DirectRefusal:
    if not body:
        return _NO_GET
    try:
        request = _lenient(_DIRECT, body)
        for time in (request.start_time, request.up_to_time):
            if time:
                parse_time(time)
    except ValueError:
        return DirectRefusal.MALFORMED
    return request


def _document(body: bytes) -> bytes:
    """The body, or an empty one if it does not begin like JSON."""
    return body if body.lstrip()[:1] in (b"{", b"[") else b""


def _lenient(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Decode a document, with null like a missing field; raises ValueError."""
    try:
        return _without_nulls(decoder, body)
    except RecursionError:
        raise ValueError("JSON is nested too deep") from None


def _without_nulls(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raw: Any = msgspec.json.decode(body)
        if not isinstance(raw, dict) or None not in raw.values():
            raise
        fields = {name: value for name, value in raw.items() if value is not None}
        return msgspec.convert(fields, decoder.type)
