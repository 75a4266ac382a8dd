"""The admin API of another broker, over gRPC.

Concurrent gets of one resource share one call. Results are not cached: after a deletion, a get
raises ResourceUnknown.
"""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.formats.admin_api import NAMESPACE, TENANT, TOPIC, AdminOperation, Resource, Verb
from penstock.metadata.catalog.interface import ListPage, PageQuery
from penstock.metadata.remote import values
from penstock.metadata.remote.calls import CHANGE_SECONDS, RemoteCalls
from penstock.metadata.single_flight import SingleFlight
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec

_V = TypeVar("_V")
_Kind = Resource[Any, Any]


class RemoteAdmin:
    """Implements Admin; raises the broker's errors, and MetadataUnavailable without a reply."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls
        self._gets: SingleFlight[tuple[str, str], Any] = SingleFlight()

    async def create_tenant(self, tenant: str) -> TenantInfo:
        return await self._create(TenantInfo, TENANT, "", tenant, None)

    async def get_tenant(self, tenant: str) -> TenantInfo:
        return await self._get(TenantInfo, TENANT, f"tenants/{tenant}")

    async def list_tenants(self, page: PageQuery) -> ListPage[TenantInfo]:
        return await self._list(TenantInfo, TENANT, "", page)

    async def delete_tenant(self, tenant: str) -> None:
        await self._delete(TENANT, f"tenants/{tenant}")

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        parent = f"tenants/{name.tenant}"
        return await self._create(
            NamespaceInfo, NAMESPACE, parent, name.namespace, {"store": store}
        )

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        return await self._get(NamespaceInfo, NAMESPACE, name.full)

    async def list_namespaces(self, tenant: str, page: PageQuery) -> ListPage[NamespaceInfo]:
        return await self._list(NamespaceInfo, NAMESPACE, f"tenants/{tenant}", page)

    async def delete_namespace(self, name: Namespace) -> None:
        await self._delete(NAMESPACE, name.full)

    async def create_topic(self, spec: TopicSpec) -> Topic:
        parent = Namespace(*spec.name[:2]).full
        return await self._create(Topic, TOPIC, parent, spec.name.topic, values.to_message(spec))

    async def get_topic(self, name: TopicName) -> Topic:
        return await self._get(Topic, TOPIC, name.full)

    async def list_topics(self, namespace: Namespace, page: PageQuery) -> ListPage[Topic]:
        return await self._list(Topic, TOPIC, namespace.full, page)

    async def delete_topic(self, name: TopicName) -> None:
        await self._delete(TOPIC, name.full)

    async def _create(
        self, kind: type[_V], resource: _Kind, parent: str, id_: str, sent: Any
    ) -> _V:
        fields = {f"{resource.kind}_id": id_, resource.kind: sent}
        if resource.parent is not None:
            fields["parent"] = parent
        call = AdminOperation(Verb.CREATE, resource).call
        return values.from_message(kind, await self._calls.call(call, CHANGE_SECONDS, **fields))

    async def _get(self, kind: type[_V], resource: _Kind, name: str) -> _V:
        call = AdminOperation(Verb.GET, resource).call
        sent = await self._gets.fetch((call, name), lambda: self._calls.call(call, name=name))
        return values.from_message(kind, sent)

    async def _list(
        self, kind: type[_V], resource: _Kind, parent: str, page: PageQuery
    ) -> ListPage[_V]:
        fields = {} if resource.parent is None else {"parent": parent}
        call = AdminOperation(Verb.LIST, resource).call
        sent = await self._calls.call(call, page_size=page.size, page_token=page.token, **fields)
        items = [values.from_message(kind, item) for item in getattr(sent, resource.plural)]
        return ListPage(items, sent.next_page_token)

    async def _delete(self, resource: _Kind, name: str) -> None:
        call = AdminOperation(Verb.DELETE, resource).call
        await self._calls.call(call, CHANGE_SECONDS, name=name)
