"""What a NATS client sends, as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.nats.errors import NatsError
from penstock.wire import headers as header_blocks


class Inbox(NamedTuple):
    """A subject of the client's own and the id of its subscription."""

    subject: bytes
    sid: bytes


def subscribe(inbox: Inbox) -> bytes:
    return b"SUB %b %b\r\n" % inbox


def unsubscribe(sid: bytes, most: int | None = None) -> bytes:
    """At once, or after so many messages since the beginning."""
    return b"UNSUB %b\r\n" % sid if most is None else b"UNSUB %b %d\r\n" % (sid, most)


def publish(subject: bytes, reply: bytes, payload: bytes, headers: bytes = b"") -> bytes:
    """`b""` stands for no reply and no headers."""
    route = b"%b %b" % (subject, reply) if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (route, len(payload), payload)
    sizes = b"%d %d" % (len(headers), len(headers) + len(payload))
    return b"HPUB %b %b\r\n%b%b\r\n" % (route, sizes, headers, payload)


def subject_bytes(subject: str) -> bytes:
    """Raises NatsError for what would break the line it is sent in."""
    if not subject or any(character.isspace() for character in subject):
        raise NatsError(f"a subject is a word without white space, not {subject!r}")
    return subject.encode()


def header_block(fields: Mapping[str, str] | None) -> bytes:
    """Raises NatsError for what would break the block."""
    if not fields:
        return b""
    for name, value in fields.items():
        if not name or ":" in name or any(end in name + value for end in "\r\n"):
            raise NatsError(f"a header is a name and one line, not {name!r}: {value!r}")
    pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
    return header_blocks.with_fields(b"", pairs)
