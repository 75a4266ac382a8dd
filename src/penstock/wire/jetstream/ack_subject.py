"""Ack subjects, and the payloads that clients publish to them.

`$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time ns>.<pending>`, where
`pending` counts the messages that follow. Subjects are encoded and parsed a run at a time.
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
_CONSUMER: Final = re.compile(re.escape(PREFIX) + _TOKEN + rb"\." + _TOKEN + rb"\.\d")
_NUMBERS: Final = rb"\d{1,18}\.(\d{1,18})\.\d{1,18}\.\d{1,20}\.\d{1,20}"


class AckKind(Enum):
    """The kinds of acknowledgement."""

    ACK = "ack"
    NAK = "nak"
    PROGRESS = "progress"
    TERM = "term"
    NEXT = "next"


class Acks(NamedTuple):
    """The acks for one consumer in a run of publishes."""

    stream: str
    consumer: str
    positions: Sequence[int]
    """Their positions in the run."""
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
        # Messages that were stored together and are delivered for the first time.
        line = start + b"%d.%%d.%%d.%d.%%d" % (counts[0], timestamps_us[0] * 1000)
        return [line % row for row in zip(seqs, consumer_seqs, pendings, strict=True)]
    times = {us: b"%d" % (us * 1000) for us in set(timestamps_us)}
    texts = [times[us] for us in timestamps_us]
    columns = zip(counts, seqs, consumer_seqs, texts, pendings, strict=True)
    line = start + b"%d.%d.%d.%b.%d"
    return [line % row for row in columns]


def parse_acks(subjects: Sequence[bytes]) -> list[Acks]:
    """The acks in a run, by consumer; subjects of another form are skipped."""
    match = _CONSUMER.match(subjects[0])
    if match is not None:
        seqs = _ack_of_consumer(match[1], match[2]).findall(b"\n".join([*subjects, b""]))
        if len(seqs) == len(subjects):
            stream, consumer = map(_name, match.groups())
            return [Acks(stream, consumer, range(len(seqs)), list(map(int, seqs)))]
    return _by_consumer(subjects)


def kind_of(payload: bytes) -> AckKind | None:
    """The kind of an ack payload; None if it is unknown."""
    if payload in (b"", b"+ACK", b"+OK"):
        return AckKind.ACK
    return _KINDS.get(payload[:4]) if payload[:5] != b"+TERM" else AckKind.TERM


def nak_delay_ns(payload: bytes) -> int:
    """The delay in a nak payload; 0 if it has none or an invalid one."""
    text = payload[len(b"-NAK") :].strip()
    try:
        if text[:1] == b"{":
            return max(msgspec.json.decode(text, type=_Delay).delay, 0)
        return max(parse_duration(text.decode()), 0) if text else 0
    except (ValueError, RecursionError):
        return 0


def term_reason(payload: bytes) -> str:
    """The reason in a termination payload."""
    return payload[len(b"+TERM") :].strip().decode("utf-8", "replace")


def next_request(payload: bytes) -> NextRequest:
    """The pull request in an ack payload; raises ValueError."""
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
def _ack_of_consumer(stream: bytes, consumer: bytes) -> re.Pattern[bytes]:
    """The pattern of a line with an ack subject of this consumer; its group is the sequence."""
    start = re.escape(b"%b%b.%b." % (PREFIX, stream, consumer))
    return re.compile(rb"^" + start + _NUMBERS + rb"\n", re.MULTILINE)


def _by_consumer(subjects: Sequence[bytes]) -> list[Acks]:
    groups: dict[tuple[bytes, bytes], Acks] = {}
    for index, subject in enumerate(subjects):
        match = _CONSUMER.match(subject)
        if match is None:
            continue
        ack = _ack_of_consumer(match[1], match[2]).fullmatch(subject + b"\n")
        if ack is None:
            continue
        key = (match[1], match[2])
        if key not in groups:
            groups[key] = Acks(_name(match[1]), _name(match[2]), [], [])
        positions, seqs = groups[key].positions, groups[key].seqs
        assert isinstance(positions, list)
        positions.append(index)
        seqs.append(int(ack[1]))
    return list(groups.values())
