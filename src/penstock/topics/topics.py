"""The topics of this broker: made, opened, found, deleted.

    create: record -> log -> tier          open again: record -> own -> log or manifest -> tier
    delete: record says so -> tier, log, objects, keys, ownership -> record

The record comes first and goes last, so whatever a crash leaves behind is finished at the next
start, or when somebody asks again. Only a topic's owner opens or deletes it. A topic that was the
charge of a broker that is gone is opened by the first one that is asked for it. What was lost is
taken up again, unless another broker serves it by then (regain.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import structlog

from penstock.log.log import Log
from penstock.metadata.admin import Listed, PageRequest
from penstock.metadata.catalog import Catalog
from penstock.metadata.deduplicate import Deduplicate
from penstock.metadata.interface import MetadataUnavailable, Put
from penstock.metadata.records import KeptTopic, TopicState
from penstock.model import names
from penstock.model.durability import Durability
from penstock.model.errors import (
    LogError,
    LogReadOnly,
    OwnedElsewhere,
    PenstockError,
    ResourceExists,
    ResourceUnknown,
)
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.objects.interface import ObjectStore
from penstock.tiers.retention import TopicRetention
from penstock.tiers.tier import TopicTier
from penstock.topics import removal
from penstock.topics.host import TopicHost
from penstock.topics.opened import OpenTopic
from penstock.topics.partitions import Partitions
from penstock.topics.regain import Regain

__all__ = ["OpenTopic", "Topics"]

OPENED_AT_ONCE: Final = 32
RETRY_SECONDS: Final = 1.0
"""For so long the reason why a topic could not be opened stands, before it is tried again."""

UNFINISHED_KEPT: Final = 1000
"""So many topics whose making failed may be completed by making them again."""

_events = structlog.get_logger(__name__)


class _Trouble(NamedTuple):
    error: PenstockError
    until: float


class Topics:
    """Implements Admin for this broker."""

    def __init__(self, host: TopicHost) -> None:
        self._host = host
        self._catalog = Catalog(host.metadata, host.keys, host.clock)
        self._open: dict[TopicName, OpenTopic] = {}
        self._troubles: dict[TopicName, _Trouble] = {}
        """Why topics that exist are not served here."""
        self._unfinished: deque[TopicName] = deque(maxlen=UNFINISHED_KEPT)
        """Topics whose making failed half-way."""
        self._namespaces: dict[Namespace, NamespaceInfo] = {}
        """Those of topics that are open: they cannot be deleted now."""
        self._used: Counter[Namespace] = Counter()
        self._turns: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._topic_gets: Deduplicate[TopicName, KeptTopic | None] = Deduplicate()
        self._namespace_gets: Deduplicate[Namespace, NamespaceInfo] = Deduplicate()
        self.on_opened: Callable[[OpenTopic], None] = lambda opened: None
        self.on_closed: Callable[[OpenTopic], None] = lambda opened: None
        self._regain = Regain(self.find)
        host.tiers.on_lost = self._lost

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTopic]:
        return iter(self._open.values())

    async def open(self) -> None:
        """Open every topic that can be had, and finish deletions that were cut off.

        One topic's trouble does not keep the others from serving. Raises MetadataUnavailable.
        """
        await self._catalog.ensure_default()
        kept = [item async for item in self._catalog.all_topics()]
        waiting = iter(kept)

        async def take_up_some() -> None:
            for item in waiting:
                await self._take_up(item)

        async with asyncio.TaskGroup() as openers:
            for _ in range(min(OPENED_AT_ONCE, len(kept))):
                openers.create_task(take_up_some())
        known = {item.topic.name for item in kept}
        for log in self._host.logs:
            if names.topic(log.topic) not in known:
                _events.error("log_without_topic", topic=log.topic, directory=str(log.directory))

    async def close(self) -> None:
        """Take up no topic any more."""
        await self._regain.close()

    # -- finding

    def get(self, name: TopicName) -> OpenTopic:
        """A topic that is served here, at once.

        Raises ResourceUnknown, or the reason why a topic that exists is not served here.
        """
        opened = self._open.get(name)
        if opened is None:
            if (trouble := self._troubles.get(name)) is not None:
                raise trouble.error.with_traceback(None)
            raise ResourceUnknown("topic", name.full)
        return opened

    def serves(self, opened: OpenTopic) -> bool:
        """Whether this topic is still served here."""
        return self._open.get(opened.topic.name) is opened

    async def find(self, name: TopicName) -> OpenTopic:
        """Like `get`, but one that nobody serves is opened."""
        opened = self._open.get(name)
        if opened is not None:
            return opened
        self._raise_trouble(name)
        await self._look_up(name)
        async with self._turn(name):
            if name in self._open:
                return self._open[name]
            self._raise_trouble(name)
            return await self._open_or_tell(name)

    async def get_topic(self, name: TopicName) -> Topic:
        opened = self._open.get(name)
        if opened is not None:
            return opened.topic
        return (await self._look_up(name)).topic

    async def list_topics(self, namespace: Namespace, page: PageRequest) -> Listed[Topic]:
        return await self._catalog.list_topics(namespace, page)

    # -- making and deleting

    async def create_topic(self, spec: TopicSpec) -> Topic:
        return await self.create_with(spec, ())

    async def create_with(self, spec: TopicSpec, beside: Sequence[Put]) -> Topic:
        """Make a topic; it can be pushed to when this returns. `beside` goes with its record.

        One whose making failed half-way is completed. Raises LogError if it is not served yet.
        """
        async with self._turn(spec.name):
            recorded = await self._record(spec, beside)
            try:
                return (await self._open_topic(spec.name)).topic
            except OwnedElsewhere:
                # Somebody was quick to ask another broker for it.
                return recorded
            except (PenstockError, OSError) as error:
                self._unfinished.append(spec.name)
                raise LogError(
                    str(spec.name),
                    f"is recorded but not served yet: {error}; create it again, or restart the "
                    "broker, to complete it",
                ) from error

    async def delete_topic(self, name: TopicName) -> None:
        """Remove the topic and all its data; what fails half-way is taken up by asking again.

        Raises OwnedElsewhere.
        """
        async with self._turn(name):
            if await self._catalog.find_topic(name) is None:
                raise ResourceUnknown("topic", name.full)
            kept = await self._own(name)
            try:
                await self._delete(kept)
            except (PenstockError, OSError) as error:
                raise LogError(
                    str(name),
                    f"is not deleted in full yet: {error}; delete it again, or restart the "
                    "broker, to finish",
                ) from error

    # -- tenants and namespaces

    async def create_tenant(self, tenant: str) -> TenantInfo:
        return await self._catalog.create_tenant(tenant)

    async def get_tenant(self, tenant: str) -> TenantInfo:
        return await self._catalog.get_tenant(tenant)

    async def list_tenants(self, page: PageRequest) -> Listed[TenantInfo]:
        return await self._catalog.list_tenants(page)

    async def delete_tenant(self, tenant: str) -> None:
        await self._catalog.delete_tenant(tenant)

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        if store:
            self._host.store_named(store)
        return await self._catalog.create_namespace(name, store)

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        known = self._namespaces.get(name)
        if known is not None:
            return known
        info = await self._namespace_gets.fetch(name, lambda: self._catalog.get_namespace(name))
        if self._used[name]:
            self._namespaces[name] = info
        return info

    async def list_namespaces(self, tenant: str, page: PageRequest) -> Listed[NamespaceInfo]:
        return await self._catalog.list_namespaces(tenant, page)

    async def delete_namespace(self, name: Namespace) -> None:
        await self._catalog.delete_namespace(name)

    # -- details

    async def _store(self, name: TopicName) -> ObjectStore:
        """Where a topic's objects are: its namespace says."""
        named = (await self.get_namespace(_namespace(name))).store
        return self._host.store_named(named) if named else self._host.store

    def _turn(self, name: TopicName) -> asyncio.Lock:
        """One at a time opens, makes or deletes a topic."""
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    async def _look_up(self, name: TopicName) -> KeptTopic:
        """The record of a topic that is not open; one question for all who ask."""
        kept = await self._topic_gets.fetch(name, lambda: self._catalog.find_topic(name))
        if kept is None or kept.state is TopicState.DELETING:
            self._troubles.pop(name, None)
            raise ResourceUnknown("topic", name.full)
        return kept

    def _raise_trouble(self, name: TopicName) -> None:
        trouble = self._troubles.get(name)
        if trouble is not None and asyncio.get_running_loop().time() < trouble.until:
            raise trouble.error.with_traceback(None)

    async def _take_up(self, kept: KeptTopic) -> None:
        name = kept.topic.name
        async with self._turn(name):
            try:
                if kept.state is TopicState.ACTIVE:
                    await self._open_or_tell(name)
                else:
                    await self._finish_deletion(name)
            except OwnedElsewhere as error:
                _events.info("topic_elsewhere", topic=str(name), owner=error.broker)
            except (PenstockError, OSError) as error:
                _events.error("topic_unavailable", topic=str(name), reason=str(error))

    async def _record(self, spec: TopicSpec, beside: Sequence[Put]) -> Topic:
        """A new record, or that of an earlier attempt that got no further."""
        try:
            return await self._catalog.create_topic(spec, beside)
        except MetadataUnavailable:
            self._unfinished.append(spec.name)
            raise
        except ResourceExists:
            kept = await self._catalog.find_topic(spec.name)
            if spec.name not in self._unfinished or kept is None or kept.topic.spec != spec:
                raise
            return kept.topic

    async def _own(self, name: TopicName) -> KeptTopic:
        """Own a topic that exists, in whatever state.

        What is read by the owner stays so: nobody else may delete the topic, or make it again.
        """
        await self._host.tiers.own(name)
        kept = await self._catalog.find_topic(name)
        if kept is None:
            await self._host.ownership.release(name)
            raise ResourceUnknown("topic", name.full)
        return kept

    async def _open_or_tell(self, name: TopicName) -> OpenTopic:
        """Open it; why that failed is what `get` tells."""
        try:
            return await self._open_topic(name)
        except (PenstockError, OSError) as error:
            reason = (
                error
                if isinstance(error, PenstockError)
                else LogError(str(name), f"cannot be opened: {error}")
            )
            until = asyncio.get_running_loop().time() + RETRY_SECONDS
            self._troubles[name] = _Trouble(reason, until)
            raise reason from error

    async def _open_topic(self, name: TopicName) -> OpenTopic:
        host, kept = self._host, await self._own(name)
        topic = kept.topic
        if kept.state is TopicState.DELETING:
            await host.ownership.release(name)
            raise ResourceUnknown("topic", name.full)
        log, tier = await self._open_log(topic)
        guards = [host.ownership.guard(name), self._catalog.unchanged(kept)]
        partitioned = topic.spec.partition_column is not None
        partitions = Partitions(host.metadata, host.keys, name, guards, partitioned)
        await partitions.load()
        stream = await host.metadata.get(host.keys.stream(name))
        # It may have been lost meanwhile, when there was nothing to be closed yet.
        host.ownership.epoch(name)
        told = b"" if stream is None else stream.value
        opened = self._open[name] = OpenTopic(topic, log, tier, partitions, told)
        self._used[_namespace(name)] += 1
        self._troubles.pop(name, None)
        with suppress(ValueError):
            self._unfinished.remove(name)
        self.on_opened(opened)
        return opened

    async def _open_log(self, topic: Topic) -> tuple[Log, TopicTier | None]:
        host, spec, name = self._host, topic.spec, topic.name
        log = host.logs.get(name)
        if spec.durability is Durability.MEMORY or host.in_memory:
            if log is not None:
                await host.logs.remove(name)
            return await host.logs.create(name, Durability.MEMORY), None
        if log is not None and log.partitions():
            await self._set_aside_if_foreign(log, topic)
        limits = TopicRetention(*astuple(spec.retention))
        tier = await host.tiers.add(name, limits, spec.durability, await self._store(name))
        return tier.log, tier

    async def _set_aside_if_foreign(self, log: Log, topic: Topic) -> None:
        """Messages without a manifest are of an earlier topic, deleted while this disk was away."""
        if await self._host.metadata.get(self._host.keys.manifest(topic.name)) is None:
            aside = f"{log.directory.name}.foreign-{topic.unique}"
            await self._host.logs.set_aside(topic.name, aside)
            _events.warning("wal_set_aside", topic=str(topic.name), directory=aside)

    async def _finish_deletion(self, name: TopicName) -> None:
        kept = await self._own(name)
        if kept.state is TopicState.DELETING:
            await self._delete(kept)
        else:
            await self._open_or_tell(name)

    async def _delete(self, kept: KeptTopic) -> None:
        """Delete a topic that this broker owns."""
        name = kept.topic.name
        if kept.state is TopicState.ACTIVE:
            kept = await self._catalog.begin_deletion(kept, self._host.ownership.guard(name))
        self._close(name)
        self._troubles.pop(name, None)
        await removal.remove(self._host._replace(store=await self._store(name)), name)
        await self._catalog.end_deletion(kept)

    def _close(self, name: TopicName) -> OpenTopic | None:
        """Serve the topic no more."""
        opened = self._open.pop(name, None)
        if opened is not None:
            namespace = _namespace(name)
            self._used[namespace] -= 1
            if not self._used[namespace]:
                del self._used[namespace]
                self._namespaces.pop(namespace, None)
            opened.stop()
            self.on_closed(opened)
        return opened

    def _lost(self, name: TopicName, reason: str) -> None:
        opened = self._close(name)
        if opened is not None:
            opened.log.refusal = reason
            # For whoever asks without waiting; to open it again may be tried at once.
            self._troubles[name] = _Trouble(LogReadOnly(str(name), reason), 0.0)
            self._regain.note(name)


def _namespace(name: TopicName) -> Namespace:
    return Namespace(name.tenant, name.namespace)
