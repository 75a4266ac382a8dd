"""What there is: tenants, namespaces, topics; made, found, listed and removed.

Two implementations: the broker's own (topics/topics.py over metadata/catalog.py) and one that asks
a broker over gRPC (metadata/remote_admin.py).
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000

_T = TypeVar("_T")


class PageRequest(NamedTuple):
    """Which part of a list; sizes are brought within 1 and PAGE_SIZE_MAX."""

    size: int = PAGE_SIZE_DEFAULT
    token: str = ""
    """The last name of the page before; empty for the first page."""


class Listed(NamedTuple, Generic[_T]):
    """A page in name order, and the token of the next one; empty when this is the last."""

    items: list[_T]
    next_token: str


class Admin(Protocol):
    """Raises ResourceUnknown, ResourceExists, ResourceInUse; then nothing was changed."""

    async def create_tenant(self, tenant: str) -> TenantInfo: ...
    async def get_tenant(self, tenant: str) -> TenantInfo: ...
    async def list_tenants(self, page: PageRequest) -> Listed[TenantInfo]: ...
    async def delete_tenant(self, tenant: str) -> None: ...

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo: ...
    async def get_namespace(self, name: Namespace) -> NamespaceInfo: ...
    async def list_namespaces(self, tenant: str, page: PageRequest) -> Listed[NamespaceInfo]: ...
    async def delete_namespace(self, name: Namespace) -> None: ...

    async def create_topic(self, spec: TopicSpec) -> Topic: ...
    async def get_topic(self, name: TopicName) -> Topic: ...
    async def list_topics(self, namespace: Namespace, page: PageRequest) -> Listed[Topic]: ...

    async def delete_topic(self, name: TopicName) -> None:
        """Remove the topic and all its data; on return it cannot be read any more."""
