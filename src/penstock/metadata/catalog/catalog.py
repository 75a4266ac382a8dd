"""The tenants, namespaces and topics of all brokers, as records in the metadata store.

Every change is one transaction, so that concurrent brokers cannot break a rule: the creation of a
child compares that its parent is the one that was read, and writes the parent again; the deletion
of a parent compares that the parent was not written since its children were listed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import structlog

from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.metadata import records
from penstock.metadata.catalog.interface import PAGE_SIZE_MAX, ListPage, PageQuery
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataEntry,
    Put,
)
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.records import StoredTopic, TopicState
from penstock.model.errors import FormatError, ResourceExists, ResourceInUse, ResourceUnknown
from penstock.model.names import DEFAULT, DEFAULT_NAMESPACE, Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec

CHILDREN_NAMED: Final = 3
"""How many children an error names if they prevent the deletion of their parent."""

_T = TypeVar("_T")
_events = structlog.get_logger(__name__)


class _Resource(NamedTuple):
    """The kind and name of a resource, for errors, and its key."""

    kind: str
    name: str
    key: str


class Catalog:
    """Reads and changes the records.

    Raises ResourceUnknown, ResourceExists, ResourceInUse, and the errors of the store.
    """

    def __init__(self, metadata: Metadata, keys: MetadataKeys, clock: Clock | None = None) -> None:
        self._metadata, self._keys = metadata, keys
        self._clock = clock or Clock()

    async def ensure_default(self) -> None:
        """Create the tenant and namespace `default` unless there is a tenant."""
        if (await self._metadata.range(self._keys.tenants(), limit=1)).entries:
            return
        now = self._clock.now_us()
        tenant, namespace = TenantInfo(DEFAULT, now), NamespaceInfo(DEFAULT_NAMESPACE, now)
        puts = [
            Put(self._keys.tenant(DEFAULT), records.encode_tenant(tenant)),
            Put(self._keys.namespace(DEFAULT_NAMESPACE), records.encode_namespace(namespace)),
        ]
        await self._metadata.transaction([_absent(put.key) for put in puts], puts)

    # -- tenants

    async def create_tenant(self, tenant: str) -> TenantInfo:
        info = TenantInfo(tenant, self._clock.now_us())
        await self._create(self._tenant(tenant), records.encode_tenant(info))
        return info

    async def get_tenant(self, tenant: str) -> TenantInfo:
        return records.decode_tenant(await self._get(self._tenant(tenant)))

    async def list_tenants(self, page: PageQuery) -> ListPage[TenantInfo]:
        tenants = await self._page(self._keys.tenants(), page, records.decode_tenant)
        return _listed(tenants, page, lambda info: info.tenant)

    async def delete_tenant(self, tenant: str) -> None:
        prefix = self._keys.namespaces(tenant)
        await self._delete(self._tenant(tenant), "namespace", prefix)

    # -- namespaces

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        info = NamespaceInfo(name, self._clock.now_us(), store)
        parent = self._tenant(name.tenant)
        await self._create(self._namespace(name), records.encode_namespace(info), parent)
        return info

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        return records.decode_namespace(await self._get(self._namespace(name)))

    async def list_namespaces(self, tenant: str, page: PageQuery) -> ListPage[NamespaceInfo]:
        await self._get(self._tenant(tenant))
        prefix = self._keys.namespaces(tenant)
        namespaces = await self._page(prefix, page, records.decode_namespace)
        return _listed(namespaces, page, lambda info: info.name.namespace)

    async def delete_namespace(self, name: Namespace) -> None:
        prefix = self._keys.namespace_topics(name)
        await self._delete(self._namespace(name), "topic", prefix)

    # -- topics

    async def record_topic(self, spec: TopicSpec, beside: Sequence[Put] = ()) -> Topic:
        """Create the record of a topic, and make the changes `beside`, in one transaction.

        Raises ResourceInUse while a topic of this name is being deleted.
        """
        topic = Topic(spec, unique_name(), self._clock.now_us())
        record = records.encode_topic(topic, TopicState.ACTIVE)
        parent = self._namespace(Namespace(spec.name.tenant, spec.name.namespace))
        try:
            await self._create(self._topic(spec.name), record, parent, beside)
        except ResourceExists:
            stored = await self.find_topic(spec.name)
            if stored is not None and stored.state is TopicState.DELETING:
                raise ResourceInUse(
                    "topic", spec.name.full, "is still being deleted; retry later"
                ) from None
            raise
        return topic

    async def find_topic(self, name: TopicName) -> StoredTopic | None:
        """A topic in any state; None if there is none."""
        entry = await self._metadata.get(self._keys.topic_record(name))
        return None if entry is None else records.decode_topic(entry)

    async def list_topics(self, namespace: Namespace, page: PageQuery) -> ListPage[Topic]:
        await self._get(self._namespace(namespace))
        prefix = self._keys.namespace_topics(namespace)
        topics = await self._page(prefix, page, _decode_active)
        return _listed(topics, page, lambda topic: topic.name.topic)

    async def all_topics(self) -> AsyncIterator[StoredTopic]:
        """Every topic of every namespace, including topics that are being deleted.

        A damaged record is logged and skipped.
        """
        last, more = "", True
        while more:
            page = await self._metadata.range(self._keys.catalog(), last)
            for entry in page.entries:
                last = entry.key
                try:
                    yield records.decode_topic(entry)
                except FormatError as error:
                    _events.error("record_damaged", key=entry.key, reason=str(error))
            more = page.more

    async def begin_deletion(self, stored: StoredTopic, guard: Compare) -> StoredTopic:
        """Mark a topic as being deleted; `guard` ensures that only its owner does this."""
        key = self._keys.topic_record(stored.topic.name)
        put = Put(key, records.encode_topic(stored.topic, TopicState.DELETING))
        outcome = await self._metadata.transaction([guard, self.unchanged(stored)], [put])
        if not outcome.succeeded:
            raise ResourceInUse("topic", stored.topic.name.full, "has changed meanwhile; retry")
        return StoredTopic(stored.topic, TopicState.DELETING, outcome.revision)

    async def end_deletion(self, stored: StoredTopic) -> None:
        """Delete the record of a topic whose data is deleted, unless this was done already."""
        record = DeleteKeys(self._keys.topic_record(stored.topic.name))
        await self._metadata.transaction([self.unchanged(stored)], [record])

    def unchanged(self, stored: StoredTopic) -> Compare:
        """The comparison that holds until the topic's record is changed."""
        key = self._keys.topic_record(stored.topic.name)
        return Compare(key, CompareTarget.MOD_REVISION, stored.revision)

    # -- details

    def _tenant(self, tenant: str) -> _Resource:
        return _Resource("tenant", f"tenants/{tenant}", self._keys.tenant(tenant))

    def _namespace(self, name: Namespace) -> _Resource:
        return _Resource("namespace", name.full, self._keys.namespace(name))

    def _topic(self, name: TopicName) -> _Resource:
        return _Resource("topic", name.full, self._keys.topic_record(name))

    async def _get(self, resource: _Resource) -> MetadataEntry:
        entry = await self._metadata.get(resource.key)
        if entry is None:
            raise ResourceUnknown(resource.kind, resource.name)
        return entry

    async def _create(
        self,
        resource: _Resource,
        record: bytes,
        parent: _Resource | None = None,
        beside: Sequence[Put] = (),
    ) -> None:
        while True:
            compares, puts = [_absent(resource.key)], [Put(resource.key, record), *beside]
            if parent is not None:
                entry = await self._get(parent)
                compares.append(
                    Compare(parent.key, CompareTarget.CREATE_REVISION, entry.create_revision)
                )
                puts.append(Put(parent.key, entry.value))
            if (await self._metadata.transaction(compares, puts)).succeeded:
                return
            if await self._metadata.get(resource.key) is not None:
                raise ResourceExists(resource.kind, resource.name)

    async def _delete(self, resource: _Resource, child_kind: str, children: str) -> None:
        while True:
            entry = await self._get(resource)
            first = (await self._metadata.range(children, limit=CHILDREN_NAMED + 1)).entries
            if first:
                ids = [child.key.removeprefix(children) for child in first]
                sentence = f"cannot be deleted: it has the {child_kind} {_named(ids)}"
                raise ResourceInUse(resource.kind, resource.name, sentence)
            unchanged = Compare(resource.key, CompareTarget.MOD_REVISION, entry.mod_revision)
            outcome = await self._metadata.transaction([unchanged], [DeleteKeys(resource.key)])
            if outcome.succeeded:
                return

    async def _page(
        self, prefix: str, page: PageQuery, decode: Callable[[MetadataEntry], _T | None]
    ) -> list[_T]:
        """The items of a page and, if there is one, the next; skips those that decode to None."""
        items_max, last = _size(page) + 1, f"{prefix}{page.token}" if page.token else ""
        items: list[_T] = []
        while len(items) < items_max:
            part = await self._metadata.range(prefix, last, items_max - len(items))
            items += [item for entry in part.entries if (item := decode(entry)) is not None]
            if not part.more:
                break
            last = part.entries[-1].key
        return items


def _size(page: PageQuery) -> int:
    return min(max(page.size, 1), PAGE_SIZE_MAX)


def _listed(items_read: list[_T], page: PageQuery, name: Callable[[_T], str]) -> ListPage[_T]:
    """The page of these items, which may have one item of the next page."""
    items = items_read[: _size(page)]
    return ListPage(items, name(items[-1]) if len(items_read) > len(items) else "")


def _absent(key: str) -> Compare:
    return Compare(key, CompareTarget.VERSION, 0)


def _decode_active(entry: MetadataEntry) -> Topic | None:
    stored = records.decode_topic(entry)
    return stored.topic if stored.state is TopicState.ACTIVE else None


def _named(children: list[str]) -> str:
    more = ", ..." if len(children) > CHILDREN_NAMED else ""
    return ", ".join(children[:CHILDREN_NAMED]) + more
