"""Numbers of counters: whole, of any size, as header fields and payloads have them."""

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
    """What a header field adds; raises ApiError."""
    if not _NUMBER.fullmatch(text):
        raise errors.INCREMENT_INVALID.error()
    return Decimal(text.decode())


def value_of(payload: bytes) -> Decimal:
    """What a counter's last message says; raises ApiError."""
    try:
        told = msgspec.json.decode(payload, type=_Value).val.encode()
    except (ValueError, RecursionError):
        told = b""
    if not _NUMBER.fullmatch(told):
        raise errors.COUNTER_BROKEN.error()
    return Decimal(told.decode())


def add_up(sums: dict[bytes, Decimal], subject: bytes, number: Decimal) -> Decimal:
    """The sum of a subject with one more number, which the next one is added to."""
    total = sums[subject] = _EXACT.add(sums[subject], number)
    return total
