"""Settlements: the durable form of a consumer's ledger, complete or as changes.

The body of a settle frame is a MessagePack array: `"consumer"`, version 1, then settlements of any
number of consumers. A consumer is restored from its last complete settlement and the later changes,
in order. Messages whose delivery was not written are delivered again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import msgspec
from pyroaring import BitMap64

from penstock.ledger.consumer import ConsumerLedger
from penstock.model.errors import FormatError, VersionUnknown

KIND: Final = "consumer"
VERSION: Final = 1
FORGOTTEN: Final = -1
"""In place of a number of deliveries: the number was removed."""


class Settlement(msgspec.Struct, array_like=True, frozen=True):
    """The state of one consumer, or the changes since its previous settlement."""

    consumer: str
    """The name of the consumer."""
    created_us: int
    """When the consumer was created; distinguishes it from an earlier one of its name."""
    whole: bool
    """Whether the settlement is complete, so that earlier ones are not needed."""
    consumer_seq: int
    """Consumer sequence of the last delivery."""
    stream_seq: int
    """Stream sequence of the last message delivered."""
    floor_consumer_seq: int
    floor_stream_seq: int
    """The ack floor that clients see."""
    settled_to: int
    """No message up to this stream sequence is in flight."""
    seqs: bytes
    """Stream sequences delivered since the previous settlement and in flight, int64, ascending."""
    consumer_seqs: bytes
    """Consumer sequence of the first delivery of each of `seqs`, int64."""
    settled: bytes
    """Roaring bitmap (64 bit, portable form) of settled stream sequences above `settled_to`."""
    deliveries: dict[int, int]
    """Number of deliveries by stream sequence, if it is not 1; -1 removes the number."""


@dataclass(slots=True)
class SettledState:
    """The state that results from a sequence of settlements."""

    consumer_seq: int = 0
    stream_seq: int = 0
    floor_consumer_seq: int = 0
    floor_stream_seq: int = 0
    pending: dict[int, int] = field(default_factory=dict)
    deliveries: dict[int, int] = field(default_factory=dict)

    def apply(self, change: Settlement) -> None:
        if change.whole:
            self.pending, self.deliveries = {}, {}
        self.consumer_seq, self.stream_seq = change.consumer_seq, change.stream_seq
        self.floor_consumer_seq = change.floor_consumer_seq
        self.floor_stream_seq = change.floor_stream_seq
        for seq in list(takewhile(lambda item: item <= change.settled_to, self.pending)):
            del self.pending[seq]
        self.pending.update(zip(_numbers(change.seqs), _numbers(change.consumer_seqs), strict=True))
        for seq in _bitmap(change.settled):
            self.pending.pop(seq, None)
        for seq, count in change.deliveries.items():
            if count == FORGOTTEN:
                self.deliveries.pop(seq, None)
            else:
                self.deliveries[seq] = count

    def restore(self, ledger: ConsumerLedger, now_ns: int) -> None:
        """Restore a ledger from this state; all deadlines start now."""
        ledger.consumer_seq, ledger.stream_seq = self.consumer_seq, self.stream_seq
        ledger.floor_consumer_seq = self.floor_consumer_seq
        ledger.floor_stream_seq = self.floor_stream_seq
        ledger.pending.restore(dict(self.pending), dict(self.deliveries), now_ns)


class Journal:
    """Records what changed in one ledger since the last settlement."""

    def __init__(self, ledger: ConsumerLedger, consumer: str, created_us: int) -> None:
        self._ledger = ledger
        self._consumer = consumer
        self._created_us = created_us
        self._written: tuple[int, ...] | None = None
        """Counters as last written; None if the next settlement must be complete."""

    def require_whole(self) -> None:
        """Make the next settlement complete, because what is written is uncertain or too old."""
        self._written = None

    def resume(self) -> None:
        """Write changes only, because the ledger is as its settlements restored it."""
        self._written = self._counters()

    def discard(self) -> None:
        """Forget the changes; they are not written."""
        self._ledger.settled.clear()
        self._ledger.pending.recounted.clear()

    def take(self) -> Settlement | None:
        """The changes since the last settlement; None if there are none."""
        ledger, pending = self._ledger, self._ledger.pending
        counters, written = self._counters(), self._written
        if counters == written and not ledger.settled and not pending.recounted:
            return None
        whole = written is None
        since = 0 if written is None else written[1]
        seqs = list(takewhile(lambda seq: seq > since, reversed(pending.consumer_seqs)))[::-1]
        settled_to = counters[4]
        settled = [] if whole else [seq for seq in ledger.settled if seq > settled_to]
        counted = pending.deliveries.keys() if whole else pending.recounted
        settlement = Settlement(
            self._consumer,
            self._created_us,
            whole,
            *counters,
            _bytes(seqs),
            _bytes([pending.consumer_seqs[seq] for seq in seqs]),
            BitMap64(settled).serialize() if settled else b"",
            {seq: pending.deliveries.get(seq, FORGOTTEN) for seq in sorted(counted)},
        )
        self._written = counters
        self.discard()
        return settlement

    def _counters(self) -> tuple[int, int, int, int, int]:
        ledger = self._ledger
        return (
            ledger.consumer_seq,
            ledger.stream_seq,
            ledger.floor_consumer_seq,
            ledger.floor_stream_seq,
            ledger.settled_stream_seq,
        )


def encode(settlements: Sequence[Settlement]) -> bytes:
    """The body of a settle frame."""
    return msgspec.msgpack.encode([KIND, VERSION, *settlements])


def decode(version: int, entries: list[Any]) -> list[Settlement]:
    """Decode the entries that follow kind and version; raises FormatError, VersionUnknown."""
    if version != VERSION:
        raise VersionUnknown("a settle frame", version, VERSION)
    try:
        return msgspec.convert(entries, type=list[Settlement])
    except msgspec.MsgspecError as error:
        raise FormatError(f"a settle frame cannot be read: {error}") from error


def _bytes(numbers: Iterable[int]) -> bytes:
    return array("q", numbers).tobytes()


def _numbers(data: bytes) -> array[int]:
    numbers = array("q")
    numbers.frombytes(data)
    return numbers


def _bitmap(data: bytes) -> Iterable[int]:
    return BitMap64.deserialize(data) if data else ()
