"""Copies messages that exceeded their deliveries to a dead-letter subject.

The consumer's configuration names the subject; headers of the copy name its origin. Once the copy
is durable, the message counts as settled. After a crash in between, a message may be stored twice
with the same `Nats-Msg-Id`.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.consumer_rules import DEAD_LETTER_SUBJECT
from penstock.delivery.consumers.host import DeliveryHost
from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError
from penstock.model.run import Run
from penstock.streams import Rows
from penstock.wire import headers

_events = structlog.get_logger(__name__)


class DeadLetterCopies:
    """Stores the dead letters of one stream's consumers."""

    def __init__(self, host: DeliveryHost) -> None:
        self._host = host
        self._tasks = Tasks()

    def store(self, consumer: Consumer, seqs: list[int]) -> None:
        """Store copies of messages in the background, if the consumer names a subject."""
        subject = consumer.config.metadata.get(DEAD_LETTER_SUBJECT)
        if subject and seqs:
            self._tasks.start(self._store(consumer, subject.encode(), sorted(seqs)))

    async def drain(self) -> None:
        """Wait until all copies are stored or have failed."""
        await self._tasks.drain()

    async def _store(self, consumer: Consumer, subject: bytes, seqs: list[int]) -> None:
        if await self._copy(consumer, subject, seqs):
            consumer.settle_dead_letters(seqs)

    async def _copy(self, consumer: Consumer, subject: bytes, seqs: Sequence[int]) -> bool:
        """Store copies; returns whether they are durable. Deleted messages are skipped."""
        target = await self._host.find_storing(subject)
        name = f"{consumer.stream.name}.{consumer.name}"
        if target is None or target is consumer.stream:
            reason = "no other stream stores the subject"
            _events.error("dead_letters_not_stored", consumer=name, subject=subject, reason=reason)
            return False
        try:
            rows = await consumer.stream.read_offsets([seq - 1 for seq in seqs])
            if rows.count:
                run = Run(subject, rows.payloads, _blocks(consumer, rows), target.partition.id)
                await target.partition.publish(run)
        except PenstockError as error:
            _events.error("dead_letters_not_stored", consumer=name, reason=str(error))
            return False
        return True


def _blocks(consumer: Consumer, rows: Rows) -> list[bytes]:
    """The header blocks of dead letters: those of the messages, with fields for their origin."""
    stream, name = consumer.stream.name.encode(), consumer.name.encode()
    blocks = [b""] * rows.count if rows.headers is None else rows.headers
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
        for block, offset, subject in zip(blocks, rows.offsets, rows.subjects, strict=True)
    ]
