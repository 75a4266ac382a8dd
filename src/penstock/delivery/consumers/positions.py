"""How far the consumers of a topic are, and what they have delivered: a page of them."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.deliveries import Deliveries
from penstock.delivery.consumers.push import PushConsumer
from penstock.formats.consumer_api import ConsumerReply
from penstock.model.resources import Topic


class Place(NamedTuple):
    """Where a consumer stands in the list of its topic."""

    partition: int
    name: str


async def positions(
    deliveries: Deliveries, topic: Topic, after: Place | None, most: int
) -> list[ConsumerReply]:
    """Consumers in order of partition and name, from behind a place on.

    Raises ApiError, MetadataUnavailable while they cannot be read.
    """
    found: list[ConsumerReply] = []
    for stream in await deliveries.streams_of(topic):
        consumers = await deliveries.of(stream)
        behind = (c for c in consumers or () if after is None or _place(c) > after)
        found += [await position(consumer) for consumer in islice(behind, most - len(found))]
        if len(found) == most:
            break
    return found


def _place(consumer: Consumer) -> Place:
    return Place(consumer.stream.partition, consumer.name)


async def position(consumer: Consumer) -> ConsumerReply:
    """The consumer at this moment; sequences are one more than offsets."""
    pending, ledger = await consumer.ahead(), consumer.ledger
    push = isinstance(consumer, PushConsumer)
    return ConsumerReply(
        consumer.name,
        consumer.stream.partition,
        "push" if push else "pull",
        consumer.stream.next_offset,
        ledger.stream_seq,
        consumer.settled_seq,
        pending,
        len(ledger.pending),
        ledger.consumer_seq,
        ledger.pending.redelivered,
        len(ledger.given_up()),
        0 if push else len(ledger.waiting),
        consumer.pause_remaining_ns > 0,
    )
