"""What the header fields of a publish ask for."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from penstock.topics.streams.schedule_rules import MARK
from penstock.wire import headers
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.counter_values import FIELD, increment_of
from penstock.wire.jetstream.stream_config import StreamConfig
from penstock.wire.jetstream.times import parse_ttl

RESERVED: Final = b"Nats-"
"""Fields that ask for something begin so."""
NEVER: Final = -1
"""A sequence that no message has: a number that cannot be read is one that does not fit."""


@dataclass(frozen=True, slots=True)
class Expectations:
    """Of one publish; None where nothing is asked."""

    message_id: bytes = b""
    stream: bytes | None = None
    last_sequence: int | None = None
    last_subject_sequence: int | None = None
    subject: bytes = b""
    """Whose last sequence is meant, when not the message's own."""
    last_message_id: bytes | None = None
    rollup: bytes | None = None
    ttl: bytes | None = None
    schedules: bytes = b""
    """The header block, if it tells of schedules."""
    increment: bytes | None = None
    """What is to be added to the subject's counter."""

    @property
    def ttl_ns(self) -> int | None:
        """How long the message lives; None is for ever. Raises ApiError."""
        if self.ttl is None:
            return None
        parsed = parse_ttl(self.ttl)
        return parsed if parsed > 0 else None

    def check_allowed(self, config: StreamConfig) -> None:
        """Raises ApiError when the stream is another, or does not do what is asked."""
        if self.stream is not None and self.stream != config.name.encode():
            raise errors.EXPECTED_STREAM.error()
        if self.ttl is not None:
            if not config.allow_msg_ttl:
                raise errors.TTL_DISABLED.error()
            parse_ttl(self.ttl)
        if self.subject and self.last_subject_sequence is None:
            raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error()

    def check_increment(self, config: StreamConfig, payload: bytes) -> Decimal | None:
        """What is to be added, if anything; raises ApiError when the message cannot count."""
        if self.increment is None:
            return None
        number = increment_of(self.increment)
        if not config.allow_msg_counter:
            raise errors.COUNTERS_DISABLED.error()
        if payload:
            raise errors.INCREMENT_WITH_PAYLOAD.error()
        expected = (self.stream, self.last_sequence, self.last_subject_sequence)
        if any(one is not None for one in (*expected, self.last_message_id, self.rollup)):
            raise errors.INCREMENT_INVALID.error()
        if self.subject:
            raise errors.INCREMENT_INVALID.error()
        return number

    def check_rollup(self, config: StreamConfig) -> None:
        """Raises ApiError when the message must not replace others."""
        if self.rollup is not None:
            if not config.allow_rollup_hdrs or config.deny_purge:
                raise errors.ROLLUP_FAILED.error("rollup not permitted")
            if self.rollup not in (b"sub", b"all"):
                told = self.rollup.decode(errors="replace")
                raise errors.ROLLUP_FAILED.error(f'rollup value invalid: "{told}"')


def expectations_of(block: bytes) -> Expectations:
    """Of a header block."""
    get = headers.get
    return Expectations(
        message_id=get(block, b"Nats-Msg-Id") or b"",
        stream=get(block, b"Nats-Expected-Stream") or None,
        last_sequence=_number(get(block, b"Nats-Expected-Last-Sequence")),
        last_subject_sequence=_number(get(block, b"Nats-Expected-Last-Subject-Sequence")),
        subject=get(block, b"Nats-Expected-Last-Subject-Sequence-Subject") or b"",
        last_message_id=get(block, b"Nats-Expected-Last-Msg-Id") or None,
        rollup=get(block, b"Nats-Rollup") or None,
        ttl=get(block, b"Nats-TTL") or None,
        schedules=block if MARK in block else b"",
        increment=get(block, FIELD) or None,
    )


def _number(text: bytes | None) -> int | None:
    if not text:
        return None
    return int(text) if text.isdigit() and len(text) < 20 else NEVER
