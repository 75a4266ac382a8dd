"""The service Admin: requests read, asked of an Admin, answers written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from penstock.formats.rpc import EMPTY, message
from penstock.metadata import rpc_values as values
from penstock.metadata.admin import Admin
from penstock.model import names
from penstock.model.names import Namespace

Handlers: TypeAlias = dict[str, Callable[[Any], Awaitable[Any]]]
"""What answers each call, by its name."""


def admin_handlers(admin: Admin) -> Handlers:
    """Everything of the service."""
    return _tenants(admin) | _namespaces(admin) | _topics(admin)


def _tenants(admin: Admin) -> Handlers:
    async def create(request: Any) -> Any:
        return values.to_tenant(await admin.create_tenant(names.tenant(request.tenant_id)))

    async def get(request: Any) -> Any:
        return values.to_tenant(await admin.get_tenant(names.tenant(request.name)))

    async def list_(request: Any) -> Any:
        listed = await admin.list_tenants(values.of_page(request))
        return message(
            "ListTenantsResponse",
            tenants=map(values.to_tenant, listed.items),
            next_page_token=listed.next_token,
        )

    async def delete(request: Any) -> Any:
        await admin.delete_tenant(names.tenant(request.name))
        return message(EMPTY)

    return {
        "CreateTenant": create,
        "GetTenant": get,
        "ListTenants": list_,
        "DeleteTenant": delete,
    }


def _namespaces(admin: Admin) -> Handlers:
    async def create(request: Any) -> Any:
        name = names.namespace(f"{names.tenant(request.parent)}/{request.namespace_id}")
        return values.to_namespace(await admin.create_namespace(name, request.namespace.store))

    async def get(request: Any) -> Any:
        return values.to_namespace(await admin.get_namespace(names.namespace(request.name)))

    async def list_(request: Any) -> Any:
        tenant = names.tenant(request.parent)
        listed = await admin.list_namespaces(tenant, values.of_page(request))
        return message(
            "ListNamespacesResponse",
            namespaces=map(values.to_namespace, listed.items),
            next_page_token=listed.next_token,
        )

    async def delete(request: Any) -> Any:
        await admin.delete_namespace(names.namespace(request.name))
        return message(EMPTY)

    return {
        "CreateNamespace": create,
        "GetNamespace": get,
        "ListNamespaces": list_,
        "DeleteNamespace": delete,
    }


def _topics(admin: Admin) -> Handlers:
    async def create(request: Any) -> Any:
        name = names.topic(f"{names.namespace(request.parent)}/{request.topic_id}")
        return values.to_topic(await admin.create_topic(values.of_spec(request.topic, name)))

    async def get(request: Any) -> Any:
        return values.to_topic(await admin.get_topic(names.topic(request.name)))

    async def list_(request: Any) -> Any:
        namespace: Namespace = names.namespace(request.parent)
        listed = await admin.list_topics(namespace, values.of_page(request))
        return message(
            "ListTopicsResponse",
            topics=map(values.to_topic, listed.items),
            next_page_token=listed.next_token,
        )

    async def delete(request: Any) -> Any:
        await admin.delete_topic(names.topic(request.name))
        return message(EMPTY)

    return {
        "CreateTopic": create,
        "GetTopic": get,
        "ListTopics": list_,
        "DeleteTopic": delete,
    }
