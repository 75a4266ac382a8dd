"""The client's side of the NATS protocol: commands as bytes, and the parser of what servers send.

How the received bytes are cut into reads never changes the events.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.nats.errors import NatsError, NatsProtocolError
from penstock.wire import headers as header_blocks

CONTROL_LINE_MAX: Final = 65_536
"""Bytes of the longest line that a server may send, which is INFO."""
_MESSAGE: Final = re.compile(rb"MSG (\S+) (\S+) +(?:(\S+) )?(\d{1,10})\r\n")
_WITH_HEADERS: Final = re.compile(rb"HMSG (\S+) (\S+) +(?:(\S+) )?(\d{1,10}) (\d{1,10})\r\n")


class Arrival(NamedTuple):
    """A message for the subscription `sid`; `b""` stands for no reply and no headers."""

    subject: bytes
    sid: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class InfoEvent(NamedTuple):
    """INFO with its JSON document."""

    document: bytes


class ErrorEvent(NamedTuple):
    """-ERR with its text, without quotes."""

    text: str


class ControlEvent(Enum):
    """A line without arguments."""

    PING = b"PING"
    PONG = b"PONG"
    OK = b"+OK"


ServerEvent = Arrival | InfoEvent | ErrorEvent | ControlEvent


class ServerParser:
    """Parses the bytes that one connection receives."""

    def __init__(self) -> None:
        self._incomplete = b""

    def receive(self, data: bytes) -> list[ServerEvent]:
        """Events that this data completes; raises NatsProtocolError."""
        data = self._incomplete + data
        events: list[ServerEvent] = []
        position = 0
        while (parsed := _event(data, position)) is not None:
            event, position = parsed
            events.append(event)
        self._incomplete = data[position:]
        return events


def _event(data: bytes, position: int) -> tuple[ServerEvent, int] | None:
    """The event at `position` and the position of the next one; None if it is incomplete."""
    if match := _MESSAGE.match(data, position):
        subject, sid, reply, size = match.groups(b"")
        return _arrival(data, match.end(), (subject, sid, reply), 0, int(size))
    if match := _WITH_HEADERS.match(data, position):
        subject, sid, reply, headers, size = match.groups(b"")
        return _arrival(data, match.end(), (subject, sid, reply), int(headers), int(size))
    end = data.find(b"\r\n", position)
    if end < 0:
        if len(data) - position > CONTROL_LINE_MAX:
            raise NatsProtocolError("the server sends a line without an end")
        return None
    return _line(data[position:end]), end + 2


def _arrival(
    data: bytes, start: int, names: tuple[bytes, bytes, bytes], headers: int, size: int
) -> tuple[ServerEvent, int] | None:
    stop = start + size
    if len(data) < stop + 2:
        return None
    body = start + headers
    return Arrival(*names, data[start:body], data[body:stop]), stop + 2


def _line(line: bytes) -> ServerEvent:
    verb, _, argument = line.partition(b" ")
    if verb == b"INFO":
        return InfoEvent(argument.strip())
    if verb == b"-ERR":
        return ErrorEvent(argument.strip(b" '").decode(errors="replace"))
    try:
        return ControlEvent(verb)
    except ValueError:
        shown = line[:80].decode(errors="replace")
        raise NatsProtocolError(f"the server sends what is not NATS: {shown!r}") from None


# -- commands


class Inbox(NamedTuple):
    """A subject that only this client uses, and the id of its subscription."""

    subject: bytes
    sid: bytes


def subscribe(inbox: Inbox) -> bytes:
    return b"SUB %b %b\r\n" % inbox


def unsubscribe(sid: bytes, messages_max: int | None = None) -> bytes:
    """End a subscription at once, or after a total number of messages."""
    if messages_max is None:
        return b"UNSUB %b\r\n" % sid
    return b"UNSUB %b %d\r\n" % (sid, messages_max)


def publish(subject: bytes, reply: bytes, payload: bytes, headers: bytes = b"") -> bytes:
    """`b""` stands for no reply and no headers."""
    route = b"%b %b" % (subject, reply) if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (route, len(payload), payload)
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    return b"HPUB %b %b\r\n%b%b\r\n" % (route, sizes, headers, payload)


def subject_bytes(subject: str) -> bytes:
    """A subject as bytes; raises NatsError if it is empty or has white space."""
    if not subject or any(character.isspace() for character in subject):
        raise NatsError(f"a subject is a word without white space, not {subject!r}")
    return subject.encode()


def header_block(fields: Mapping[str, str] | None) -> bytes:
    """Headers as an encoded block; raises NatsError for a malformed name or value."""
    if not fields:
        return b""
    for name, value in fields.items():
        if not name or ":" in name or any(end in name + value for end in "\r\n"):
            raise NatsError(f"a header is a name and one line, not {name!r}: {value!r}")
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    return header_blocks.with_fields(b"", pairs)
