"""Fast batches on the wire: the fields in a message's reply subject, and the replies.

<prefix>.<batch>.<flow>.<ok or fail>.<sequence>.<operation>.$FI
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock.wire.jetstream.errors import ApiError

SUFFIX: Final = b".$FI"
FLOW_USUAL: Final = 10
FLOW_MAX: Final = 65_535
SEQUENCE_MAX: Final = (1 << 64) - 2
_GAPS: Final = {b"ok": True, b"fail": False}


class Operation(IntEnum):
    """The effect of a message on its batch."""

    START = 0
    APPEND = 1
    COMMIT = 2
    """The last message."""
    END = 3
    """No message; the previous one was the last."""
    PING = 4


_OPERATIONS: Final = {b"%d" % operation: operation for operation in Operation}


class FastMessage(NamedTuple):
    """The fields of a reply subject."""

    batch: bytes
    flow: int
    """The most messages that share an ack."""
    gaps: bool
    """Whether messages may be missing."""
    sequence: int
    operation: Operation

    @property
    def commits(self) -> bool:
        return self.operation in (Operation.COMMIT, Operation.END)


def parse(reply: bytes) -> FastMessage | None:
    """Parse a reply subject that has the suffix of a fast batch; None if it is malformed."""
    words = reply.removesuffix(SUFFIX).rsplit(b".", 5)
    if len(words) < 6:
        return None
    _, batch, flow, gaps, number, code = words
    operation, allowed = _OPERATIONS.get(code), _GAPS.get(gaps)
    sequence = int(number) if number.isdigit() and len(number) <= 20 else 0
    if operation is None or allowed is None or not 0 < sequence <= SEQUENCE_MAX:
        return None
    if not _is_valid_start(operation, sequence):
        return None
    return FastMessage(batch, _flow(flow), allowed, sequence, operation)


def ack(sequence: int, messages: int) -> bytes:
    """Messages up to `sequence` are stored; `messages` more may follow before the next ack."""
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (sequence, messages)


def gap(expected: int, sequence: int) -> bytes:
    """Messages before `sequence` are missing."""
    return b'{"type":"gap","last_seq":%d,"seq":%d}' % (expected, sequence)


def failure(sequence: int, error: ApiError) -> bytes:
    """A message was not stored."""
    return msgspec.json.encode({"type": "err", "seq": sequence, "error": error.document()})


def _is_valid_start(operation: Operation, sequence: int) -> bool:
    if sequence == 1:
        return operation not in (Operation.APPEND, Operation.END)
    return operation is not Operation.START


def _flow(text: bytes) -> int:
    requested = int(text[:9]) if text.isdigit() else 0
    return min(requested, FLOW_MAX) or FLOW_USUAL
