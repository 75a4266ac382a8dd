"""The consumers of one stream: made, changed, removed, and there again after a restart."""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import structlog

from penstock.delivery.consumers.advisories import Advisories
from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.dead_letters import dead_letter
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.leftovers import Leftovers
from penstock.delivery.consumers.push import PushConsumer
from penstock.delivery.consumers.records import ConsumerRecord, Records
from penstock.delivery.consumers.restored import Restored, read_settled
from penstock.delivery.consumers.samples import Sample
from penstock.delivery.consumers.settling import Settling
from penstock.delivery.consumers.starts import Beginning, beginning, feed
from penstock.delivery.consumers.terms import DEAD_LETTER_SUBJECT, filters_of
from penstock.delivery.consumers.unread import Unread
from penstock.ledger.settlement import Journal
from penstock.metadata.positions import Subscription
from penstock.model.errors import PenstockError
from penstock.model.units import Offset
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream import errors
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.consumer_rules import check_update, check_workqueue_place

NAME_LETTERS: Final = string.ascii_letters + string.digits
NAME_LENGTH: Final = 8

_T = TypeVar("_T")

_events = structlog.get_logger(__name__)


class Consumers:
    """All consumers of one stream; also what they have to report."""

    def __init__(self, host: DeliveryHost, stream: Stream) -> None:
        self.stream, self._host = stream, host
        self.advisories = Advisories(host.outlet, host.clock, stream.name)
        self._consumers: dict[str, Consumer] = {}
        self._scope = "" if stream.name == stream.topic.name.topic else f"{stream.partition}/"
        """Before the names of a partition's consumers, where the topic's others are told too."""
        self._records = Records(host, stream.topic.name, self._scope)
        self._settling = Settling(stream.log, host.settle_seconds)
        self._unread = Unread(stream)
        self._leftovers = Leftovers(stream, self._consumers.values)
        self._turn = asyncio.Lock()
        self._config = stream.config
        self._first = stream.first_offset
        self._tasks: set[asyncio.Task[None]] = set()
        stream.listeners.add(self._stream_changed)
        self._look_at_config()

    def __len__(self) -> int:
        return len(self._consumers)

    def __iter__(self) -> Iterator[Consumer]:
        """By name."""
        return iter([self._consumers[name] for name in sorted(self._consumers)])

    def get(self, name: str) -> Consumer | None:
        return self._consumers.get(name)

    # -- life

    async def load(self) -> None:
        """Take up the consumers that are on record; what failed may be tried again."""
        settled = await read_settled(self.stream.log, self._scope)
        for record, config in await self._records.all():
            before = settled.get((record.name, record.created_us))
            if record.name not in self._consumers:
                await self._take_up(record, config, before)
        self._tell_unread()
        for consumer in self:
            self._dead_letter(consumer, consumer.ledger.given_up())
        await self._leftovers.sweep()

    async def create(self, config: ConsumerConfig, action: str) -> Consumer:
        """Make a consumer, or change the one that is there. Raises ApiError."""
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
        """Remove a consumer; whether there was one."""
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
        """Have a consumer begin anew, at a sequence or at its floor; where that is. Durable on
        return.

        Raises ApiError, also when that is before the start that its configuration names.
        """
        start = seq - 1 if seq else consumer.ledger.floor_stream_seq
        if seq and consumer.config.deliver_policy in ("by_start_sequence", "by_start_time"):
            first = (await beginning(self.stream, consumer.config)).start
            if start < first:
                raise errors.RESET_INVALID.error(f"sequence {seq} is before {first + 1}")
        before = await feed(self.stream, consumer.config, Beginning(start))
        if not consumer.config.mem_storage:
            await _or_refused(self._restart(consumer, start))
        consumer.reset(before)
        await self._written(consumer)
        return start + 1

    async def pause(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Pause or go on, as this configuration says."""
        async with self._turn:
            await self._keep(config, consumer)
            consumer.update(config, consumer.feed)

    def gone(self) -> None:
        """The stream is not served here any more."""
        self._end(409, "Consumer Deleted")
        self._host.progress.lost(self.stream.topic.name)

    def leave(self) -> None:
        """The broker stops: tell whoever waits."""
        self._end(409, "Server Shutdown", counts=True)

    async def close(self) -> None:
        """Keep what was settled."""
        self.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)
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

    def sampled(self, consumer: Consumer, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self.advisories.acked(consumer.name, sample)

    def unpinned(self, consumer: Consumer) -> None:
        _events.info("consumer_unpinned", stream=self.stream.name, consumer=consumer.name)

    def inactive(self, consumer: Consumer) -> None:
        self._begin(self._remove_unused(consumer))

    def durable(self, consumer: Consumer, call: Callable[[], None]) -> None:
        """Call when all that the consumer settled so far will never be undone."""

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
            # Its start is on record, so nobody has to wait for this.
            self._begin(self._follow(consumer, Offset(place.start)))
        self._tell_unread()
        self.advisories.created(consumer.name)
        # Whoever asked for it hears of it before its first message.
        asyncio.get_running_loop().call_soon(consumer.begin)
        return consumer

    async def _place(
        self, name: str, config: ConsumerConfig, created_us: int, place: Beginning
    ) -> Consumer:
        before = await feed(self.stream, config, place)
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
        place = Beginning(existing.feed.next_offset)
        same = config.filters == existing.config.filters
        before = existing.feed if same else await feed(self.stream, config, place)
        existing.update(config, before)
        return existing

    async def _keep(self, config: ConsumerConfig, consumer: Consumer) -> None:
        if config.mem_storage:
            return
        start, stop = consumer.feed.next_offset, consumer.feed.picked_stop
        kept = self._records.put(consumer.name, config, consumer.created_us, start, stop)
        await _or_refused(kept)

    async def _restart(self, consumer: Consumer, start: int) -> None:
        """Have the records say that the consumer begins here, even if that is a step back."""
        subscription, progress = self._subscription(consumer), self._host.progress
        await progress.remove(subscription)
        await self._records.put(consumer.name, consumer.config, consumer.created_us, start, 0)
        await progress.start(subscription, Offset(start))

    async def _written(self, consumer: Consumer) -> None:
        """Wait until what the consumer is like now is on disk; raises ApiError if it is not."""
        if consumer.config.mem_storage:
            return
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._settling.now(consumer.journal, durable.set_result)
        if not await durable:
            raise errors.CONSUMER_CREATE.error("the disk does not take it now; try again")

    async def _take_up(
        self, record: ConsumerRecord, config: ConsumerConfig, before: Restored | None
    ) -> None:
        subscription = Subscription(self.stream.topic.name, self._scope + record.name)
        floor = await self._host.progress.start(subscription, Offset(record.start))
        start = max(record.start, floor) if before is None else before.kept.stream_seq
        place = Beginning(start, record.picked_stop)
        consumer = await self._place(record.name, config, record.created_us, place)
        if before is not None:
            before.kept.restore(consumer.ledger, self._host.clock.monotonic_ns())
            self._settling.restored(consumer.journal, before.frame)
        consumer.begin()

    async def _follow(self, consumer: Consumer, start: Offset) -> None:
        """Have the floor of a new consumer saved now and then."""
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
            self._begin(self._put_aside(consumer, subject.encode(), sorted(seqs)))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
        if self._settling.kept and not self.stream.log.closed:
            self._unread.passed([consumer.settled_seq for consumer in self._consumers.values()])

    def _look_at_config(self) -> None:
        """The stream may take other subjects now, or keep messages for other reasons."""
        self._config = self.stream.config
        interest = self._config.retention == "interest"
        self.stream.interested = self._wanted if interest else None
        for consumer in self._consumers.values():
            consumer.feed.restrict(filters_of(consumer.config))

    def _wanted(self, subject: bytes) -> bool:
        return any(consumer.wants(subject) for consumer in self._consumers.values())

    def _subscription(self, consumer: Consumer) -> Subscription:
        return Subscription(self.stream.topic.name, self._scope + consumer.name)


async def _or_refused(work: Awaitable[_T]) -> _T:
    """What the work gives; what went wrong is told as the API tells it."""
    try:
        return await work
    except errors.ApiError:
        raise
    except PenstockError as error:
        raise errors.CONSUMER_CREATE.error(str(error)) from error
