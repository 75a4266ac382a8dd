"""What a NATS server sends: bytes in, events out.

How the bytes are cut into reads never changes the events.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.nats.errors import NatsProtocolError

CONTROL_LINE_MAX: Final = 65_536
"""INFO may be long."""
_MESSAGE: Final = re.compile(rb"MSG (\S+) (\S+) +(?:(\S+) )?(\d{1,10})\r\n")
_WITH_HEADERS: Final = re.compile(rb"HMSG (\S+) (\S+) +(?:(\S+) )?(\d{1,10}) (\d{1,10})\r\n")


class Arrival(NamedTuple):
    """A message for the subscription `sid`; `b""` stands for no reply and no headers."""

    subject: bytes
    sid: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Info(NamedTuple):
    """INFO, as JSON."""

    document: bytes


class Refusal(NamedTuple):
    """-ERR, without its quotes."""

    text: str


class Sign(Enum):
    """What has no content."""

    PING = b"PING"
    PONG = b"PONG"
    OK = b"+OK"


Event = Arrival | Info | Refusal | Sign


class Incoming:
    """Takes what one connection receives."""

    def __init__(self) -> None:
        self._held = b""

    def receive(self, data: bytes) -> list[Event]:
        """Events that are complete with this data; raises NatsProtocolError."""
        data = self._held + data
        events: list[Event] = []
        position = 0
        while (taken := _event(data, position)) is not None:
            event, position = taken
            events.append(event)
        self._held = data[position:]
        return events


def _event(data: bytes, position: int) -> tuple[Event, int] | None:
    """The event that begins here and where the next begins; None when it is not all there."""
    if found := _MESSAGE.match(data, position):
        subject, sid, reply, size = found.groups(b"")
        return _arrival(data, found.end(), (subject, sid, reply), 0, int(size))
    if found := _WITH_HEADERS.match(data, position):
        subject, sid, reply, headers, size = found.groups(b"")
        return _arrival(data, found.end(), (subject, sid, reply), int(headers), int(size))
    end = data.find(b"\r\n", position)
    if end < 0:
        if len(data) - position > CONTROL_LINE_MAX:
            raise NatsProtocolError("the server sends a line without an end")
        return None
    return _line(data[position:end]), end + 2


def _arrival(
    data: bytes, start: int, names: tuple[bytes, bytes, bytes], headers: int, size: int
) -> tuple[Event, int] | None:
    stop = start + size
    if len(data) < stop + 2:
        return None
    body = start + headers
    return Arrival(*names, data[start:body], data[body:stop]), stop + 2


def _line(line: bytes) -> Event:
    verb, _, rest = line.partition(b" ")
    if verb == b"INFO":
        return Info(rest.strip())
    if verb == b"-ERR":
        return Refusal(rest.strip(b" '").decode(errors="replace"))
    try:
        return Sign(verb)
    except ValueError:
        shown = line[:80].decode(errors="replace")
        raise NatsProtocolError(f"the server sends what is not NATS: {shown!r}") from None
