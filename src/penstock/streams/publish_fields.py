"""The header fields of a publish that have a meaning for the stream, and their validation."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock.wire.jetstream import errors, sourced
from penstock.wire.jetstream.counter_values import FIELD, increment_of
from penstock.wire.jetstream.stream_config import StreamConfig
from penstock.wire.jetstream.times import parse_ttl

SCHEDULE_PREFIX: Final = b"Nats-Schedul"
"""Common prefix of the header fields of schedules."""
RESERVED_PREFIX: Final = b"Nats-"
"""Common prefix of all header fields with a meaning."""
NEVER: Final = -1
"""A sequence that no message has; an unparsable number becomes this one, which never matches."""
_RESERVED_FIELD: Final = re.compile(rb"\r\n(Nats-[^\r\n: \t]*)[ \t]*:([^\r\n]*)")


class PublishFields(msgspec.Struct, frozen=True, gc=False):
    """What one publish requests; None or empty where it requests nothing."""

    message_id: bytes = b""
    stream: bytes | None = None
    """The stream that the publisher expects to store the message."""
    last_sequence: int | None = None
    """The expected last sequence of the stream."""
    last_subject_sequence: int | None = None
    """The expected last sequence of a subject."""
    subject: bytes = b""
    """The subject whose last sequence is expected, if not the message's own."""
    last_message_id: bytes | None = None
    """The expected id of the stream's last message."""
    rollup: bytes | None = None
    ttl: bytes | None = None
    schedule_block: bytes = b""
    """The header block, if it has fields of schedules."""
    increment: bytes | None = None
    """The increment of the subject's counter."""
    source: bytes | None = None
    """The origin of a copied message: only a source may set this field."""

    def check_allowed(self, config: StreamConfig) -> None:
        """Raise ApiError if another stream is expected, or the stream does not support a
        request.
        """
        if self.stream is not None and self.stream != config.name.encode():
            raise errors.EXPECTED_STREAM.error()
        if self.ttl is not None:
            if not config.allow_msg_ttl:
                raise errors.TTL_DISABLED.error()
            parse_ttl(self.ttl)
        if self.subject and self.last_subject_sequence is None:
            raise errors.EXPECTED_SUBJECT_SEQUENCE_MISSING.error()
        if self.source is not None:
            raise errors.SOURCE_HEADER_REFUSED.error()

    def check_increment(self, config: StreamConfig, payload: bytes) -> Decimal | None:
        """The increment, if there is one; raises ApiError if it is invalid."""
        if self.increment is None:
            return None
        number = increment_of(self.increment)
        if not config.allow_msg_counter:
            raise errors.COUNTERS_DISABLED.error()
        if payload:
            raise errors.INCREMENT_WITH_PAYLOAD.error()
        expectations = (self.stream, self.last_sequence, self.last_subject_sequence)
        others = (*expectations, self.last_message_id, self.rollup)
        if self.subject or any(value is not None for value in others):
            raise errors.INCREMENT_INVALID.error()
        return number

    def check_rollup(self, config: StreamConfig) -> None:
        """Raise ApiError if the message must not replace others."""
        if self.rollup is not None:
            if not config.allow_rollup_hdrs or config.deny_purge:
                raise errors.ROLLUP_FAILED.error("rollup not permitted")
            if self.rollup not in (b"sub", b"all"):
                text = self.rollup.decode(errors="replace")
                raise errors.ROLLUP_FAILED.error(f'rollup value invalid: "{text}"')


NO_FIELDS: Final = PublishFields()


_ATTRIBUTES: Final = {
    b"Nats-Msg-Id": "message_id",
    b"Nats-Expected-Stream": "stream",
    b"Nats-Expected-Last-Sequence": "last_sequence",
    b"Nats-Expected-Last-Subject-Sequence": "last_subject_sequence",
    b"Nats-Expected-Last-Subject-Sequence-Subject": "subject",
    b"Nats-Expected-Last-Msg-Id": "last_message_id",
    b"Nats-Rollup": "rollup",
    b"Nats-TTL": "ttl",
    FIELD: "increment",
    sourced.FIELD: "source",
}
_NUMBERS: Final = frozenset({"last_sequence", "last_subject_sequence"})


@lru_cache(maxsize=128)
def publish_fields(block: bytes) -> PublishFields:
    """Parse a header block; the first value of a repeated field counts."""
    values: dict[str, Any] = {}
    for name, value in reversed(_RESERVED_FIELD.findall(block)):
        if (attribute := _ATTRIBUTES.get(name)) is None:
            continue
        text = value.strip()
        if text:
            values[attribute] = _number(text) if attribute in _NUMBERS else text
        else:
            values.pop(attribute, None)
    if SCHEDULE_PREFIX in block:
        values["schedule_block"] = block
    return PublishFields(**values)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else NEVER
