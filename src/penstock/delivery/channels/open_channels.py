"""The channels that this broker serves: each is a topic, its jobs, and the endpoints to push to.

The topic of a channel is created with the channel. Only the owner of the topic has the jobs of the
channel, so a channel is opened by the broker that opens its topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final
from weakref import WeakSet

import msgspec
import structlog

from penstock.delivery.channels.entities import Channel, Endpoint, Versioned
from penstock.delivery.channels.headers import guard_topic
from penstock.delivery.channels.jobs import ChannelJobs
from penstock.delivery.channels.push import PushWorkers
from penstock.delivery.channels.push_targets import PushTarget
from penstock.delivery.channels.settings import ChannelSettings
from penstock.delivery.channels.store import ChannelStore, JobFloors
from penstock.host.clock import Clock
from penstock.host.notifier import Cancel, Notifier, cancel_all
from penstock.host.tasks import Backoff, KeyedLocks, Tasks
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
from penstock.topics import OpenTopic, Topics

OPENED_AT_ONCE: Final = 16
CONFLICT_SECONDS: Final = 0.01
CONFLICT_SECONDS_MAX: Final = 0.5
"""Delays of a write after another broker has changed the entity."""
_events = structlog.get_logger(__name__)


class OpenChannel:
    """A channel that this broker serves."""

    def __init__(self, id_: str, jobs: ChannelJobs, workers: PushWorkers) -> None:
        self.id, self.jobs = id_, jobs
        self.targets: dict[int, PushTarget] = {}
        """By the number of the endpoint."""
        self._workers = workers
        jobs.watch(self.wake)

    def wake(self, number: int) -> None:
        """Let the workers push the jobs of an endpoint."""
        target = self.targets.get(number)
        if target is not None:
            self._workers.wake(target)


class OpenChannels:
    """Opens channels and keeps them in line with the entities in the store."""

    def __init__(
        self,
        store: ChannelStore,
        topics: Topics,
        settings: ChannelSettings,
        floors: JobFloors,
        clock: Clock,
    ) -> None:
        self.store, self.settings, self.clock = store, settings, clock
        self.workers = PushWorkers(settings, clock, self._disable_soon)
        self._topics, self._floors = topics, floors
        self._by_id: dict[str, OpenChannel] = {}
        self._locks = KeyedLocks[str]()
        self._tasks = Tasks()
        self._guarded: WeakSet[OpenTopic] = WeakSet()
        self._opened = Notifier[[Channel]]()
        self._stop_watching: Cancel = cancel_all()

    async def open(self) -> None:
        """Open all channels whose topics this broker owns; other brokers own the others.

        This opens their topics too: status pages count the jobs of all channels.
        """
        self._stop_watching = cancel_all(
            self.store.watch(self._entity_changed),
            self._topics.watch(self._topic_opened, self._topic_closed),
        )
        unopened = iter(list(self.store.channels))

        async def open_next() -> None:
            for channel in unopened:
                await self._open_if_owned(channel.id)

        async with asyncio.TaskGroup() as opening_tasks:
            for _ in range(min(OPENED_AT_ONCE, len(self.store.channels))):
                opening_tasks.create_task(open_next())

    async def close(self, seconds: float) -> None:
        """Let running calls end within `seconds`, then write the state of all jobs."""
        self._stop_watching()
        await self.workers.close(seconds)
        await self._tasks.drain()
        await asyncio.gather(*(channel.jobs.close() for channel in self))

    def watch(self, opened: Callable[[Channel], object]) -> Cancel:
        """Call `opened` with each channel that is opened; returns the function that ends this."""
        return self._opened.add(opened)

    def __iter__(self) -> Iterator[OpenChannel]:
        return iter(list(self._by_id.values()))

    def get(self, id_: str) -> OpenChannel | None:
        """A channel that is open now."""
        return self._by_id.get(id_)

    async def find(self, channel: Channel) -> OpenChannel:
        """A channel, opened if need be; raises what opening its topic raises."""
        found = self._by_id.get(channel.id)
        if found is not None:
            return found
        async with self._locks[channel.id]:
            found = self._by_id.get(channel.id)
            if found is None:
                found = await self._open_channel(channel.id)
                self._opened(channel)
            return found

    async def topic(self, channel_id: str) -> OpenTopic:
        """The topic of a channel, created if missing; raises ResourceInUse if it has columns."""
        name = topic_name(channel_id)
        try:
            opened = await self._topics.find(name)
        except ResourceUnknown:
            # A client of another protocol may create it at the same time.
            with suppress(ResourceExists):
                await self._topics.create_topic(TopicSpec(name))
            opened = await self._topics.find(name)
        spec = opened.topic.spec
        if spec.schema is not None or spec.partition_column is not None:
            raise ResourceInUse(
                "topic", name.full, "has columns or partitions; a channel needs raw messages"
            )
        return opened

    def target(self, endpoint: Endpoint) -> PushTarget | None:
        """An endpoint of an open channel, as the workers see it."""
        found = self._by_id.get(endpoint.channel)
        return None if found is None else found.targets.get(endpoint.number)

    async def set_disabled(self, endpoint: Endpoint, reason: str) -> None:
        """Disable an endpoint for a reason, or enable it with an empty one."""
        table = self.store.endpoints(endpoint.channel)
        backoff = Backoff(CONFLICT_SECONDS, CONFLICT_SECONDS_MAX)
        while (found := table.find(endpoint.id)) is not None:
            stored, revision = found
            if stored.number != endpoint.number or stored.disabled_reason == reason:
                return
            changed = msgspec.structs.replace(stored, disabled_reason=reason)
            if await self.store.put(Versioned(changed, revision)):
                event = "consumer_disabled" if reason else "consumer_enabled"
                _events.warning(
                    event, channel=endpoint.channel, consumer=endpoint.id, reason=reason
                )
                return
            await backoff.pause()

    # -- opening

    async def _open_channel(self, id_: str) -> OpenChannel:
        opened = await self.topic(id_)
        self._guard(opened)
        jobs = ChannelJobs(opened, self.settings.rules, self.clock, self._floors)
        channel = OpenChannel(id_, jobs, self.workers)
        self._update_targets(channel)
        await jobs.open(self.store.endpoints(id_))
        if not self._topics.serves(opened):
            jobs.stop()
            raise ResourceUnknown("topic", opened.topic.name.full)
        self._by_id[id_] = channel
        self._reconcile(channel)
        return channel

    def _guard(self, opened: OpenTopic) -> None:
        """Apply the rules of channels to a topic, once."""
        if opened not in self._guarded:
            self._guarded.add(opened)
            guard_topic(opened, self.settings.signed_only)

    async def _open_if_owned(self, id_: str) -> None:
        channel = self.store.channels.get(id_)
        try:
            if channel is not None:
                await self.find(channel)
        except OwnedElsewhere:
            # The owner of the topic has its jobs.
            return
        except PenstockError as error:
            _events.error("channel_unavailable", channel=id_, reason=str(error))

    def _topic_opened(self, opened: OpenTopic) -> None:
        """Open the channel of a topic that was opened, perhaps again."""
        name = opened.topic.name
        if name[:2] == names.DEFAULT_NAMESPACE and self.store.channels.get(name.topic):
            self._guard(opened)
            self._tasks.start(self._open_if_owned(name.topic))

    def _topic_closed(self, opened: OpenTopic) -> None:
        found = self._by_id.get(opened.topic.name.topic)
        if found is not None and found.jobs.opened is opened:
            del self._by_id[found.id]
            found.jobs.stop()

    # -- following the store

    def _entity_changed(self, channel_id: str) -> None:
        found = self._by_id.get(channel_id)
        if found is not None:
            self._reconcile(found)

    def _reconcile(self, channel: OpenChannel) -> None:
        """Bring the ledgers and targets of an open channel in line with the store."""
        for endpoint in self._update_targets(channel):
            channel.jobs.add(endpoint)
            channel.wake(endpoint.number)

    def _update_targets(self, channel: OpenChannel) -> list[Endpoint]:
        """Add, update and remove targets; returns the endpoints in the store."""
        entity = self.store.channels.get(channel.id)
        if entity is None:
            return []
        endpoints = list(self.store.endpoints(channel.id))
        for number in channel.targets.keys() - {endpoint.number for endpoint in endpoints}:
            del channel.targets[number]
            channel.jobs.remove(number)
        for endpoint in endpoints:
            target = channel.targets.get(endpoint.number)
            if target is None:
                target = PushTarget(entity, endpoint, channel.jobs, self.settings)
                channel.targets[endpoint.number] = target
            elif target.endpoint.type != endpoint.type and (ledger := target.ledger):
                ledger.end_delays()
            target.update(entity, endpoint)
        return endpoints

    def _disable_soon(self, target: PushTarget, reason: str) -> None:
        self._tasks.start(self.set_disabled(target.endpoint, reason))


def topic_name(channel_id: str) -> TopicName:
    """The topic of a channel; raises NameInvalid for an id that is no name of a topic."""
    if "/" in channel_id:
        # An id is a plain name, never a path into another namespace.
        raise NameInvalid("channel", channel_id, "an id without '/'")
    return names.topic(channel_id)
