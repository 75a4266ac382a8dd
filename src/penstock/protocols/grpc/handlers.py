"""The gRPC services Admin and OffsetRegistry: a handler for each call.

A handler parses the names of its request, performs the call on an `Admin` or an `OffsetRegistry`,
and converts the result. Handlers raise PenstockError; the server maps it to a status.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from penstock.formats.admin_api import NAMESPACE, OPERATIONS, TENANT, TOPIC, AdminOperation, Verb
from penstock.formats.rpc import message
from penstock.metadata.catalog import Admin, OffsetRegistry
from penstock.metadata.remote import (
    from_message,
    read_offset,
    read_page,
    read_partition_value,
    read_time,
    to_location,
    to_message,
)
from penstock.model import names
from penstock.model.resources import TopicSpec

Handler: TypeAlias = Callable[[Any], Awaitable[Any]]
Handlers: TypeAlias = dict[str, Handler]
"""The handler of each call, by the name of the call."""

_CREATION_ARGUMENTS: Final[dict[str, Callable[[Any, Any], tuple[Any, ...]]]] = {
    TENANT.kind: lambda name, _: (name,),
    NAMESPACE.kind: lambda name, sent: (name, sent.store),
    TOPIC.kind: lambda name, sent: (from_message(TopicSpec, sent, name=name),),
}
"""The arguments of a creation, from the name and the message of the new resource."""


def admin_handlers(admin: Admin) -> Handlers:
    """The handlers of the service Admin, one for each row of the admin API."""
    return {
        operation.call: _ADMIN_HANDLERS[operation.verb](
            operation, getattr(admin, operation.method_name)
        )
        for operation in OPERATIONS
    }


def offset_handlers(registry: OffsetRegistry) -> Handlers:
    """The handlers of the service OffsetRegistry."""

    async def offset_location(request: Any) -> Any:
        location = await registry.offset_location(
            names.topic(request.topic),
            read_partition_value(request),
            read_offset(request.offset),
            read_time(request.deadline),
        )
        return to_location(location)

    async def get_partition(request: Any) -> Any:
        topic = names.topic(request.topic)
        return to_message(await registry.get_partition(topic, read_partition_value(request)))

    async def list_partitions(request: Any) -> Any:
        topic = names.topic(request.parent)
        page = await registry.list_partitions(topic, read_page(request))
        return message(
            "ListPartitionsResponse",
            partitions=map(to_message, page.items),
            next_page_token=page.next_token,
        )

    return {
        "OffsetLocation": offset_location,
        "GetPartition": get_partition,
        "ListPartitions": list_partitions,
    }


def _create(operation: AdminOperation, method: Any) -> Handler:
    resource = operation.resource

    async def create(request: Any) -> Any:
        parent = "" if resource.parent is None else request.parent
        name = resource.name(parent, getattr(request, f"{resource.kind}_id"))
        sent = getattr(request, resource.kind)
        return to_message(await method(*_CREATION_ARGUMENTS[resource.kind](name, sent)))

    return create


def _get(operation: AdminOperation, method: Any) -> Handler:
    async def get(request: Any) -> Any:
        return to_message(await method(operation.resource.parse(request.name)))

    return get


def _list(operation: AdminOperation, method: Any) -> Handler:
    resource = operation.resource

    async def list_(request: Any) -> Any:
        parents = () if resource.parent is None else (resource.parent.parse(request.parent),)
        page = await method(*parents, read_page(request))
        items = map(to_message, page.items)
        return message(
            f"{operation.call}Response",
            **{resource.plural: items, "next_page_token": page.next_token},
        )

    return list_


def _delete(operation: AdminOperation, method: Any) -> Handler:
    async def delete(request: Any) -> Any:
        await method(operation.resource.parse(request.name))
        return message("google.protobuf.Empty")

    return delete


_ADMIN_HANDLERS: Final = {
    Verb.CREATE: _create,
    Verb.GET: _get,
    Verb.LIST: _list,
    Verb.DELETE: _delete,
}
