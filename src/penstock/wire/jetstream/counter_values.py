"""Values of counters: integers of any size, in header fields and payloads."""

from __future__ import annotations

import re
from decimal import Context, Decimal, Inexact
from typing import Final

import msgspec

from penstock.wire.jetstream import errors

FIELD: Final = b"Nats-Incr"
PAYLOAD: Final = b'{"val":"%b"}'
ZERO: Final = Decimal(0)
_NUMBER: Final = re.compile(rb"[+-]?[0-9]+")
_EXACT: Final = Context(prec=10_000_000, traps=[Inexact])
"""Decimals rather than integers: text of any length becomes one in linear time, and back."""


class _Value(msgspec.Struct):
    val: str = ""


def increment_of(text: bytes) -> Decimal:
    """The number that a header field adds; raises ApiError."""
    if not _NUMBER.fullmatch(text):
        raise errors.INCREMENT_INVALID.error()
    return Decimal(text.decode())


def value_of(payload: bytes) -> Decimal:
    """The value in a counter's last message; raises ApiError."""
    try:
        text = msgspec.json.decode(payload, type=_Value).val.encode()
    except (ValueError, RecursionError):
        text = b""
    if not _NUMBER.fullmatch(text):
        raise errors.COUNTER_BROKEN.error()
    return Decimal(text.decode())


def add_up(sums: dict[bytes, Decimal], subject: bytes, number: Decimal) -> Decimal:
    """Add a number to the sum of a subject; returns the new sum."""
    total = sums[subject] = _EXACT.add(sums[subject], number)
    return total
