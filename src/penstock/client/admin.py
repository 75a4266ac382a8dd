"""Conversations with the admin API: tenants, namespaces, topics, partitions and consumers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import msgspec

from penstock.client.exchange import BrokerRequest, Conversation, ask
from penstock.formats import api
from penstock.formats.admin_api import NAMESPACE, TENANT, TOPIC, AdminOperation, Resource, Verb
from penstock.formats.api import ConsumerList, ConsumerReply
from penstock.model.names import Namespace, TopicName
from penstock.model.retention import TopicRetention

_T = TypeVar("_T", bound=msgspec.Struct)


def create_tenant(tenant: str) -> Conversation[api.TenantReply]:
    return (yield from _create(TENANT, api.CreateTenant(tenant)))


def list_tenants() -> Conversation[list[api.TenantReply]]:
    return (yield from _list(TENANT))


def delete_tenant(tenant: str) -> Conversation[None]:
    yield from _delete(TENANT, tenant=tenant)


def create_namespace(name: Namespace, store: str) -> Conversation[api.NamespaceReply]:
    body = api.CreateNamespace(name.namespace, store)
    return (yield from _create(NAMESPACE, body, tenant=name.tenant))


def list_namespaces(tenant: str) -> Conversation[list[api.NamespaceReply]]:
    return (yield from _list(NAMESPACE, tenant=tenant))


def delete_namespace(name: Namespace) -> Conversation[None]:
    yield from _delete(NAMESPACE, **name._asdict())


def topic_creation(
    name: TopicName,
    fields: Sequence[str] | None,
    partition_column: str | None,
    durability: str,
    retention: TopicRetention | None,
) -> api.CreateTopic:
    """The body of a `create_topic` request; the broker checks the fields and the durability."""
    return api.CreateTopic(
        name.topic,
        None if fields is None else list(fields),
        partition_column,
        cast(Any, durability),
        retention or TopicRetention(),
    )


def create_topic(name: TopicName, body: api.CreateTopic) -> Conversation[api.TopicReply]:
    return (yield from _create(TOPIC, body, tenant=name.tenant, namespace=name.namespace))


def get_topic(name: TopicName) -> Conversation[api.TopicReply]:
    body = yield from ask(BrokerRequest("GET", topic_path(name)))
    return msgspec.json.decode(body, type=TOPIC.reply)


def list_topics(namespace: Namespace) -> Conversation[list[api.TopicReply]]:
    return (yield from _list(TOPIC, **namespace._asdict()))


def delete_topic(name: TopicName) -> Conversation[None]:
    yield from _delete(TOPIC, **name._asdict())


def list_partitions(name: TopicName) -> Conversation[list[api.PartitionReply]]:
    path = f"{topic_path(name)}/partitions"
    return (yield from _pages(path, api.PartitionList, "partitions"))


def list_consumers(name: TopicName) -> Conversation[list[ConsumerReply]]:
    """The NATS consumers of a topic and their positions."""
    return (yield from _pages(f"{topic_path(name)}/consumers", ConsumerList, "consumers"))


def topic_path(name: TopicName) -> str:
    """The path of a topic in the API."""
    return AdminOperation(Verb.GET, TOPIC).url(**name._asdict())


def _create(resource: Resource[Any, _T], body: msgspec.Struct, **ids: str) -> Conversation[_T]:
    row = AdminOperation(Verb.CREATE, resource)
    request = BrokerRequest(row.verb.method, row.url(**ids), msgspec.json.encode(body))
    return msgspec.json.decode((yield from ask(request)), type=resource.reply)


def _list(resource: Resource[Any, _T], **ids: str) -> Conversation[list[_T]]:
    path = AdminOperation(Verb.LIST, resource).url(**ids)
    return (yield from _pages(path, resource.page, resource.plural))


def _delete(resource: Resource[Any, Any], **ids: str) -> Conversation[None]:
    row = AdminOperation(Verb.DELETE, resource)
    yield from ask(BrokerRequest(row.verb.method, row.url(**ids)))


def _pages(path: str, kind: type[msgspec.Struct], field: str) -> Conversation[list[Any]]:
    items: list[Any] = []
    query: dict[str, str | int] = {"page_size": 1000}
    while True:
        body = yield from ask(BrokerRequest("GET", f"{path}?{urlencode(query)}"))
        page: Any = msgspec.json.decode(body, type=kind)
        items += getattr(page, field)
        if not page.next_page_token:
            return items
        query["page_token"] = page.next_page_token
