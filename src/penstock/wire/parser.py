"""Parses the input of a NATS client: bytes in, events out.

How the bytes are split into reads never changes the events, only how publishes form runs.
Consecutive publishes are one event. If several have the same size, which is usual, one pattern
matches the whole run; if they have the same payload, too, as acks do, the run is split at the bytes
that they share. Other publishes are parsed one by one. After an error no more input is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

CONTROL_LINE_MAX: Final = 4096

UNKNOWN_OPERATION: Final = b"'Unknown Protocol Operation'"
CONTROL_LINE_EXCEEDED: Final = b"'maximum control line exceeded'"
PAYLOAD_EXCEEDED: Final = b"'Maximum Payload Violation'"

ALIKE_MIN: Final = 2
"""After this many consecutive publishes of one size, the next are expected to have it, too."""
REPEATED_BYTES: Final = 4096
"""Publishes that differ only in their subject are split in windows of this many bytes."""
REPEATED_PAYLOAD_MAX: Final = 64
"""Longer payloads are not split at, because the search takes longer than skipping them."""
SUBJECT_BYTES_USUAL: Final = 2000

_ROUTE: Final = rb"[ \t]+([^ \t\r\n]+)(?:[ \t]+([^ \t\r\n]+))?"
_SIZE: Final = rb"[ \t]+(\d{1,9})"
_PUB: Final = re.compile(rb"(?i:PUB)" + _ROUTE + _SIZE + rb"[ \t]*\r?\n")
_HPUB: Final = re.compile(rb"(?i:HPUB)" + _ROUTE + _SIZE + _SIZE + rb"[ \t]*\r?\n")
_WORD: Final = re.compile(rb"[^ \t\r\n]*")
_IGNORED: Final = (b"+OK", b"INFO")
"""Operations of servers, which are ignored."""


class Publishes(NamedTuple):
    """Messages in order; `b""` means no reply and no headers."""

    subjects: list[bytes]
    replies: list[bytes]
    headers: list[bytes] | None
    """None when no message has any."""
    payloads: list[bytes]


class Subscribe(NamedTuple):
    """SUB; `b""` means no queue group."""

    subject: bytes
    queue: bytes
    sid: bytes


class Unsubscribe(NamedTuple):
    """UNSUB; without `most`, the subscription ends at once."""

    sid: bytes
    most: int | None


class Connect(NamedTuple):
    """CONNECT and its options as JSON."""

    options: bytes


class Beat(Enum):
    """PING and PONG."""

    PING = b"PING"
    PONG = b"PONG"


class Broken(NamedTuple):
    """The connection must be closed; an empty `error` is not sent."""

    error: bytes


Event = Publishes | Subscribe | Unsubscribe | Connect | Beat | Broken


class Parser:
    """Parses the input of one connection."""

    def __init__(self, payload_bytes_max: int) -> None:
        self.payload_bytes_max = payload_bytes_max
        self._pieces: list[bytes] = []
        self._buffered = 0
        """The number of bytes in `_pieces`."""
        self._needed = 0
        """Nothing is parsed before this many bytes are buffered."""
        self._run = Publishes([], [], None, [])
        self._events: list[Event] = []
        self._broken = False

    def receive(self, data: bytes) -> list[Event]:
        """The events that this data completes."""
        if self._broken:
            return []
        if self._pieces:
            self._pieces.append(data)
            self._buffered += len(data)
            if self._buffered < self._needed:
                return []
            data = b"".join(self._pieces)
        self._needed = 0
        position = self._parse(data)
        self._pieces = [data[position:]] if position < len(data) and not self._broken else []
        self._buffered = len(data) - position
        self._end_run()
        events, self._events = self._events, []
        return events

    def _parse(self, data: bytes) -> int:
        """Parse complete operations; returns the position of the first incomplete one."""
        position, end = 0, len(data)
        while position < end and not self._broken:
            first = data[position]
            if first in b"Pp" and (match := _PUB.match(data, position)):
                after = self._parse_pub(data, match)
            elif first in b"Hh" and (match := _HPUB.match(data, position)):
                after = self._parse_hpub(data, match)
            else:
                after = self._parse_line(data, position)
            if after is None:
                break
            position = after
        return position

    def _parse_pub(self, data: bytes, match: re.Match[bytes]) -> int | None:
        subject, reply, size = match.groups(b"")
        count = int(size)
        after = self._end_of_publish(data, match, count)
        if after is None:
            return None
        subjects, replies, headers, payloads = self._run
        alike = len(payloads) >= ALIKE_MIN and len(payloads[-1]) == len(payloads[-2]) == count
        payload = data[match.end() : after - 2]
        repeated = alike and not reply and count <= REPEATED_PAYLOAD_MAX and payload == payloads[-1]
        subjects.append(subject)
        replies.append(reply)
        payloads.append(payload)
        if headers is not None:
            headers.append(b"")
        if repeated:
            return self._parse_same_payload(data, after, data[match.end(1) : after], payload)
        return self._parse_same_size(data, after, count) if alike else after

    def _parse_same_payload(self, data: bytes, position: int, ending: bytes, payload: bytes) -> int:
        """Parse the following publishes that differ only in their subject; returns where they end.

        `ending` are the bytes that follow each subject.
        """
        between = ending + b"PUB "
        while data.startswith(b"PUB ", position):
            piece = data[position + 4 : position + REPEATED_BYTES]
            subjects = piece.split(between)[:-1]
            if not subjects or not _all_subjects(subjects):
                break
            self._extend(subjects, [b""] * len(subjects), [payload] * len(subjects))
            position += sum(map(len, subjects)) + len(subjects) * len(between)
        return position

    def _parse_same_size(self, data: bytes, position: int, size: int) -> int:
        """Parse the following publishes of this size; returns where they end."""
        scanner = _sized(size).scanner(data, position)  # type: ignore[attr-defined]
        matches = list(iter(scanner.match, None))
        if not matches:
            return position
        subjects, replies, payloads = zip(*[match.groups(b"") for match in matches], strict=True)
        self._extend(subjects, replies, payloads)
        return int(matches[-1].end())

    def _extend(
        self, subjects: Sequence[bytes], replies: Sequence[bytes], payloads: Sequence[bytes]
    ) -> None:
        run = self._run
        run.subjects.extend(subjects)
        run.replies.extend(replies)
        run.payloads.extend(payloads)
        if run.headers is not None:
            run.headers.extend([b""] * len(payloads))

    def _parse_hpub(self, data: bytes, match: re.Match[bytes]) -> int | None:
        subject, reply, header_size, size = match.groups(b"")
        start, count, headers_count = match.end(), int(size), int(header_size)
        # A publish that exceeds the payload limit is reported as such below.
        if headers_count > count <= self.payload_bytes_max:
            self._break(b"")
            return None
        after = self._end_of_publish(data, match, count)
        if after is None:
            return None
        run = self._run
        if run.headers is None:
            run = self._run = run._replace(headers=[b""] * len(run.payloads))
        assert run.headers is not None
        run.subjects.append(subject)
        run.replies.append(reply)
        run.headers.append(data[start : start + headers_count])
        run.payloads.append(data[start + headers_count : after - 2])
        return after

    def _end_of_publish(self, data: bytes, match: re.Match[bytes], count: int) -> int | None:
        """Where a publish with `count` bytes ends; None if it is incomplete or invalid."""
        begin, start = match.span()
        after = start + count + 2
        if start - begin > CONTROL_LINE_MAX + 2:
            self._break(CONTROL_LINE_EXCEEDED)
        elif count > self.payload_bytes_max:
            self._break(PAYLOAD_EXCEEDED)
        elif len(data) < after:
            self._needed = after - begin
        elif data[after - 2 : after] != b"\r\n":
            self._break(UNKNOWN_OPERATION)
        else:
            return after
        return None

    def _parse_line(self, data: bytes, position: int) -> int | None:
        """Parse an operation that is not a publish; returns where it ends, None if incomplete."""
        end = data.find(b"\n", position, position + CONTROL_LINE_MAX + 2)
        if end < 0:
            if len(data) - position > CONTROL_LINE_MAX + 1:
                self._break(CONTROL_LINE_EXCEEDED)
            return None
        verb = _WORD.match(data, position, end)
        assert verb is not None
        event = _event(verb[0].upper(), data[verb.end() : end].removesuffix(b"\r"))
        if isinstance(event, Broken):
            self._break(event.error)
            return None
        if event is not None:
            self._end_run()
            self._events.append(event)
        return end + 1

    def _end_run(self) -> None:
        if self._run.payloads:
            self._events.append(self._run)
            self._run = Publishes([], [], None, [])

    def _break(self, error: bytes) -> None:
        self._end_run()
        self._events.append(Broken(error))
        self._broken = True


@lru_cache(maxsize=64)
def _sized(size: int) -> re.Pattern[bytes]:
    """The pattern of a publish of this size in its usual form, payload included."""
    word = rb"([^ \t\r\n]{1,%d}) +" % SUBJECT_BYTES_USUAL
    return re.compile(rb"PUB %b(?:%b)?%d\r\n(.{%d})\r\n" % (word, word, size, size), re.S)


def _all_subjects(words: list[bytes]) -> bool:
    """Whether each is one word of usual length."""
    return (
        all(words)
        and max(map(len, words)) <= SUBJECT_BYTES_USUAL
        and len(b"".join(words).split(None, 1)) == 1
    )


def _event(verb: bytes, arguments: bytes) -> Event | None:
    """The event of a line; a publish that reaches this function has invalid arguments."""
    words = arguments.split()
    if verb == b"SUB" and len(words) in (2, 3):
        return Subscribe(words[0], words[1] if len(words) == 3 else b"", words[-1])
    if verb == b"UNSUB" and len(words) in (1, 2):
        return Unsubscribe(words[0], _most(words[1]) if len(words) == 2 else None)
    if verb == b"CONNECT" and words:
        return Connect(arguments.strip())
    if verb in (b"PING", b"PONG"):
        return Beat(verb)
    if verb in _IGNORED:
        return None
    has_bad_arguments = verb in (b"PUB", b"HPUB", b"SUB", b"UNSUB") and arguments
    silent = has_bad_arguments or verb in (b"CONNECT", b"-ERR")
    return Broken(b"" if silent else UNKNOWN_OPERATION)


def _most(text: bytes) -> int | None:
    """The number of deliveries; None if the text is no number."""
    return int(text) if text.isdigit() and len(text) < 19 else None
