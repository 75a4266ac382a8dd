"""The interfaces of the catalog: which resources exist, and where messages are.

Each has two implementations: `LocalAdmin` and `LocalOffsets` of `penstock.topics` answer from the
broker itself; `RemoteAdmin` and `RemoteOffsets` of `penstock.metadata.remote` call a broker over
gRPC, for a node that only fetches.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.model.units import Microseconds, Offset, PartitionId

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000

_T = TypeVar("_T")


class PageQuery(NamedTuple):
    """Which page of a list; a size out of 1 to PAGE_SIZE_MAX is replaced by the nearest limit."""

    size: int = PAGE_SIZE_DEFAULT
    token: str = ""
    """The `next_token` of the page before; empty for the first page."""


class ListPage(NamedTuple, Generic[_T]):
    """A page of a list in name order; `next_token` is empty on the last page."""

    items: list[_T]
    next_token: str


class Admin(Protocol):
    """Manages tenants, namespaces and topics.

    Raises ResourceUnknown, ResourceExists and ResourceInUse without having changed anything.
    """

    async def create_tenant(self, tenant: str) -> TenantInfo: ...
    async def get_tenant(self, tenant: str) -> TenantInfo: ...
    async def list_tenants(self, page: PageQuery) -> ListPage[TenantInfo]: ...
    async def delete_tenant(self, tenant: str) -> None: ...

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo: ...
    async def get_namespace(self, name: Namespace) -> NamespaceInfo: ...
    async def list_namespaces(self, tenant: str, page: PageQuery) -> ListPage[NamespaceInfo]: ...
    async def delete_namespace(self, name: Namespace) -> None: ...

    async def create_topic(self, spec: TopicSpec) -> Topic: ...
    async def get_topic(self, name: TopicName) -> Topic: ...
    async def list_topics(self, namespace: Namespace, page: PageQuery) -> ListPage[Topic]: ...

    async def delete_topic(self, name: TopicName) -> None:
        """Delete the topic and all its data; on return nothing of it can be read."""


class PartitionState(NamedTuple):
    """The current state of a partition."""

    value: PartitionValue | None
    partition: PartitionId
    start: Offset
    """The earliest offset that can be read."""
    next: Offset
    """The offset of the next message."""
    messages: int


class InObject(NamedTuple):
    """Offsets from `first` up to `next`, exclusive, are rows of an object in the bucket."""

    partition: PartitionId
    first: Offset
    next: Offset
    entry: bytes
    """The object's entry in the manifest, as tiers/manifest/entries.py encodes it."""
    deleted: bytes
    """The deleted offsets among them, as a serialised roaring bitmap; empty if there are none."""


class AtOwner(NamedTuple):
    """Offsets from `first` up to `next`, exclusive, are served by the HTTP server of the owner."""

    partition: PartitionId
    first: Offset
    next: Offset
    address: str
    """HOST:PORT."""


Location: TypeAlias = InObject | AtOwner


class OffsetRegistry(Protocol):
    """Locates offsets; raises ResourceUnknown, PartitionInvalid, OffsetGone."""

    async def offset_location(
        self,
        topic: TopicName,
        value: PartitionValue | None,
        offset: Offset,
        deadline: Microseconds,
    ) -> Location | None:
        """The location of the first existing offset from `offset` on.

        If there is none yet, waits for it until `deadline`, a time of day, and then returns None.
        """

    async def get_partition(self, topic: TopicName, value: PartitionValue | None) -> PartitionState:
        """The state of a partition; one that does not exist yet is empty and has the id -1."""

    async def list_partitions(self, topic: TopicName, page: PageQuery) -> ListPage[PartitionState]:
        """The partitions in the order of their ids; the token is an id."""
