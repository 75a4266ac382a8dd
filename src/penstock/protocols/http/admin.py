"""The routes of the admin API: tenants, namespaces, topics and partitions.

One route for each row of formats/admin_api.py, and one that lists the partitions of a topic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from penstock.formats import api
from penstock.formats.admin_api import (
    NAMESPACE,
    OPERATIONS,
    TENANT,
    TOPIC,
    AdminOperation,
    Resource,
    Verb,
)
from penstock.metadata.catalog import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, PageQuery, PartitionState
from penstock.model import schema
from penstock.model.errors import PenstockError
from penstock.model.names import Namespace
from penstock.model.resources import Durability, NamespaceInfo, TenantInfo, Topic, TopicSpec
from penstock.model.times import long_time_text_us
from penstock.protocols.http import body, requests
from penstock.protocols.http.backend import Backend
from penstock.protocols.http.body import require_json
from penstock.protocols.http.errors import STATUS, BadRequest
from penstock.protocols.http.message_json import partition_json
from penstock.protocols.http.reply import NO_CONTENT, Reply
from penstock.protocols.http.routes import Parameter, Request, Route

_SIZE: Final = {"type": "integer", "minimum": 1, "maximum": PAGE_SIZE_MAX}
PAGE: Final = (
    Parameter("page_size", f"At most {PAGE_SIZE_MAX}; {PAGE_SIZE_DEFAULT} by default.", _SIZE),
    Parameter("page_token", "The next_page_token of the previous page."),
)
_PARTITION: Final = Parameter("partition_value", "List only the partition of this tagged value.")
_SUCCESS: Final = {Verb.LIST: 200, Verb.CREATE: 201, Verb.GET: 200, Verb.DELETE: NO_CONTENT}
_COMMON_ERRORS: Final = {400, 421, 503}
_BODY_ERRORS: Final = {413, 415}
_DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    resource.kind: msgspec.json.Decoder(resource.creation)
    for resource in (TENANT, NAMESPACE, TOPIC)
}


class Administration:
    """Serves everything under /v1/tenants."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        handlers = {
            Verb.LIST: self._list,
            Verb.CREATE: self._create,
            Verb.GET: self._get,
            Verb.DELETE: self._delete,
        }
        return [
            *(_route(row, partial(handlers[row.verb], row)) for row in OPERATIONS),
            Route(
                "GET",
                f"{TOPIC.path}/partitions",
                self.list_partitions,
                "List partitions, page by page.",
                {200: api.PartitionList, **dict.fromkeys((400, 404, 421, 503), api.ErrorReply)},
                parameters=(*PAGE, _PARTITION),
            ),
        ]

    async def _list(self, row: AdminOperation, request: Request) -> Reply:
        resource = row.resource
        parents = () if resource.parent is None else (_path_name(resource.parent, request),)
        page = await self._method(row)(*parents, page_of(request.query("page_size", "page_token")))
        items = [_REPLIES[resource.kind](item) for item in page.items]
        return Reply(200, resource.page(items, page.next_token))

    async def _create(self, row: AdminOperation, request: Request) -> Reply:
        resource = row.resource
        request.query()
        require_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            sent = body.decode(_DECODERS[resource.kind], data)
        parent = "" if resource.parent is None else _path_name(resource.parent, request)
        created = await self._method(row)(*_CREATION_ARGUMENTS[resource.kind](parent, sent))
        return Reply(_SUCCESS[row.verb], _REPLIES[resource.kind](created))

    async def _get(self, row: AdminOperation, request: Request) -> Reply:
        request.query()
        name = _path_name(row.resource, request)
        return Reply(200, _REPLIES[row.resource.kind](await self._method(row)(name)))

    async def _delete(self, row: AdminOperation, request: Request) -> Reply:
        request.query()
        await self._method(row)(_path_name(row.resource, request))
        return Reply(NO_CONTENT, b"")

    def _method(self, row: AdminOperation) -> Any:
        return getattr(self._backend.admin, row.method_name)

    async def list_partitions(self, request: Request) -> Reply:
        name, registry = _path_name(TOPIC, request), self._backend.registry
        query = request.query("page_size", "page_token", _PARTITION.name)
        if _PARTITION.name in query:
            value = requests.partition_text(query[_PARTITION.name])
            state = await registry.get_partition(name, value)
            return Reply(200, api.PartitionList([_partition(state)]))
        page = await registry.list_partitions(name, page_of(query))
        items = [_partition(item) for item in page.items]
        return Reply(200, api.PartitionList(items, page.next_token))


def _route(row: AdminOperation, handler: Any) -> Route:
    errors = _COMMON_ERRORS | {_status(error) for error in row.errors}
    if row.request is not None:
        errors |= _BODY_ERRORS
    return Route(
        row.verb.method,
        row.path,
        handler,
        row.summary,
        {_SUCCESS[row.verb]: row.reply, **dict.fromkeys(sorted(errors), api.ErrorReply)},
        row.request,
        PAGE if row.verb is Verb.LIST else (),
    )


def _status(error: type[PenstockError]) -> int:
    return next(STATUS[kind] for kind in error.__mro__ if kind in STATUS)


# -- requests


def page_of(query: dict[str, str]) -> PageQuery:
    """The page that the parameters PAGE select; raises BadRequest."""
    size = query.get("page_size", str(PAGE_SIZE_DEFAULT))
    if not (size.isascii() and size.isdecimal()) or len(size) > 9:
        raise BadRequest(f"page_size must be a whole number from 1 to {PAGE_SIZE_MAX}")
    return PageQuery(int(size), query.get("page_token", ""))


def _path_name(resource: Resource[Any, Any], request: Request) -> Any:
    """The name of a resource that the path of a request holds; raises NameInvalid, BadRequest."""
    parent = "" if resource.parent is None else _path_name(resource.parent, request)
    return _name(resource, parent, request.path[resource.kind])


def _name(resource: Resource[Any, Any], parent: Any, id_: str) -> Any:
    # A topic's id may also be its full name; an error quotes only a part of a long one.
    if resource is TOPIC:
        return requests.topic_within(parent, id_)
    return resource.name(str(parent), id_)


def _spec(namespace: Namespace, sent: api.CreateTopic) -> TopicSpec:
    columns = None
    if sent.fields is not None:
        columns = schema.schema(
            schema.field(item)
            if isinstance(item, str)
            else schema.column(item.name, item.type, item.nullable)
            for item in sent.fields
        )
    return TopicSpec(
        _name(TOPIC, namespace, sent.topic),
        columns,
        sent.partition_column,
        Durability(sent.durability),
        sent.retention,
    )


_CREATION_ARGUMENTS: Final[dict[str, Callable[[Any, Any], tuple[Any, ...]]]] = {
    TENANT.kind: lambda parent, sent: (_name(TENANT, parent, sent.tenant),),
    NAMESPACE.kind: lambda parent, sent: (_name(NAMESPACE, parent, sent.namespace), sent.store),
    TOPIC.kind: lambda parent, sent: (_spec(parent, sent),),
}
"""The arguments of a creation, from the name of the parent and the body of the request."""


# -- replies


def _tenant(info: TenantInfo) -> api.TenantReply:
    return api.TenantReply(f"tenants/{info.tenant}", long_time_text_us(info.created_us))


def _namespace(info: NamespaceInfo) -> api.NamespaceReply:
    return api.NamespaceReply(info.name.full, long_time_text_us(info.created_us), info.store)


def topic_reply(topic: Topic) -> api.TopicReply:
    """The JSON of a topic."""
    spec = topic.spec
    columns = None
    if spec.schema is not None:
        columns = [
            api.Field(column.name, schema.type_name(column.type), column.nullable)
            for column in spec.schema
        ]
    return api.TopicReply(
        spec.name.full,
        columns,
        spec.partition_column,
        spec.durability.value,
        spec.retention,
        long_time_text_us(topic.created_us),
    )


def _partition(state: PartitionState) -> api.PartitionReply:
    return api.PartitionReply(
        partition_json(state.value), state.partition, state.start, state.next, state.messages
    )


_REPLIES: Final[dict[str, Callable[[Any], msgspec.Struct]]] = {
    TENANT.kind: _tenant,
    NAMESPACE.kind: _namespace,
    TOPIC.kind: topic_reply,
}
