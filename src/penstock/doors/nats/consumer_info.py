"""What a consumer is like now, for those who ask."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.push import PushConsumer
from penstock.host.clock import Clock
from penstock.wire.jetstream.documents import ConsumerInfo, PriorityGroup, SequenceInfo
from penstock.wire.jetstream.times import ZERO_TIME, time_text_us


async def describe(consumer: Consumer, config: dict[str, Any], clock: Clock) -> ConsumerInfo:
    """All about a consumer; `config` is how its configuration is shown."""
    ledger, remaining = consumer.ledger, consumer.pause_remaining_ns
    push = isinstance(consumer, PushConsumer)
    return ConsumerInfo(
        consumer.stream.name,
        consumer.name,
        time_text_us(consumer.created_us),
        config,
        _place(ledger.consumer_seq, ledger.stream_seq, consumer.delivered_us),
        _place(ledger.floor_consumer_seq, ledger.floor_stream_seq, consumer.acked_us),
        len(ledger.pending),
        ledger.pending.redelivered,
        0 if push else len(ledger.waiting),
        await consumer.ahead(),
        push_bound=True if isinstance(consumer, PushConsumer) and consumer.bound else UNSET,
        paused=True if remaining else UNSET,
        pause_remaining=remaining or UNSET,
        ts=time_text_us(clock.now_us()),
        priority_groups=_groups(consumer) or UNSET,
    )


def _place(consumer_seq: int, stream_seq: int, active_us: int) -> SequenceInfo:
    active = time_text_us(active_us) if active_us else UNSET
    return SequenceInfo(consumer_seq, stream_seq, active)


def _groups(consumer: Consumer) -> list[PriorityGroup]:
    pin = consumer.ledger.pin.id
    since = time_text_us(consumer.pinned_us) if pin else ZERO_TIME
    return [PriorityGroup(name, pin or UNSET, since) for name in consumer.config.priority_groups]
