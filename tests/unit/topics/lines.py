"""A source with messages in lists, and an admin with a few topics, for tests of fetchers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock.log import Waiters
from penstock.metadata.catalog import ListPage, PageQuery
from penstock.model import names
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns
from penstock.model.errors import ResourceUnknown
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.model.units import ONLY_PARTITION, Microseconds, Offset
from penstock.topics import TopicPartition


def topic(name: str) -> Topic:
    return Topic(TopicSpec(names.topic(name)), "u", Microseconds(0))


async def _nothing() -> None: ...


class Lines:
    """Every topic is a list of payloads; `before_read` may do anything between two steps."""

    def __init__(self, batch_messages: int = 4) -> None:
        self.lines: dict[str, list[bytes]] = {}
        self.starts: dict[str, int] = {}
        self.waiters: dict[str, Waiters] = {}
        self.before_read: Callable[[str], Awaitable[None]] = lambda _: _nothing()
        self._batch_messages = batch_messages

    def push(self, name: str, count: int) -> None:
        lines = self.lines.setdefault(name, [])
        lines += [b"%d" % (len(lines) + i) for i in range(count)]
        self._waiting(name).wake(ONLY_PARTITION)

    async def read(
        self, place: TopicPartition, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        name = place.topic.name.topic
        await self.before_read(name)
        lines, start = self.lines.get(name, []), self.starts.get(name, 0)
        if offset < start:
            return Gone(Offset(start))
        if offset >= len(lines):
            return AtHead(Offset(len(lines)))
        first = offset - offset % self._batch_messages
        payloads = lines[first : first + self._batch_messages]
        content = Columns(name.encode(), pa.array(payloads, pa.binary()))
        return [Batch(ONLY_PARTITION, Offset(first), len(payloads), Microseconds(1), content)]

    @contextmanager
    def arrival(
        self, place: TopicPartition, offset: Offset, deadline: float
    ) -> Iterator[asyncio.Future[None]]:
        with self._waiting(place.topic.name.topic).arrival(ONLY_PARTITION) as future:
            yield future

    def waiting(self) -> int:
        return sum(map(len, self.waiters.values()))

    def _waiting(self, name: str) -> Waiters:
        return self.waiters.setdefault(name, Waiters())


class Known:
    """An admin that knows only the topics of its constructor."""

    def __init__(self, *topics: Topic) -> None:
        self._topics = {topic.name: topic for topic in topics}

    async def get_topic(self, name: TopicName) -> Topic:
        if name not in self._topics:
            raise ResourceUnknown("topic", name.full)
        return self._topics[name]

    async def create_tenant(self, tenant: str) -> TenantInfo:
        raise NotImplementedError

    async def get_tenant(self, tenant: str) -> TenantInfo:
        raise NotImplementedError

    async def list_tenants(self, page: PageQuery) -> ListPage[TenantInfo]:
        raise NotImplementedError

    async def delete_tenant(self, tenant: str) -> None:
        raise NotImplementedError

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        raise NotImplementedError

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        raise NotImplementedError

    async def list_namespaces(self, tenant: str, page: PageQuery) -> ListPage[NamespaceInfo]:
        raise NotImplementedError

    async def delete_namespace(self, name: Namespace) -> None:
        raise NotImplementedError

    async def create_topic(self, spec: TopicSpec) -> Topic:
        raise NotImplementedError

    async def list_topics(self, namespace: Namespace, page: PageQuery) -> ListPage[Topic]:
        raise NotImplementedError

    async def delete_topic(self, name: TopicName) -> None:
        raise NotImplementedError
