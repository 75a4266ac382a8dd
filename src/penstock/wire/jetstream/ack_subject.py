"""Ack subjects and what is published to them.

`$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time ns>.<pending behind>`.
They are made and read a run at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from penstock.wire.jetstream.requests import NextRequest, parse_next
from penstock.wire.jetstream.times import parse_duration

PREFIX: Final = b"$JS.ACK."

_TOKEN: Final = rb"([^.\n]+)"
_PLACE: Final = re.compile(re.escape(PREFIX) + _TOKEN + rb"\." + _TOKEN + rb"\.\d")
_NUMBERS: Final = rb"\d{1,18}\.(\d{1,18})\.\d{1,18}\.\d{1,20}\.\d{1,20}"


class AckKind(Enum):
    """What a client says about a message."""

    ACK = "ack"
    NAK = "nak"
    PROGRESS = "progress"
    TERM = "term"
    NEXT = "next"


class Acks(NamedTuple):
    """The acks in a run of publishes that concern one consumer."""

    stream: str
    consumer: str
    places: Sequence[int]
    """Where in the run they are."""
    seqs: list[int]
    """Stream sequences, in the same order."""


class _Delay(Struct):
    delay: int = 0


def ack_subjects(
    stream: str,
    consumer: str,
    counts: Sequence[int],
    seqs: Iterable[int],
    consumer_seqs: Iterable[int],
    timestamps_us: Sequence[int],
    pendings: Iterable[int],
) -> list[bytes]:
    """The subjects on which the messages of a run are acknowledged."""
    start = b"%b%b.%b." % (PREFIX, *map(_escaped, (stream, consumer)))
    if len(set(timestamps_us)) == 1 == len(set(counts)):
        # Messages that came together and go out for the first time.
        line = start + b"%d.%%d.%%d.%d.%%d" % (counts[0], timestamps_us[0] * 1000)
        return [line % row for row in zip(seqs, consumer_seqs, pendings, strict=True)]
    times = {us: b"%d" % (us * 1000) for us in set(timestamps_us)}
    texts = [times[us] for us in timestamps_us]
    columns = zip(counts, seqs, consumer_seqs, texts, pendings, strict=True)
    line = start + b"%d.%d.%d.%b.%d"
    return [line % row for row in columns]


def parse_acks(subjects: Sequence[bytes]) -> list[Acks]:
    """The consumers that a run is about; subjects of another form are left out."""
    place = _PLACE.match(subjects[0])
    if place is not None:
        found = _one_consumer(place[1], place[2]).findall(b"\n".join([*subjects, b""]))
        if len(found) == len(subjects):
            stream, consumer = map(_name, place.groups())
            return [Acks(stream, consumer, range(len(found)), list(map(int, found)))]
    return _by_consumer(subjects)


def kind_of(payload: bytes) -> AckKind | None:
    """What is said; None for what means nothing."""
    if payload in (b"", b"+ACK", b"+OK"):
        return AckKind.ACK
    return _KINDS.get(payload[:4]) if payload[:5] != b"+TERM" else AckKind.TERM


def nak_delay_ns(payload: bytes) -> int:
    """How long a refused message is to be held back; 0 when it does not say, or not clearly."""
    told = payload[len(b"-NAK") :].strip()
    try:
        if told[:1] == b"{":
            return max(msgspec.json.decode(told, type=_Delay).delay, 0)
        return max(parse_duration(told.decode()), 0) if told else 0
    except (ValueError, RecursionError):
        return 0


def term_reason(payload: bytes) -> str:
    """Why a message is never to be delivered again."""
    return payload[len(b"+TERM") :].strip().decode("utf-8", "replace")


def next_request(payload: bytes) -> NextRequest:
    """What is asked for together with the ack; raises ValueError."""
    return parse_next(payload[len(b"+NXT") :].strip())


_KINDS: Final = {
    b"-NAK": AckKind.NAK,
    b"+WPI": AckKind.PROGRESS,
    b"+NXT": AckKind.NEXT,
}


def _name(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _escaped(name: str) -> bytes:
    return name.encode().replace(b"%", b"%%")


@lru_cache(maxsize=256)
def _one_consumer(stream: bytes, consumer: bytes) -> re.Pattern[bytes]:
    """A line that is an ack subject of this consumer; finds the stream sequence."""
    start = re.escape(b"%b%b.%b." % (PREFIX, stream, consumer))
    return re.compile(rb"^" + start + _NUMBERS + rb"\n", re.MULTILINE)


def _by_consumer(subjects: Sequence[bytes]) -> list[Acks]:
    groups: dict[tuple[bytes, bytes], Acks] = {}
    for index, subject in enumerate(subjects):
        place = _PLACE.match(subject)
        if place is None:
            continue
        found = _one_consumer(place[1], place[2]).fullmatch(subject + b"\n")
        if found is None:
            continue
        key = (place[1], place[2])
        if key not in groups:
            groups[key] = Acks(_name(place[1]), _name(place[2]), [], [])
        places, seqs = groups[key].places, groups[key].seqs
        assert isinstance(places, list)
        places.append(index)
        seqs.append(int(found[1]))
    return list(groups.values())
