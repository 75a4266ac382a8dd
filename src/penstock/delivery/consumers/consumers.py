"""The consumers of one stream: creates, updates, deletes and restores them."""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Awaitable, Iterable, Iterator
from typing import Final, TypeVar

import structlog

from penstock.delivery.consumers.advisories import AckSample, Advisories
from penstock.delivery.consumers.consumer import Consumer, ConsumerObserver
from penstock.delivery.consumers.consumer_rules import filters_of
from penstock.delivery.consumers.dead_letters import DeadLetterCopies
from penstock.delivery.consumers.feed import StartPosition, create_feed, start_position
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.push import PushConsumer
from penstock.delivery.consumers.records import ConsumerRecord, ConsumerRecords
from penstock.delivery.consumers.settling import RestoredState
from penstock.delivery.consumers.stream_settlements import StreamSettlements
from penstock.host.notifier import Cancel, cancel_all
from penstock.host.tasks import Tasks
from penstock.model.errors import PenstockError
from penstock.streams import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.consumer_rules import check_update, check_workqueue_place

NAME_LETTERS: Final = string.ascii_letters + string.digits
NAME_LENGTH: Final = 8

_T = TypeVar("_T")

_events = structlog.get_logger(__name__)


class Consumers:
    """All consumers of one stream: creates, updates, deletes and restores them."""

    def __init__(self, host: DeliveryHost, stream: Stream) -> None:
        self.stream, self._host = stream, host
        self.advisories = Advisories(host.outlet, host.clock, stream.name)
        self._consumers: dict[str, Consumer] = {}
        self._scope = "" if stream.name == stream.topic.name.topic else f"{stream.partition.id}/"
        """The prefix of a partition's consumer names in records that the whole topic shares."""
        self._records = ConsumerRecords(host, stream.topic.name, self._scope)
        self.settlements = StreamSettlements(host, stream, self._scope, self._consumers)
        self._dead_letters = DeadLetterCopies(host)
        self._observer = ConsumerObserver(
            changed=self.settlements.changed,
            settled=self.settlements.settled,
            exhausted=self._exhausted,
            sampled=self._sampled,
            inactive=self._inactive,
        )
        self._cancel_interest: Cancel = cancel_all()
        self._changes = asyncio.Lock()
        """Held by every creation, update and deletion."""
        self._config = stream.config
        self._first_offset = stream.first_offset
        self._tasks = Tasks()
        self._stop_observing = stream.changed.add(self._stream_changed)
        self._apply_config()

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        """Iterate over the consumers in order of name."""
        return iter([self._consumers[name] for name in sorted(self._consumers)])

    def get(self, name: str) -> Consumer | None:
        return self._consumers.get(name)

    # -- life cycle

    async def load(self) -> None:
        """Restore the recorded consumers; may be called again after it failed."""
        states = await self.settlements.read()
        for record, config in await self._records.all():
            if record.name not in self._consumers:
                await self._restore(record, config, states.get((record.name, record.created_us)))
        self.settlements.release_files()
        for consumer in self:
            self._dead_letters.store(consumer, consumer.ledger.exhausted())
        await self.settlements.delete_unneeded()

    async def create(self, config: ConsumerConfig, action: str) -> Consumer:
        """Create or update a consumer, as `action` allows. Raises ApiError."""
        async with self._changes:
            existing = self._consumers.get(config.name)
            if existing is not None:
                return await self._update(existing, config, action)
            if action == "update":
                raise errors.CONSUMER_DOES_NOT_EXIST.error()
            if 0 < self.stream.config.max_consumers <= len(self._consumers):
                raise errors.CONSUMERS_MAX.error()
            if self.stream.config.retention == "workqueue":
                check_workqueue_place(config, [other.config for other in self])
            return await _or_refused(self._create(config))

    async def delete(self, name: str) -> bool:
        """Delete a consumer; returns whether it existed."""
        async with self._changes:
            consumer = self._consumers.get(name)
            if consumer is None:
                return False
            if not consumer.config.mem_storage:
                await _or_refused(self._records.remove(name))
            del self._consumers[name]
            consumer.close(409, "Consumer Deleted")
            self.settlements.forget(consumer)
            if not consumer.config.mem_storage:
                await _or_refused(self.settlements.remove(consumer))
            self.advisories.deleted(name)
            return True

    async def reset(self, consumer: Consumer, seq: int) -> int:
        """Restart a consumer at a sequence, or at its ack floor if `seq` is 0.

        Returns the sequence; the reset is durable then. Raises ApiError, also if the sequence is
        before the start that the configuration names.
        """
        start = seq - 1 if seq else consumer.ledger.floor_stream_seq
        if seq and consumer.config.deliver_policy in ("by_start_sequence", "by_start_time"):
            first = (await start_position(self.stream, consumer.config)).start
            if start < first:
                raise errors.RESET_INVALID.error(f"sequence {seq} is before {first + 1}")
        feed = await create_feed(self.stream, consumer.config, StartPosition(start))
        if not consumer.config.mem_storage:
            await _or_refused(self._record_restart(consumer, start))
        consumer.reset(feed)
        await self.settlements.durable(consumer)
        return start + 1

    async def pause(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Pause or resume a consumer, as the configuration says."""
        async with self._changes:
            await self._record(consumer, config)
            consumer.update(config, consumer.feed)

    def stream_closed(self) -> None:
        """Close the consumers of a stream that is not open here any more."""
        self._end(409, "Consumer Deleted")
        self._host.progress.lost(self.stream.topic.name)

    def leave(self) -> None:
        """End all pull requests with a status, because the broker stops."""
        self._end(409, "Server Shutdown", counts=True)

    async def close(self) -> None:
        """Write the settlements and close the consumers."""
        self.leave()
        await self._tasks.drain()
        await self._dead_letters.drain()
        await self.settlements.close()

    def _end(self, code: int, text: str, *, counts: bool = False) -> None:
        self._stop_observing()
        for consumer in self._consumers.values():
            consumer.close(code, text, counts=counts)

    # -- creation and update

    async def _create(self, config: ConsumerConfig) -> Consumer:
        generated = "".join(secrets.choice(NAME_LETTERS) for _ in range(NAME_LENGTH))
        name = config.name or generated
        position = await start_position(self.stream, config)
        created_us = self._host.clock.now_us()
        if not config.mem_storage:
            await self._records.create(name, config, created_us, *position)
        consumer = await self._add(name, config, created_us, position)
        self.settlements.follow(consumer, position.start)
        self.advisories.created(consumer.name)
        # Start in the next turn, so that the creator receives the reply before the first message.
        asyncio.get_running_loop().call_soon(consumer.begin)
        return consumer

    async def _add(
        self, name: str, config: ConsumerConfig, created_us: int, position: StartPosition
    ) -> Consumer:
        feed = await create_feed(self.stream, config, position)
        kind = PushConsumer if config.push else Consumer
        consumer = kind(
            self._host, self.stream, name, config, created_us, feed, self._observer, self._scope
        )
        self._consumers[name] = consumer
        return consumer

    async def _update(self, existing: Consumer, config: ConsumerConfig, action: str) -> Consumer:
        if existing.config == config:
            return existing
        if action == "create":
            raise errors.CONSUMER_EXISTS.error()
        check_update(existing.config, config)
        if self.stream.config.retention == "workqueue":
            others = [other.config for other in self if other is not existing]
            check_workqueue_place(config, others)
        await self._record(existing, config)
        feed = existing.feed
        if config.filters != existing.config.filters:
            feed = await create_feed(self.stream, config, StartPosition(feed.next_offset))
        existing.update(config, feed)
        return existing

    async def _restore(
        self, record: ConsumerRecord, config: ConsumerConfig, state: RestoredState | None
    ) -> None:
        start = await self.settlements.restore(record.name, state, record.start)
        position = StartPosition(start, record.picked_stop)
        consumer = await self._add(record.name, config, record.created_us, position)
        if state is not None:
            state.settled.restore(consumer.ledger, self._host.clock.monotonic_ns())
            self.settlements.restored(consumer, state)
        consumer.begin()

    async def _record(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Record another configuration of a consumer; raises ApiError."""
        if config.mem_storage:
            return
        start, stop = consumer.feed.next_offset, consumer.feed.picked_stop
        await _or_refused(
            self._records.put(consumer.name, config, consumer.created_us, start, stop)
        )

    async def _record_restart(self, consumer: Consumer, start: int) -> None:
        """Record a new start position, which may be before the old one."""
        await self.settlements.remove(consumer)
        await self._records.put(consumer.name, consumer.config, consumer.created_us, start, 0)
        await self.settlements.save_floor(consumer, start)

    # -- events of consumers

    def _exhausted(self, consumer: Consumer, seqs: Iterable[int]) -> None:
        exhausted = list(seqs)
        for seq in exhausted:
            self.advisories.max_deliveries(consumer.name, seq, consumer.ledger.pending.count(seq))
        self._dead_letters.store(consumer, exhausted)

    def _sampled(self, consumer: Consumer, samples: Iterable[AckSample]) -> None:
        for sample in samples:
            self.advisories.acked(consumer.name, sample)

    def _inactive(self, consumer: Consumer) -> None:
        self._tasks.start(self._delete_inactive(consumer))

    async def _delete_inactive(self, consumer: Consumer) -> None:
        if self._consumers.get(consumer.name) is consumer:
            try:
                await self.delete(consumer.name)
            except PenstockError as error:
                _events.warning("consumer_not_removed", consumer=consumer.name, reason=str(error))

    # -- events of the stream

    def _stream_changed(self) -> None:
        if self.stream.config is not self._config:
            self._apply_config()
        self.settlements.committed()
        consumers, first_offset = list(self._consumers.values()), self.stream.first_offset
        if first_offset != self._first_offset:
            self._first_offset = first_offset
            for consumer in consumers:
                consumer.settle_deleted()
        for consumer in consumers:
            consumer.deliver()
        self.settlements.write_if_rotated()

    def _apply_config(self) -> None:
        """Apply the subjects and the retention of a changed stream configuration."""
        self._config = self.stream.config
        self._cancel_interest()
        if self._config.retention == "interest":
            self._cancel_interest = self.stream.require_interest(self._has_interest)
        for consumer in self._consumers.values():
            consumer.feed.restrict(filters_of(consumer.config))

    def _has_interest(self, subject: bytes) -> bool:
        """Whether a consumer or a source of another stream needs messages of a subject."""
        return any(holder.wants(subject) for holder in self.settlements.holders())


async def _or_refused(work: Awaitable[_T]) -> _T:
    """Await `work`; raises any PenstockError as the ApiError of consumer creation."""
    try:
        return await work
    except errors.ApiError:
        raise
    except PenstockError as error:
        raise errors.CONSUMER_CREATE.error(str(error)) from error
