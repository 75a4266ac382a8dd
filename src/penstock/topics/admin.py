"""The admin API of a broker: tenants and namespaces are records, topics are served here too."""

from __future__ import annotations

from penstock.metadata.catalog import Catalog
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, Topic, TopicSpec
from penstock.topics.host import TopicHost
from penstock.topics.topics import Topics


class LocalAdmin(Catalog):
    """Implements Admin: the catalog, with the topics that this broker opens and deletes."""

    def __init__(self, topics: Topics, host: TopicHost) -> None:
        super().__init__(host.metadata, host.keys, host.clock)
        self._topics, self._store_named = topics, host.store_named

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        """Create a namespace; raises ResourceUnknown if no store is configured under this name."""
        if store:
            self._store_named(store)
        return await super().create_namespace(name, store)

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        return await self._topics.namespaces.get(name)

    async def create_topic(self, spec: TopicSpec) -> Topic:
        return await self._topics.create_topic(spec)

    async def get_topic(self, name: TopicName) -> Topic:
        return await self._topics.get_topic(name)

    async def delete_topic(self, name: TopicName) -> None:
        await self._topics.delete_topic(name)
