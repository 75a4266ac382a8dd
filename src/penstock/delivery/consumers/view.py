"""A look into a consumer: who waits for messages, which are owed an ack, and what holds it up."""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec import Struct

from penstock.delivery.consumers.consumer import Consumer

SHOWN_MAX: Final = 100
"""Requests and messages in one view, the oldest."""


class Waiting(Struct):
    """A pull that waits."""

    inbox: str
    left: int
    """Messages it may still get."""
    age: int
    """Nanoseconds since it came, as all times here."""
    expires: int | None
    """Until it ends; null: never by itself."""


class Owed(Struct):
    """A message that was delivered and not settled."""

    seq: int
    consumer_seq: int
    deliveries: int
    due: int | None
    """Until it is delivered again; null: as soon as somebody takes it."""


class ConsumerView(Struct):
    """What a consumer is doing now."""

    stalled: str
    """Why nothing goes out although there is something to deliver; empty when it does."""
    num_pending: int
    num_waiting: int
    waiting: list[Waiting]
    num_ack_pending: int
    ack_pending: list[Owed]


async def view(consumer: Consumer, now_ns: int) -> ConsumerView:
    """The consumer at this moment."""
    ahead = await consumer.ahead()
    ledger, pending = consumer.ledger, consumer.ledger.pending
    waiting = [
        Waiting(
            request.inbox.decode("utf-8", "replace"),
            request.left,
            now_ns - request.asked_ns,
            None if request.expires_ns is None else request.expires_ns - now_ns,
        )
        for request in islice(ledger.waiting, SHOWN_MAX)
    ]
    owed = []
    for seq, consumer_seq in islice(pending.consumer_seqs.items(), SHOWN_MAX):
        due = pending.deadline(seq)
        left = None if due is None else due - now_ns
        owed.append(Owed(seq, consumer_seq, pending.count(seq), left))
    stalled = ledger.stalled(ahead, now_ns)
    return ConsumerView(stalled, ahead, len(ledger.waiting), waiting, len(pending), owed)
