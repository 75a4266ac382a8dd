"""Messages that tell who they are, in every byte, so that a damaged one is seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.powercut.facts import Id


def subject(id_: Id) -> bytes:
    return b"load.%d" % id_[0]


def payload(id_: Id, size_bytes: int) -> bytes:
    """The message of about this size; the same for the same arguments."""
    lead = b"%d-%d-%d-" % (*id_, size_bytes)
    pattern = hashlib.blake2b(lead).digest()
    repeats = -(-size_bytes // len(pattern))
    return lead + (pattern * repeats)[:size_bytes]


def identify(data: bytes) -> Id | None:
    """Whose message this is; None when a single byte is not as it was sent."""
    try:
        publisher, number, size_bytes = map(int, data.split(b"-", 3)[:3])
    except ValueError:
        return None
    id_ = (publisher, number)
    return id_ if payload(id_, size_bytes) == data else None


def identify_all(
    subjects: Sequence[bytes], payloads: Sequence[bytes]
) -> tuple[list[Id], list[str]]:
    """Whose messages these are, and what is wrong with their bytes."""
    ids: list[Id] = []
    troubles = []
    for name, data in zip(subjects, payloads, strict=True):
        id_ = identify(data)
        if id_ is None or name != subject(id_):
            troubles.append(f"a message is not as it was sent: {name!r} {data[:80]!r}")
        ids.append(id_ or (-1, -1))
    return ids, troubles
