"""The channels of this broker: each a topic, the jobs over it, and whoever is pushed to.

A channel's topic is made when the channel is first used, and opened by the broker that is asked for
it; only a topic's owner has its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Final
from weakref import WeakSet, WeakValueDictionary

import msgspec
import structlog

from penstock.delivery.channels import gate
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.target import Target
from penstock.delivery.channels.workers import Workers
from penstock.host.clock import Clock
from penstock.host.notifier import Cancel, cancel_all
from penstock.metadata.channel_records import Channel, Consumer, Kept
from penstock.metadata.channel_store import ChannelStore
from penstock.metadata.job_floors import JobFloors
from penstock.model import names
from penstock.model.errors import (
    NameInvalid,
    OwnedElsewhere,
    PenstockError,
    ResourceExists,
    ResourceInUse,
    ResourceUnknown,
)
from penstock.model.names import TopicName
from penstock.model.resources import TopicSpec
from penstock.topics import OpenTopic, Source, Topics

OPENED_AT_ONCE: Final = 16
_events = structlog.get_logger(__name__)


class OpenChannel:
    """A channel that is served here."""

    def __init__(self, jobs: ChannelJobs) -> None:
        self.jobs = jobs
        self.targets: dict[int, Target] = {}
        """By the consumer's number."""


class Channels:
    """All channels; make it where an event loop runs."""

    def __init__(
        self,
        store: ChannelStore,
        topics: Topics,
        source: Source,
        settings: ChannelSettings,
        floors: JobFloors,
        clock: Clock | None = None,
    ) -> None:
        self.store, self.topics, self.settings = store, topics, settings
        self.clock = clock or Clock()
        self._source, self._floors = source, floors
        self._open: dict[str, OpenChannel] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._guarded: WeakSet[OpenTopic] = WeakSet()
        self._stop_watching: Cancel = cancel_all()
        self.opened: list[Callable[[Channel], None]] = []
        """Told about every channel that this broker takes up."""
        self.workers = Workers(settings, self.clock, self._disable)

    async def open(self) -> None:
        """Open every channel whose topic this broker has; others belong to other brokers.

        Their topics are opened too: status pages count the jobs of all channels.
        """
        self.store.listeners.append(self._changed)
        self._stop_watching = self.topics.watch(self._topic_opened, self._topic_closed)
        waiting = iter(list(self.store.channels))

        async def open_some() -> None:
            for channel in waiting:
                await self._take_up(channel.id)

        async with asyncio.TaskGroup() as openers:
            for _ in range(min(OPENED_AT_ONCE, len(self.store.channels))):
                openers.create_task(open_some())

    async def close(self, seconds: float) -> None:
        """Let calls in hand end, then keep what is known."""
        self._stop_watching()
        await self.workers.close(seconds)
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        await asyncio.gather(*(channel.jobs.close() for channel in self._open.values()))

    def __iter__(self) -> Iterator[tuple[str, OpenChannel]]:
        return iter(self._open.items())

    def peek(self, channel: str) -> OpenChannel | None:
        """A channel that is served here already."""
        return self._open.get(channel)

    async def find(self, channel: Channel) -> OpenChannel:
        """A channel, opened if need be; raises what opening its topic raises."""
        found = self.peek(channel.id)
        if found is not None:
            return found
        async with self._turn(channel.id):
            found = self.peek(channel.id)
            if found is None:
                found = await self._open_channel(channel.id)
                for listener in self.opened:
                    listener(channel)
            return found

    async def topic(self, channel: str) -> OpenTopic:
        """The topic of a channel, made if it is missing; raises ResourceInUse if it has columns."""
        name = topic_name(channel)
        try:
            opened = await self.topics.find(name)
        except ResourceUnknown:
            # Unless another protocol is quicker.
            with suppress(ResourceExists):
                await self.topics.create_topic(TopicSpec(name))
            opened = await self.topics.find(name)
        spec = opened.topic.spec
        if spec.schema is not None or spec.partition_column is not None:
            raise ResourceInUse(
                "topic", name.full, "has columns or partitions; a channel needs raw messages"
            )
        return opened

    def target(self, consumer: Consumer) -> Target | None:
        found = self._open.get(consumer.channel)
        return None if found is None else found.targets.get(consumer.number)

    # -- details

    def _turn(self, channel: str) -> asyncio.Lock:
        lock = self._turns.get(channel)
        if lock is None:
            lock = self._turns[channel] = asyncio.Lock()
        return lock

    async def _open_channel(self, id_: str) -> OpenChannel:
        opened = await self.topic(id_)
        self._guard(opened)
        channel: OpenChannel

        def ready(number: int) -> None:
            target = channel.targets.get(number)
            if target is not None:
                self.workers.wake(target)

        rules = self.settings.rules
        jobs = ChannelJobs(opened, self._source, rules, ready, self.clock, self._floors)
        channel = OpenChannel(jobs)
        self._reconcile(id_, channel)
        await jobs.open(self.store.consumers(id_))
        if not self.topics.serves(opened):
            jobs.stop()
            raise ResourceUnknown("topic", opened.topic.name.full)
        self._open[id_] = channel
        self._reconcile(id_, channel)
        return channel

    def _guard(self, opened: OpenTopic) -> None:
        """Apply the rules of a channel to its topic from now on."""
        if opened not in self._guarded:
            self._guarded.add(opened)
            gate.guard(opened, self.settings.signed_only)

    def _topic_opened(self, opened: OpenTopic) -> None:
        """A topic is served here, perhaps again: take up its channel, if it has one."""
        name = opened.topic.name
        if name[:2] == names.DEFAULT_NAMESPACE and self.store.channels.get(name.topic):
            self._guard(opened)
            self._start(self._take_up(name.topic))

    def _topic_closed(self, opened: OpenTopic) -> None:
        found = self._open.get(opened.topic.name.topic)
        if found is not None and found.jobs.opened is opened:
            del self._open[opened.topic.name.topic]
            found.jobs.stop()

    async def _take_up(self, id_: str) -> None:
        channel = self.store.channels.get(id_)
        try:
            if channel is not None:
                await self.find(channel)
        except OwnedElsewhere:
            # Its owner has its jobs.
            return
        except PenstockError as error:
            _events.error("channel_unavailable", channel=id_, reason=str(error))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _changed(self, channel: str) -> None:
        found = self._open.get(channel)
        if found is not None:
            self._reconcile(channel, found)

    def _reconcile(self, id_: str, channel: OpenChannel) -> None:
        """Bring ledgers and targets in line with the records."""
        record = self.store.channels.get(id_)
        if record is None:
            return
        consumers = {consumer.number: consumer for consumer in self.store.consumers(id_)}
        for number in [number for number in channel.targets if number not in consumers]:
            del channel.targets[number]
            channel.jobs.remove(number)
        for number, consumer in consumers.items():
            target = channel.targets.get(number)
            if target is None:
                target = Target(record, consumer, channel.jobs, self.settings)
                channel.targets[number] = target
            elif target.consumer.type != consumer.type and (ledger := target.ledger):
                ledger.hurry()
            target.renew(record, consumer)
            if id_ in self._open:
                channel.jobs.add(consumer)
                self.workers.wake(target)

    def _disable(self, target: Target, reason: str) -> None:
        self._start(self.disable(target.consumer, reason))

    async def disable(self, consumer: Consumer, reason: str) -> None:
        """Push nothing more to a consumer, or with an empty reason do so again."""
        shelf = self.store.consumers(consumer.channel)
        while (found := shelf.get(consumer.id)) is not None and found.number == consumer.number:
            if found.disabled == reason:
                return
            changed = msgspec.structs.replace(found, disabled=reason)
            if await self.store.put(Kept(changed, shelf.revision(consumer.id))):
                event = "consumer_disabled" if reason else "consumer_enabled"
                facts = {"channel": consumer.channel, "consumer": consumer.id}
                _events.warning(event, **facts, reason=reason)
                return
            await asyncio.sleep(0)


def topic_name(channel: str) -> TopicName:
    """Raises NameInvalid for an id that no topic can have."""
    if "/" in channel:
        # It is named by its id alone, never by a path into another namespace.
        raise NameInvalid("channel", channel, "an id without '/'")
    return names.topic(channel)
