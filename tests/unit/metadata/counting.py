"""An Admin and an OffsetRegistry that count their calls, behind the real gRPC server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from penstock.config import Address
from penstock.host.clock import Clock
from penstock.metadata.catalog.interface import ListPage, Location, PageQuery, PartitionState
from penstock.metadata.remote.calls import RemoteCalls
from penstock.model.errors import ResourceExists, ResourceInUse, ResourceUnknown
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.protocols.grpc import GrpcServer, admin_handlers, offset_handlers

NOON: Final = Microseconds(1_700_000_000_000_000)
FREE: Final = (Address("127.0.0.1", 0),)
_T = TypeVar("_T")


class CountingCalls:
    """Counts calls; while `held` is cleared, gets wait."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.held = asyncio.Event()
        self.held.set()
        self.failure: Exception | None = None

    async def ask(self, what: str) -> None:
        self.asked[what] += 1
        await self.held.wait()
        if self.failure is not None:
            raise self.failure


class CountingAdmin(CountingCalls):
    """Tenants, namespaces and topics in three dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: dict[str, TenantInfo] = {}
        self.namespaces: dict[str, NamespaceInfo] = {}
        self.topics: dict[str, Topic] = {}

    async def create_tenant(self, tenant: str) -> TenantInfo:
        await self.ask("create_tenant")
        return _create(self.tenants, "tenant", f"tenants/{tenant}", TenantInfo(tenant, NOON))

    async def get_tenant(self, tenant: str) -> TenantInfo:
        await self.ask("get_tenant")
        return _get(self.tenants, "tenant", f"tenants/{tenant}")

    async def list_tenants(self, page: PageQuery) -> ListPage[TenantInfo]:
        return _listed(self.tenants, "tenants/", page)

    async def delete_tenant(self, tenant: str) -> None:
        _delete(self.tenants, self.namespaces, "tenant", f"tenants/{tenant}")

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        _get(self.tenants, "tenant", f"tenants/{name.tenant}")
        info = NamespaceInfo(name, NOON, store)
        return _create(self.namespaces, "namespace", name.full, info)

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        await self.ask("get_namespace")
        return _get(self.namespaces, "namespace", name.full)

    async def list_namespaces(self, tenant: str, page: PageQuery) -> ListPage[NamespaceInfo]:
        return _listed(self.namespaces, f"tenants/{tenant}/", page)

    async def delete_namespace(self, name: Namespace) -> None:
        _delete(self.namespaces, self.topics, "namespace", name.full)

    async def create_topic(self, spec: TopicSpec) -> Topic:
        topic = Topic(spec, f"u{len(self.topics)}", NOON)
        return _create(self.topics, "topic", spec.name.full, topic)

    async def get_topic(self, name: TopicName) -> Topic:
        await self.ask("get_topic")
        return _get(self.topics, "topic", name.full)

    async def list_topics(self, namespace: Namespace, page: PageQuery) -> ListPage[Topic]:
        return _listed(self.topics, f"{namespace.full}/", page)

    async def delete_topic(self, name: TopicName) -> None:
        _delete(self.topics, {}, "topic", name.full)


class CountingRegistry(CountingCalls):
    """Locations by offset; past them it waits until the deadline, as a registry does."""

    def __init__(self) -> None:
        super().__init__()
        self.locations: dict[int, Location] = {}
        self.deadlines: list[Microseconds] = []
        self.values: list[PartitionValue | None] = []
        self.waiting = 0
        self._changed = asyncio.Condition()

    async def put(self, offset: int, location: Location) -> None:
        async with self._changed:
            self.locations[offset] = location
            self._changed.notify_all()

    async def offset_location(
        self,
        topic: TopicName,
        value: PartitionValue | None,
        offset: Offset,
        deadline: Microseconds,
    ) -> Location | None:
        self.deadlines.append(deadline)
        self.values.append(value)
        await self.ask("offset_location")
        self.waiting += 1
        try:
            async with asyncio.timeout((deadline - Clock().now_us()) / 1e6), self._changed:
                await self._changed.wait_for(lambda: offset in self.locations)
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
        return self.locations.get(offset)

    async def get_partition(self, topic: TopicName, value: PartitionValue | None) -> PartitionState:
        await self.ask("get_partition")
        return PartitionState(value, PartitionId(3), Offset(1), Offset(9), 8)

    async def list_partitions(self, topic: TopicName, page: PageQuery) -> ListPage[PartitionState]:
        state = PartitionState(
            PartitionValue("String", topic.topic), PartitionId(page.size), Offset(0), Offset(1), 1
        )
        return ListPage([state], f"{page.token}+")


class Served:
    """The server and a connection to it."""

    def __init__(
        self, server: GrpcServer, admin: CountingAdmin, registry: CountingRegistry
    ) -> None:
        self.server, self.admin, self.registry = server, admin, registry
        self.calls = RemoteCalls(str(server.addresses[0]))


@asynccontextmanager
async def served(
    calls_max: int = 100, drain_seconds: int = 0, addresses: Sequence[Address] = FREE
) -> AsyncIterator[Served]:
    server = GrpcServer(addresses, calls_max, drain_seconds)
    part = Served(server, CountingAdmin(), CountingRegistry())
    await server.start(admin_handlers(part.admin) | offset_handlers(part.registry))
    try:
        yield part
    finally:
        await part.calls.close()
        await server.drain()


def _create(where: dict[str, _T], kind: str, name: str, value: _T) -> _T:
    if name in where:
        raise ResourceExists(kind, name)
    where[name] = value
    return value


def _get(where: dict[str, _T], kind: str, name: str) -> _T:
    if name not in where:
        raise ResourceUnknown(kind, name)
    return where[name]


def _listed(where: dict[str, _T], prefix: str, page: PageQuery) -> ListPage[_T]:
    names = sorted(name for name in where if name.startswith(prefix) and name > page.token)
    more = names[page.size - 1] if len(names) > page.size else ""
    return ListPage([where[name] for name in names[: page.size]], more)


def _delete(where: dict[str, Any], below: dict[str, Any], kind: str, name: str) -> None:
    _get(where, kind, name)
    if any(inner.startswith(f"{name}/") for inner in below):
        raise ResourceInUse(kind, name, "is not empty")
    del where[name]
