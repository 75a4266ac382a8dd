"""Caches the namespaces of open topics; a namespace with topics cannot be deleted."""

from __future__ import annotations

from collections import Counter

from penstock.metadata import SingleFlight
from penstock.metadata.catalog import Catalog
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo


class Namespaces:
    """Reads namespaces; concurrent callers share one read of a namespace that is not cached."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._cached: dict[Namespace, NamespaceInfo] = {}
        self._open_topics: Counter[Namespace] = Counter()
        self._reads: SingleFlight[Namespace, NamespaceInfo] = SingleFlight()

    async def get(self, name: Namespace) -> NamespaceInfo:
        """A namespace; raises ResourceUnknown."""
        cached = self._cached.get(name)
        if cached is not None:
            return cached
        info = await self._reads.fetch(name, lambda: self._catalog.get_namespace(name))
        if self._open_topics[name]:
            self._cached[name] = info
        return info

    async def of_topic(self, topic: TopicName) -> NamespaceInfo:
        """The namespace of a topic; raises ResourceUnknown."""
        return await self.get(_namespace(topic))

    def add_topic(self, topic: TopicName) -> None:
        """Count a topic that was opened."""
        self._open_topics[_namespace(topic)] += 1

    def remove_topic(self, topic: TopicName) -> None:
        """Discount a topic that was closed; a namespace without open topics leaves the cache."""
        namespace = _namespace(topic)
        self._open_topics[namespace] -= 1
        if not self._open_topics[namespace]:
            del self._open_topics[namespace]
            self._cached.pop(namespace, None)


def _namespace(topic: TopicName) -> Namespace:
    return Namespace(topic.tenant, topic.namespace)
