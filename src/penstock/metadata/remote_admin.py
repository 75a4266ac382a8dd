"""Admin of a broker elsewhere, asked over gRPC; equal gets at the same time are one call.

Nothing is kept: a topic that was deleted is unknown to the next who asks.
"""

from __future__ import annotations

from typing import Any

from penstock.metadata import rpc_values as values
from penstock.metadata.admin import Listed, PageRequest
from penstock.metadata.deduplicate import Deduplicate
from penstock.metadata.remote_calls import CHANGE_SECONDS, RemoteCalls
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, TenantInfo, Topic, TopicSpec


class RemoteAdmin:
    """Raises what the broker raised, and MetadataUnavailable when it does not answer."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls
        self._gets: Deduplicate[tuple[str, str], Any] = Deduplicate()

    async def create_tenant(self, tenant: str) -> TenantInfo:
        return values.of_tenant(await self._change("CreateTenant", tenant_id=tenant))

    async def get_tenant(self, tenant: str) -> TenantInfo:
        return values.of_tenant(await self._get("GetTenant", f"tenants/{tenant}"))

    async def list_tenants(self, page: PageRequest) -> Listed[TenantInfo]:
        sent = await self._list("ListTenants", page)
        return Listed([values.of_tenant(one) for one in sent.tenants], sent.next_page_token)

    async def delete_tenant(self, tenant: str) -> None:
        await self._change("DeleteTenant", name=f"tenants/{tenant}")

    async def create_namespace(self, name: Namespace, store: str = "") -> NamespaceInfo:
        sent = await self._change(
            "CreateNamespace",
            parent=f"tenants/{name.tenant}",
            namespace_id=name.namespace,
            namespace={"store": store},
        )
        return values.of_namespace(sent)

    async def get_namespace(self, name: Namespace) -> NamespaceInfo:
        return values.of_namespace(await self._get("GetNamespace", name.full))

    async def list_namespaces(self, tenant: str, page: PageRequest) -> Listed[NamespaceInfo]:
        sent = await self._list("ListNamespaces", page, parent=f"tenants/{tenant}")
        return Listed([values.of_namespace(one) for one in sent.namespaces], sent.next_page_token)

    async def delete_namespace(self, name: Namespace) -> None:
        await self._change("DeleteNamespace", name=name.full)

    async def create_topic(self, spec: TopicSpec) -> Topic:
        name = spec.name
        sent = await self._change(
            "CreateTopic",
            parent=Namespace(name.tenant, name.namespace).full,
            topic_id=name.topic,
            topic=values.to_spec(spec),
        )
        return values.of_topic(sent)

    async def get_topic(self, name: TopicName) -> Topic:
        return values.of_topic(await self._get("GetTopic", name.full))

    async def list_topics(self, namespace: Namespace, page: PageRequest) -> Listed[Topic]:
        sent = await self._list("ListTopics", page, parent=namespace.full)
        return Listed([values.of_topic(one) for one in sent.topics], sent.next_page_token)

    async def delete_topic(self, name: TopicName) -> None:
        await self._change("DeleteTopic", name=name.full)

    async def _get(self, call: str, name: str) -> Any:
        return await self._gets.fetch((call, name), lambda: self._calls.call(call, name=name))

    async def _list(self, call: str, page: PageRequest, **fields: str) -> Any:
        return await self._calls.call(call, page_size=page.size, page_token=page.token, **fields)

    async def _change(self, call: str, **fields: Any) -> Any:
        return await self._calls.call(call, CHANGE_SECONDS, **fields)
