"""Opens a topic that is on record: ownership, log, tier, partitions. Deletes one in reverse.

record -> own -> log on disk, or from the manifest -> tier -> partitions
own -> mark the record -> tier, log, objects, keys, ownership -> record
"""

from __future__ import annotations

import structlog

from penstock.log import Log
from penstock.metadata import StoredTopic, TopicState
from penstock.metadata.catalog import Catalog
from penstock.model.errors import ResourceUnknown
from penstock.model.names import TopicName
from penstock.model.resources import Durability, Topic
from penstock.objects import ObjectStore
from penstock.tiers import TopicTier
from penstock.topics import removal
from penstock.topics.host import TopicHost
from penstock.topics.namespaces import Namespaces
from penstock.topics.open_topic import OpenTopic
from penstock.topics.partitions import Partitions

_events = structlog.get_logger(__name__)


class TopicOpener:
    """Opens and deletes topics of one broker; one call for a topic at a time."""

    def __init__(self, host: TopicHost, catalog: Catalog, namespaces: Namespaces) -> None:
        self._host, self._catalog, self._namespaces = host, catalog, namespaces

    async def own(self, name: TopicName) -> StoredTopic:
        """Own a topic that exists, in any state; raises ResourceUnknown, OwnedElsewhere.

        The record stays valid: only the owner may delete the topic or create it again.
        """
        await self._host.tiers.own(name)
        stored = await self._catalog.find_topic(name)
        if stored is None:
            await self._host.ownership.release(name)
            raise ResourceUnknown("topic", name.full)
        return stored

    async def open(self, name: TopicName) -> OpenTopic:
        """Own and open a topic that exists and is not being deleted."""
        host, stored = self._host, await self.own(name)
        topic = stored.topic
        if stored.state is TopicState.DELETING:
            await host.ownership.release(name)
            raise ResourceUnknown("topic", name.full)
        log, tier = await self._open_log(topic)
        guards = [host.ownership.guard(name), self._catalog.unchanged(stored)]
        partitioned = topic.spec.partition_column is not None
        partitions = Partitions(host.metadata, host.keys, name, guards, partitioned)
        await partitions.load()
        stream = await host.metadata.get(host.keys.stream(name))
        # Raises if the topic was lost meanwhile: nothing could be closed then.
        host.ownership.epoch(name)
        return OpenTopic(topic, log, tier, partitions, b"" if stream is None else stream.value)

    async def mark_deleting(self, stored: StoredTopic) -> StoredTopic:
        """Record that a topic that this broker owns is being deleted, if it is not yet."""
        if stored.state is not TopicState.ACTIVE:
            return stored
        guard = self._host.ownership.guard(stored.topic.name)
        return await self._catalog.begin_deletion(stored, guard)

    async def delete(self, stored: StoredTopic) -> None:
        """Delete the data of a topic that is marked and closed, then its record."""
        name = stored.topic.name
        await removal.remove(self._host._replace(store=await self.store_of(name)), name)
        await self._catalog.end_deletion(stored)

    async def store_of(self, name: TopicName) -> ObjectStore:
        """The store of a topic's objects, which its namespace names."""
        store = (await self._namespaces.of_topic(name)).store
        return self._host.store_named(store) if store else self._host.store

    async def _open_log(self, topic: Topic) -> tuple[Log, TopicTier | None]:
        host, spec, name = self._host, topic.spec, topic.name
        log = await host.logs.load(name)
        if spec.durability is Durability.MEMORY or host.in_memory:
            if log is not None:
                await host.logs.remove(name)
            return await host.logs.create(name, Durability.MEMORY, spec.first_offset), None
        if log is not None and log.partitions():
            await self._set_aside_if_foreign(log, topic)
        store = await self.store_of(name)
        tier = await host.tiers.add(name, spec.retention, spec.durability, store, spec.first_offset)
        return tier.log, tier

    async def _set_aside_if_foreign(self, log: Log, topic: Topic) -> None:
        """Set messages without a manifest aside.

        They belong to an earlier topic of this name, which was deleted while this disk was away.
        """
        if await self._host.metadata.get(self._host.keys.manifest(topic.name)) is None:
            directory = f"{log.directory.name}.foreign-{topic.unique}"
            await self._host.logs.set_aside(topic.name, directory)
            _events.warning("wal_set_aside", topic=str(topic.name), directory=directory)
