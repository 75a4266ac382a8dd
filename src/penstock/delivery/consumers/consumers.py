"""The consumers of one stream: creates, updates, deletes and restores them."""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

import structlog

from penstock.delivery.consumers.advisories import AckSample, Advisories
from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.consumer_rules import DEAD_LETTER_SUBJECT, filters_of
from penstock.delivery.consumers.dead_letters import dead_letter
from penstock.delivery.consumers.feed import StartPosition, beginning, create_feed
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.push import PushConsumer
from penstock.delivery.consumers.records import ConsumerRecord, ConsumerRecords
from penstock.delivery.consumers.settling import (
    RestoredState,
    SettlementWriter,
    UnreadFiles,
    read_settled,
)
from penstock.delivery.consumers.unneeded_messages import UnneededMessages
from penstock.host.notifier import Cancel, cancel_all
from penstock.host.tasks import Tasks
from penstock.ledger.settlement import Journal
from penstock.metadata import SubscriptionId
from penstock.model.errors import PenstockError
from penstock.model.units import Offset
from penstock.streams import Holder, Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.consumer_rules import check_update, check_workqueue_place

NAME_LETTERS: Final = string.ascii_letters + string.digits
NAME_LENGTH: Final = 8

_T = TypeVar("_T")

_events = structlog.get_logger(__name__)


class Consumers:
    """All consumers of one stream; handles their events."""

    def __init__(self, host: DeliveryHost, stream: Stream) -> None:
        self.stream, self._host = stream, host
        self.advisories = Advisories(host.outlet, host.clock, stream.name)
        self._consumers: dict[str, Consumer] = {}
        self._scope = "" if stream.name == stream.topic.name.topic else f"{stream.partition.id}/"
        """The prefix of a partition's consumer names in records that the whole topic shares."""
        self._records = ConsumerRecords(host, stream.topic.name, self._scope)
        self._settling = SettlementWriter(stream.opened, host.settle_seconds)
        self._unread = UnreadFiles(stream)
        self._leftovers = UnneededMessages(stream, self._holders)
        stream.copied.add(self._leftovers.settled)
        self._drop_interest: Cancel = cancel_all()
        self._turn = asyncio.Lock()
        self._config = stream.config
        self._first = stream.first_offset
        self._tasks = Tasks()
        stream.listeners.add(self._stream_changed)
        self._look_at_config()

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        """Iterate over the consumers in order of name."""
        return iter([self._consumers[name] for name in sorted(self._consumers)])

    def get(self, name: str) -> Consumer | None:
        return self._consumers.get(name)

    # -- life

    async def load(self) -> None:
        """Restore the recorded consumers; may be called again after it failed."""
        settled = await read_settled(self.stream.opened, self._scope)
        for record, config in await self._records.all():
            before = settled.get((record.name, record.created_us))
            if record.name not in self._consumers:
                await self._take_up(record, config, before)
        self._tell_unread()
        for consumer in self:
            self._dead_letter(consumer, consumer.ledger.given_up())
        await self._leftovers.sweep()

    async def create(self, config: ConsumerConfig, action: str) -> Consumer:
        """Create or update a consumer, as `action` allows. Raises ApiError."""
        async with self._turn:
            existing = self._consumers.get(config.name)
            if existing is not None:
                return await self._change(existing, config, action)
            if action == "update":
                raise errors.CONSUMER_DOES_NOT_EXIST.error()
            most = self.stream.config.max_consumers
            if 0 < most <= len(self._consumers):
                raise errors.CONSUMERS_MAX.error()
            if self.stream.config.retention == "workqueue":
                check_workqueue_place(config, [other.config for other in self])
            return await _or_refused(self._make(config))

    async def delete(self, name: str) -> bool:
        """Delete a consumer; returns whether it existed."""
        async with self._turn:
            consumer = self._consumers.get(name)
            if consumer is None:
                return False
            if not consumer.config.mem_storage:
                await _or_refused(self._records.remove(name))
            del self._consumers[name]
            consumer.close(409, "Consumer Deleted")
            self._settling.forget(consumer.journal)
            self._tell_unread()
            self._leftovers.consumer_gone()
            if not consumer.config.mem_storage:
                await _or_refused(self._host.progress.remove(self._subscription(consumer)))
            self.advisories.deleted(name)
            return True

    async def reset(self, consumer: Consumer, seq: int) -> int:
        """Restart a consumer at a sequence, or at its ack floor if `seq` is 0.

        Returns the sequence; the reset is durable then. Raises ApiError, also if the sequence is
        before the start that the configuration names.
        """
        start = seq - 1 if seq else consumer.ledger.floor_stream_seq
        if seq and consumer.config.deliver_policy in ("by_start_sequence", "by_start_time"):
            first = (await beginning(self.stream, consumer.config)).start
            if start < first:
                raise errors.RESET_INVALID.error(f"sequence {seq} is before {first + 1}")
        before = await create_feed(self.stream, consumer.config, StartPosition(start))
        if not consumer.config.mem_storage:
            await _or_refused(self._restart(consumer, start))
        consumer.reset(before)
        await self._written(consumer)
        return start + 1

    async def pause(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Pause or resume a consumer, as the configuration says."""
        async with self._turn:
            await self._keep(config, consumer)
            consumer.update(config, consumer.feed)

    def gone(self) -> None:
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
        await self._leftovers.close()
        await self._settling.close()

    def _end(self, code: int, text: str, *, counts: bool = False) -> None:
        self.stream.listeners.discard(self._stream_changed)
        for consumer in self._consumers.values():
            consumer.close(code, text, counts=counts)

    # -- what consumers report

    def changed(self, consumer: Consumer) -> None:
        settled = consumer.settled_seq
        if consumer.config.mem_storage:
            consumer.journal.discard()
        else:
            self._settling.changed(consumer.journal)
            self._host.progress.record(self._subscription(consumer), Offset(settled))
        if self._unread.frees(settled):
            self._tell_unread()

    def settled(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        self._leftovers.settled(seqs)

    def exhausted(self, consumer: Consumer, seqs: Iterable[int]) -> None:
        given_up = list(seqs)
        for seq in given_up:
            self.advisories.max_deliveries(consumer.name, seq, consumer.ledger.pending.count(seq))
        self._dead_letter(consumer, given_up)

    def sampled(self, consumer: Consumer, samples: Iterable[AckSample]) -> None:
        for sample in samples:
            self.advisories.acked(consumer.name, sample)

    def unpinned(self, consumer: Consumer) -> None:
        _events.info("consumer_unpinned", stream=self.stream.name, consumer=consumer.name)

    def inactive(self, consumer: Consumer) -> None:
        self._tasks.start(self._remove_unused(consumer))

    def durable(self, consumer: Consumer, call: Callable[[], None]) -> None:
        """Call once all that the consumer settled is durable, and its messages are deleted."""

        def written(durable: bool) -> None:
            if durable:
                self._leftovers.when_gone(call)

        if consumer.config.mem_storage:
            written(True)
        else:
            self._settling.now(consumer.journal, written)

    # -- details

    async def _make(self, config: ConsumerConfig) -> Consumer:
        made_up = "".join(secrets.choice(NAME_LETTERS) for _ in range(NAME_LENGTH))
        name = config.name or made_up
        place = await beginning(self.stream, config)
        created_us = self._host.clock.now_us()
        if not config.mem_storage:
            await self._records.make(name, config, created_us, *place)
        consumer = await self._place(name, config, created_us, place)
        if not config.mem_storage:
            # The record holds the start position, so the reply need not wait for the progress.
            self._tasks.start(self._follow(consumer, Offset(place.start)))
        self._tell_unread()
        self.advisories.created(consumer.name)
        # Start in the next turn, so that the creator receives the reply before the first message.
        asyncio.get_running_loop().call_soon(consumer.begin)
        return consumer

    async def _place(
        self, name: str, config: ConsumerConfig, created_us: int, place: StartPosition
    ) -> Consumer:
        before = await create_feed(self.stream, config, place)
        kind = PushConsumer if config.push else Consumer
        consumer = kind(self._host, self.stream, name, config, created_us, before, self)
        consumer.journal = Journal(consumer.ledger, self._scope + name, created_us)
        self._consumers[name] = consumer
        return consumer

    async def _change(self, existing: Consumer, config: ConsumerConfig, action: str) -> Consumer:
        if existing.config == config:
            return existing
        if action == "create":
            raise errors.CONSUMER_EXISTS.error()
        check_update(existing.config, config)
        if self.stream.config.retention == "workqueue":
            others = [other.config for other in self if other is not existing]
            check_workqueue_place(config, others)
        await self._keep(config, existing)
        place = StartPosition(existing.feed.next_offset)
        same = config.filters == existing.config.filters
        before = existing.feed if same else await create_feed(self.stream, config, place)
        existing.update(config, before)
        return existing

    async def _keep(self, config: ConsumerConfig, consumer: Consumer) -> None:
        if config.mem_storage:
            return
        start, stop = consumer.feed.next_offset, consumer.feed.picked_stop
        kept = self._records.put(consumer.name, config, consumer.created_us, start, stop)
        await _or_refused(kept)

    async def _restart(self, consumer: Consumer, start: int) -> None:
        """Record a new start position, which may be before the old one."""
        subscription, progress = self._subscription(consumer), self._host.progress
        await progress.remove(subscription)
        await self._records.put(consumer.name, consumer.config, consumer.created_us, start, 0)
        await progress.start(subscription, Offset(start))

    async def _written(self, consumer: Consumer) -> None:
        """Wait until the consumer's state is durable; raises ApiError if it cannot be written."""
        if consumer.config.mem_storage:
            return
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._settling.now(consumer.journal, durable.set_result)
        if not await durable:
            raise errors.CONSUMER_CREATE.error("the disk cannot be written now; try again")

    async def _take_up(
        self, record: ConsumerRecord, config: ConsumerConfig, before: RestoredState | None
    ) -> None:
        subscription = SubscriptionId(self.stream.topic.name, self._scope + record.name)
        floor = await self._host.progress.start(subscription, Offset(record.start))
        start = max(record.start, floor) if before is None else before.kept.stream_seq
        place = StartPosition(start, record.picked_stop)
        consumer = await self._place(record.name, config, record.created_us, place)
        if before is not None:
            before.kept.restore(consumer.ledger, self._host.clock.monotonic_ns())
            self._settling.restored(consumer.journal, before.frame)
        consumer.begin()

    async def _follow(self, consumer: Consumer, start: Offset) -> None:
        """Start to save the progress of a new consumer."""
        subscription, progress = self._subscription(consumer), self._host.progress
        try:
            await progress.start(subscription, start)
            progress.record(subscription, Offset(consumer.settled_seq))
            if self._consumers.get(consumer.name) is not consumer:
                await progress.remove(subscription)
        except PenstockError as error:
            _events.warning("floor_not_saved", subscription=str(subscription), reason=str(error))

    def _dead_letter(self, consumer: Consumer, seqs: list[int]) -> None:
        subject = consumer.config.metadata.get(DEAD_LETTER_SUBJECT)
        if subject and seqs:
            self._tasks.start(self._put_aside(consumer, subject.encode(), sorted(seqs)))

    async def _put_aside(self, consumer: Consumer, subject: bytes, seqs: list[int]) -> None:
        if await dead_letter(self._host, consumer, subject, seqs):
            consumer.put_aside(seqs)

    async def _remove_unused(self, consumer: Consumer) -> None:
        if self._consumers.get(consumer.name) is consumer:
            try:
                await self.delete(consumer.name)
            except PenstockError as error:
                _events.warning("consumer_not_removed", consumer=consumer.name, reason=str(error))

    def _stream_changed(self) -> None:
        if self.stream.config is not self._config:
            self._look_at_config()
        self._unread.committed()
        consumers, first = list(self._consumers.values()), self.stream.first_offset
        if first != self._first:
            self._first = first
            for consumer in consumers:
                consumer.dropped()
        for consumer in consumers:
            consumer.look()
        if self._settling.rotated():
            self._settling.flush()

    def _tell_unread(self) -> None:
        if self._settling.kept and not self.stream.opened.closed:
            self._unread.passed([consumer.settled_seq for consumer in self._consumers.values()])

    def _look_at_config(self) -> None:
        """Apply a changed stream configuration: its subjects and its retention."""
        self._config = self.stream.config
        interest = self._config.retention == "interest"
        self._drop_interest()
        if interest:
            self._drop_interest = self.stream.require_interest(self._wanted)
        for consumer in self._consumers.values():
            consumer.feed.restrict(filters_of(consumer.config))

    def _wanted(self, subject: bytes) -> bool:
        return any(holder.wants(subject) for holder in self._holders())

    def _holders(self) -> Iterable[Holder]:
        """Consumers, and sources of other streams."""
        return chain(self._consumers.values(), self.stream.copies())

    def _subscription(self, consumer: Consumer) -> SubscriptionId:
        return SubscriptionId(self.stream.topic.name, self._scope + consumer.name)


async def _or_refused(work: Awaitable[_T]) -> _T:
    """Await `work`; raises any PenstockError as the ApiError of consumer creation."""
    try:
        return await work
    except errors.ApiError:
        raise
    except PenstockError as error:
        raise errors.CONSUMER_CREATE.error(str(error)) from error
