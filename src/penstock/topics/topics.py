"""Creates, opens, finds and deletes the topics of this broker.

    create: record -> log -> tier          open again: record -> own -> log or manifest -> tier
    delete: mark the record -> tier, log, objects, keys, ownership -> record

The record is written first and deleted last, so the next start, or the next request, finishes what
a crash interrupts. Only a topic's owner opens or deletes it; the first broker that receives a
request for a topic without an owner becomes its owner. A start lists the topics and opens none
(unopened.py). A lost topic is opened again, unless another broker serves it by then (regain.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import structlog

from penstock.formats.paths import topic_directory
from penstock.host.notifier import Cancel, Notifier, cancel_all
from penstock.log import Log
from penstock.metadata import (
    LeaseExpired,
    MetadataUnavailable,
    Put,
    SingleFlight,
    StoredTopic,
    TopicState,
)
from penstock.metadata.catalog import Catalog, ListPage, PageQuery
from penstock.model.errors import (
    LogError,
    LogReadOnly,
    OwnedElsewhere,
    PenstockError,
    ResourceExists,
    ResourceUnknown,
)
from penstock.model.metrics import Metric, single
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import Durability, NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.objects import ObjectStore
from penstock.tiers import TopicTier
from penstock.topics import removal
from penstock.topics.host import TopicHost
from penstock.topics.open_topic import OpenTopic
from penstock.topics.partitions import Partitions
from penstock.topics.regain import RETRY_SECONDS, Regain, Troubles
from penstock.topics.returning import ReturningLogs
from penstock.topics.unopened import UnopenedTopics

__all__ = ["OpenTopic", "Topics"]

REOPENING: Final = "messages of a returned disk are being restored; retry"
UNFINISHED_KEPT: Final = 1000
"""Limit of topics whose failed creation may be completed by creating them again."""

_events = structlog.get_logger(__name__)


class Topics:
    """The topics of this broker; implements Admin."""

    def __init__(self, host: TopicHost) -> None:
        self._host = host
        self._catalog = Catalog(host.metadata, host.keys, host.clock)
        self._open: dict[TopicName, OpenTopic] = {}
        self._troubles = Troubles()
        self._unfinished: deque[TopicName] = deque(maxlen=UNFINISHED_KEPT)
        self._namespaces: dict[Namespace, NamespaceInfo] = {}
        """Namespaces of open topics, which cannot be deleted now."""
        self._used: Counter[Namespace] = Counter()
        self._turns: WeakValueDictionary[TopicName, asyncio.Lock] = WeakValueDictionary()
        self._topic_gets: SingleFlight[TopicName, StoredTopic | None] = SingleFlight()
        self._namespace_gets: SingleFlight[Namespace, NamespaceInfo] = SingleFlight()
        self._opened = Notifier[[OpenTopic]]()
        self._closed = Notifier[[OpenTopic]]()
        self.unopened = UnopenedTopics(self._take_up)
        self._regain = Regain(self.find, self._is_settled_elsewhere)
        self._returning = ReturningLogs(host, self._store, self.reopen)
        host.tiers.watch(lost=self._lost)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTopic]:
        return iter(self._open.values())

    def metrics(self) -> list[Metric]:
        """The current numbers of topics and partitions."""
        partitions = sum(len(opened.partitions) for opened in self)
        return [
            single("penstock_topics_open", "gauge", "Topics that are served here.", len(self)),
            single(
                "penstock_topics_unopened",
                "gauge",
                "Topics not opened since the start.",
                len(self.unopened),
            ),
            single("penstock_partitions", "gauge", "Partitions of open topics.", partitions),
        ]

    async def open(self) -> None:
        """Start, and open every topic; one topic's failure does not keep the others from being
        served.

        Raises MetadataUnavailable.
        """
        await self.start()
        await self.unopened.open_all()

    async def start(self) -> None:
        """List the topics on record; `unopened` opens them. Raises MetadataUnavailable."""
        await self._catalog.ensure_default()
        records = [record async for record in self._catalog.all_topics()]
        known = [record.topic.name for record in records]
        streams = await self._host.metadata.get_many([*map(self._host.keys.stream, known)])
        for record, stream in zip(records, streams, strict=True):
            self.unopened.add(record, b"" if stream is None else stream.value)
        for directory in self._host.logs.log_directories() - set(map(topic_directory, known)):
            _events.error("log_without_topic", directory=directory)
        await self._returning.start(known)

    async def close(self) -> None:
        """Stop opening topics in the background."""
        await self.unopened.close()
        await self._returning.close()
        await self._regain.close()

    def watch(
        self,
        opened: Callable[[OpenTopic], object] | None = None,
        closed: Callable[[OpenTopic], object] | None = None,
    ) -> Cancel:
        """Call `opened` with each topic opened from now on, and `closed` with each closed one.

        Returns the function that ends this.
        """
        return cancel_all(
            *([] if opened is None else [self._opened.add(opened)]),
            *([] if closed is None else [self._closed.add(closed)]),
        )

    # -- finding

    def get(self, name: TopicName) -> OpenTopic:
        """A topic that is open here.

        Raises ResourceUnknown, or the reason why a topic that exists is not served here.
        """
        opened = self._open.get(name)
        if opened is not None:
            return opened
        self._troubles.raise_last(name)
        raise ResourceUnknown("topic", name.full)

    def serves(self, opened: OpenTopic) -> bool:
        return self._open.get(opened.topic.name) is opened

    async def find(self, name: TopicName) -> OpenTopic:
        """A topic that is open here, or opened now if no other broker serves it. Raises what
        `get` raises.
        """
        if self.unopened:
            await self.unopened.tried(name)
        if (opened := self._open.get(name)) is not None:
            return opened
        self._troubles.raise_recent(name)
        await self._look_up(name)
        async with self._turn(name):
            if name in self._open:
                return self._open[name]
            self._troubles.raise_recent(name)
            return await self._open_or_tell(name)

    async def reopen(self, name: TopicName) -> None:
        """Close an open topic and open it again, which may fill its gaps."""
        async with self._turn(name):
            if name not in self._open:
                return
            await self._host.tiers.remove(name, REOPENING)
            self._close(name)
            try:
                await self._open_or_tell(name)
            except PenstockError as error:
                _events.error("topic_not_reopened", topic=str(name), reason=str(error))
                self._regain.note(name)

    async def _is_settled_elsewhere(self, name: TopicName) -> bool:
        """Whether no WAL of a topic that another broker owns has messages to return."""
        async with self._turn(name):
            return name in self._open or await self._host.tiers.is_settled_elsewhere(name)

    async def get_topic(self, name: TopicName) -> Topic:
        if (opened := self._open.get(name)) is not None:
            return opened.topic
        return (await self._look_up(name)).topic

    async def list_topics(self, namespace: Namespace, page: PageQuery) -> ListPage[Topic]:
        return await self._catalog.list_topics(namespace, page)

    # -- creating and deleting

    async def create_topic(self, spec: TopicSpec) -> Topic:
        return await self.create_with(spec, ())

    async def create_with(self, spec: TopicSpec, beside: Sequence[Put]) -> Topic:
        """Create a topic, which accepts pushes on return; `beside` is written with its record.

        Completes an earlier creation that failed half-way. Raises LogError if it is not served yet.
        """
        await self.unopened.tried(spec.name)
        async with self._turn(spec.name):
            recorded = await self._record(spec, beside)
            try:
                return (await self._open_topic(spec.name)).topic
            except OwnedElsewhere:  # Another broker was asked for it meanwhile.
                return recorded
            except (PenstockError, OSError) as error:
                self._unfinished.append(spec.name)
                raise LogError(
                    str(spec.name),
                    f"is recorded but not served yet: {error}; create it again, or restart the "
                    "broker, to complete it",
                ) from error

    async def delete_topic(self, name: TopicName) -> None:
        """Delete the topic and all its data; may be repeated if it fails. Raises OwnedElsewhere."""
        await self.unopened.tried(name)
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

    async def list_tenants(self, page: PageQuery) -> ListPage[TenantInfo]:
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

    async def list_namespaces(self, tenant: str, page: PageQuery) -> ListPage[NamespaceInfo]:
        return await self._catalog.list_namespaces(tenant, page)

    async def delete_namespace(self, name: Namespace) -> None:
        await self._catalog.delete_namespace(name)

    # -- details

    async def _store(self, name: TopicName) -> ObjectStore:
        """The store of a topic's objects, which its namespace names."""
        named = (await self.get_namespace(_namespace(name))).store
        return self._host.store_named(named) if named else self._host.store

    def _turn(self, name: TopicName) -> asyncio.Lock:
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    async def _look_up(self, name: TopicName) -> StoredTopic:
        """The record of a topic that is not open; concurrent callers share one read."""
        kept = await self._topic_gets.fetch(name, lambda: self._catalog.find_topic(name))
        if kept is None or kept.state is TopicState.DELETING:
            self._troubles.forget(name)
            raise ResourceUnknown("topic", name.full)
        return kept

    async def _take_up(self, kept: StoredTopic) -> None:
        name = kept.topic.name
        async with self._turn(name):
            try:
                if kept.state is not TopicState.ACTIVE:
                    await self._finish_deletion(name)
                elif name not in self._open:
                    await self._open_or_tell(name)
            except OwnedElsewhere as error:
                _events.info("topic_elsewhere", topic=str(name), owner=error.broker)
                if self._host.logs.exists(name):
                    self._regain.note(name)
            except (PenstockError, OSError) as error:
                _events.error("topic_unavailable", topic=str(name), reason=str(error))
                if isinstance(error, LeaseExpired | MetadataUnavailable):
                    self._regain.note(name)

    async def _record(self, spec: TopicSpec, beside: Sequence[Put]) -> Topic:
        """Create a record, or return that of an earlier attempt that failed."""
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

    async def _own(self, name: TopicName) -> StoredTopic:
        """Own a topic that exists, in whatever state.

        The record that the owner reads stays valid: nobody else may delete the topic, or create it
        again.
        """
        await self._host.tiers.own(name)
        kept = await self._catalog.find_topic(name)
        if kept is None:
            await self._host.ownership.release(name)
            raise ResourceUnknown("topic", name.full)
        return kept

    async def _open_or_tell(self, name: TopicName) -> OpenTopic:
        """Open a topic; remember the reason for `get` if that fails."""
        try:
            return await self._open_topic(name)
        except (PenstockError, OSError) as error:
            if isinstance(error, OSError):
                error = LogError(str(name), f"cannot be opened: {error}")
            self._troubles.note(name, error, RETRY_SECONDS)
            raise error from None

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
        self._troubles.forget(name)
        with suppress(ValueError):
            self._unfinished.remove(name)
        self._opened(opened)
        return opened

    async def _open_log(self, topic: Topic) -> tuple[Log, TopicTier | None]:
        host, spec, name = self._host, topic.spec, topic.name
        log = await host.logs.load(name)
        if spec.durability is Durability.MEMORY or host.in_memory:
            if log is not None:
                await host.logs.remove(name)
            return await host.logs.create(name, Durability.MEMORY, spec.first_offset), None
        if log is not None and log.partitions():
            await self._set_aside_if_foreign(log, topic)
        limits = spec.retention
        store = await self._store(name)
        tier = await host.tiers.add(name, limits, spec.durability, store, spec.first_offset)
        return tier.log, tier

    async def _set_aside_if_foreign(self, log: Log, topic: Topic) -> None:
        """Set messages without a manifest aside: they belong to an earlier topic, deleted while
        this disk was away.
        """
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

    async def _delete(self, kept: StoredTopic) -> None:
        """Delete a topic that this broker owns."""
        name = kept.topic.name
        if kept.state is TopicState.ACTIVE:
            kept = await self._catalog.begin_deletion(kept, self._host.ownership.guard(name))
        self._close(name)
        self._troubles.forget(name)
        await removal.remove(self._host._replace(store=await self._store(name)), name)
        await self._catalog.end_deletion(kept)

    def _close(self, name: TopicName) -> OpenTopic | None:
        if (opened := self._open.pop(name, None)) is not None:
            namespace = _namespace(name)
            self._used[namespace] -= 1
            if not self._used[namespace]:
                del self._used[namespace]
                self._namespaces.pop(namespace, None)
            opened.stop()
            self._closed(opened)
        return opened

    def _lost(self, name: TopicName, reason: str) -> None:
        opened = self._close(name)
        if opened is not None:
            opened.log.refusal = reason
            self._troubles.note(name, LogReadOnly(str(name), reason), retry_seconds=0.0)
            self._regain.note(name)


def _namespace(name: TopicName) -> Namespace:
    return Namespace(name.tenant, name.namespace)
