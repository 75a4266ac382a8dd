"""Shows the state of consumers: pending pull requests, pending acks, and progress."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.deliveries import Deliveries
from penstock.delivery.consumers.push import PushConsumer
from penstock.formats.api import ConsumerReply
from penstock.model.resources import Topic

SHOWN_MAX: Final = 100
"""The most requests and messages in one view; the oldest are shown."""


class WaitingPull(Struct):
    """A pending pull request; times are in nanoseconds."""

    inbox: str
    left: int
    """How many more messages it accepts."""
    age: int
    """Time since the request was received."""
    expires: int | None
    """Time until the request expires; null if it does not."""


class PendingAck(Struct):
    """A delivered message that is not settled."""

    seq: int
    consumer_seq: int
    deliveries: int
    due: int | None
    """Time until redelivery; null if the message is redelivered with the next request."""


class ConsumerView(Struct):
    """The state of a consumer at one moment."""

    stalled: str
    """Why pending messages are not delivered; empty if they are."""
    num_pending: int
    num_waiting: int
    waiting: list[WaitingPull]
    num_ack_pending: int
    ack_pending: list[PendingAck]


async def consumer_view(consumer: Consumer, now_ns: int) -> ConsumerView:
    """The state of a consumer now."""
    ahead = await consumer.ahead()
    ledger, pending = consumer.ledger, consumer.ledger.pending
    waiting = [
        WaitingPull(
            request.inbox.decode("utf-8", "replace"),
            request.left,
            now_ns - request.received_ns,
            None if request.expires_ns is None else request.expires_ns - now_ns,
        )
        for request in islice(ledger.waiting, SHOWN_MAX)
    ]
    unsettled = []
    for seq, consumer_seq in islice(pending.consumer_seqs.items(), SHOWN_MAX):
        due = pending.deadline(seq)
        left = None if due is None else due - now_ns
        unsettled.append(PendingAck(seq, consumer_seq, pending.count(seq), left))
    stalled = ledger.stall_reason(ahead, now_ns)
    return ConsumerView(stalled, ahead, len(ledger.waiting), waiting, len(pending), unsettled)


class ConsumerCursor(NamedTuple):
    """The sort key of a consumer in the list of its topic."""

    partition: int
    name: str


async def consumer_page(
    deliveries: Deliveries, topic: Topic, after: ConsumerCursor | None, most: int
) -> list[ConsumerReply]:
    """A page of a topic's consumers in order of partition and name, those after `after`.

    Raises ApiError, MetadataUnavailable while they cannot be read.
    """
    replies: list[ConsumerReply] = []
    for stream in await deliveries.streams_of(topic):
        consumers = await deliveries.of(stream)
        later = (c for c in consumers or () if after is None or _cursor(c) > after)
        replies += [await _progress(consumer) for consumer in islice(later, most - len(replies))]
        if len(replies) == most:
            break
    return replies


def _cursor(consumer: Consumer) -> ConsumerCursor:
    return ConsumerCursor(consumer.stream.partition.id, consumer.name)


async def _progress(consumer: Consumer) -> ConsumerReply:
    """The progress of a consumer now; sequences are one more than offsets."""
    pending, ledger = await consumer.ahead(), consumer.ledger
    push = isinstance(consumer, PushConsumer)
    return ConsumerReply(
        consumer.name,
        consumer.stream.partition.id,
        "push" if push else "pull",
        consumer.stream.next_offset,
        ledger.stream_seq,
        consumer.settled_seq,
        pending,
        len(ledger.pending),
        ledger.consumer_seq,
        ledger.pending.redelivered,
        len(ledger.exhausted()),
        0 if push else len(ledger.waiting),
        consumer.pause_remaining_ns > 0,
    )
