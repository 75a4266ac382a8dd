"""Messages that were given up, stored once more where somebody will look at them.

A copy goes to the subject that the consumer's configuration names, with headers that tell where it
came from. Once it is durable the message counts as settled. A crash in between may store it twice,
under the same `Nats-Msg-Id`.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.host import DeliveryHost
from penstock.model.errors import PenstockError
from penstock.model.run import Run
from penstock.topics.streams.rows import Rows
from penstock.wire import headers

_events = structlog.get_logger(__name__)


async def dead_letter(
    host: DeliveryHost, consumer: Consumer, subject: bytes, seqs: Sequence[int]
) -> bool:
    """Store copies of these; whether they are durable. What is gone by now is passed over."""
    target, name = host.taker(subject), f"{consumer.stream.name}.{consumer.name}"
    if target is None or target is consumer.stream:
        reason = "no other stream takes the subject"
        _events.error("dead_letters_not_stored", consumer=name, subject=subject, reason=reason)
        return False
    try:
        rows = await consumer.stream.read_offsets([seq - 1 for seq in seqs])
        if rows.count:
            run = Run(subject, rows.payloads, _blocks(consumer, rows), target.partition)
            await target.log.publish(run)
    except PenstockError as error:
        _events.error("dead_letters_not_stored", consumer=name, reason=str(error))
        return False
    return True


def _blocks(consumer: Consumer, rows: Rows) -> list[bytes]:
    stream, name = consumer.stream.name.encode(), consumer.name.encode()
    own = [b""] * rows.count if rows.headers is None else rows.headers
    return [
        headers.with_fields(
            block,
            [
                (b"Nats-Msg-Id", b"%b.%b.%d" % (stream, name, offset + 1)),
                (b"Penstock-Dead-Letter", b"max_deliver"),
                (b"Penstock-Stream", stream),
                (b"Penstock-Consumer", name),
                (b"Penstock-Subject", subject),
                (b"Penstock-Sequence", b"%d" % (offset + 1)),
                (b"Penstock-Deliveries", b"%d" % consumer.ledger.pending.count(offset + 1)),
            ],
        )
        for block, offset, subject in zip(own, rows.offsets, rows.subjects, strict=True)
    ]
