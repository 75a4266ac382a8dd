"""Tenants, namespaces, topics and partitions: made, shown, listed and removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from penstock.doors.http import body, requests
from penstock.doors.http.backend import Backend
from penstock.doors.http.body import demand_json
from penstock.doors.http.errors import BadRequest
from penstock.doors.http.reply import NO_CONTENT, Reply
from penstock.doors.http.routes import Parameter, Request, Route
from penstock.doors.http.shown import shown
from penstock.formats import api
from penstock.metadata.admin import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, PageRequest
from penstock.metadata.offsets import PartitionState
from penstock.model import names, schema
from penstock.model.durability import Durability
from penstock.model.names import Namespace, TopicName
from penstock.model.resources import NamespaceInfo, Retention, TenantInfo, Topic, TopicSpec

_T = TypeVar("_T")
_CREATED: Final = 201
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SIZE: Final = {"type": "integer", "minimum": 1, "maximum": PAGE_SIZE_MAX}
PAGE: Final = (
    Parameter("page_size", f"At most {PAGE_SIZE_MAX}; {PAGE_SIZE_DEFAULT} when left out.", _SIZE),
    Parameter("page_token", "The next_page_token of the page before."),
)
_PARTITION: Final = Parameter("partition_value", "The tagged value of the one partition to show.")
_TENANTS: Final = "/v1/tenants"
_TENANT: Final = _TENANTS + "/{tenant}"
_NAMESPACES: Final = _TENANT + "/namespaces"
_NAMESPACE: Final = _NAMESPACES + "/{namespace}"
_TOPICS: Final = _NAMESPACE + "/topics"
_TOPIC: Final = _TOPICS + "/{topic}"
_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (api.CreateTenant, api.CreateNamespace, api.CreateTopic)
}


class Administration:
    """Serves everything under /v1/tenants."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._admin = backend, backend.admin

    def routes(self) -> list[Route]:
        return [
            _listing(_TENANTS, self.list_tenants, "tenants", api.TenantList),
            _making(_TENANTS, self.create_tenant, "tenant", api.CreateTenant, api.TenantReply),
            _showing(_TENANT, self.get_tenant, "tenant", api.TenantReply),
            _removing(_TENANT, self.delete_tenant, "tenant"),
            _listing(_NAMESPACES, self.list_namespaces, "namespaces", api.NamespaceList),
            _making(
                _NAMESPACES,
                self.create_namespace,
                "namespace",
                api.CreateNamespace,
                api.NamespaceReply,
            ),
            _showing(_NAMESPACE, self.get_namespace, "namespace", api.NamespaceReply),
            _removing(_NAMESPACE, self.delete_namespace, "namespace"),
            _listing(_TOPICS, self.list_topics, "topics", api.TopicList),
            _making(_TOPICS, self.create_topic, "topic", api.CreateTopic, api.TopicReply),
            _showing(_TOPIC, self.get_topic, "topic", api.TopicReply),
            _removing(_TOPIC, self.delete_topic, "topic"),
            _listing(
                _TOPIC + "/partitions", self.list_partitions, "partitions", api.PartitionList
            )._replace(parameters=(*PAGE, _PARTITION)),
        ]

    # -- tenants

    async def list_tenants(self, request: Request) -> Reply:
        found = await self._admin.list_tenants(_page(request))
        return Reply(200, api.TenantList([_tenant(item) for item in found.items], found.next_token))

    async def create_tenant(self, request: Request) -> Reply:
        asked = await self._body(request, api.CreateTenant)
        made = await self._admin.create_tenant(names.tenant(asked.tenant))
        return Reply(_CREATED, _tenant(made))

    async def get_tenant(self, request: Request) -> Reply:
        request.query()
        return Reply(200, _tenant(await self._admin.get_tenant(_tenant_name(request))))

    async def delete_tenant(self, request: Request) -> Reply:
        request.query()
        await self._admin.delete_tenant(_tenant_name(request))
        return Reply(NO_CONTENT, b"")

    # -- namespaces

    async def list_namespaces(self, request: Request) -> Reply:
        found = await self._admin.list_namespaces(_tenant_name(request), _page(request))
        items = [_namespace(item) for item in found.items]
        return Reply(200, api.NamespaceList(items, found.next_token))

    async def create_namespace(self, request: Request) -> Reply:
        asked = await self._body(request, api.CreateNamespace)
        name = names.namespace(f"{_tenant_name(request)}/{asked.namespace}")
        return Reply(_CREATED, _namespace(await self._admin.create_namespace(name, asked.store)))

    async def get_namespace(self, request: Request) -> Reply:
        request.query()
        return Reply(200, _namespace(await self._admin.get_namespace(_namespace_name(request))))

    async def delete_namespace(self, request: Request) -> Reply:
        request.query()
        await self._admin.delete_namespace(_namespace_name(request))
        return Reply(NO_CONTENT, b"")

    # -- topics

    async def list_topics(self, request: Request) -> Reply:
        found = await self._admin.list_topics(_namespace_name(request), _page(request))
        return Reply(
            200, api.TopicList([topic_reply(item) for item in found.items], found.next_token)
        )

    async def create_topic(self, request: Request) -> Reply:
        asked = await self._body(request, api.CreateTopic)
        spec = _spec(_namespace_name(request), asked)
        return Reply(_CREATED, topic_reply(await self._admin.create_topic(spec)))

    async def get_topic(self, request: Request) -> Reply:
        request.query()
        return Reply(200, topic_reply(await self._admin.get_topic(_topic_name(request))))

    async def delete_topic(self, request: Request) -> Reply:
        request.query()
        await self._admin.delete_topic(_topic_name(request))
        return Reply(NO_CONTENT, b"")

    async def list_partitions(self, request: Request) -> Reply:
        name, registry = _topic_name(request), self._backend.registry
        query = request.query("page_size", "page_token", _PARTITION.name)
        if _PARTITION.name in query:
            value = requests.partition_text(query[_PARTITION.name])
            state = await registry.get_partition(name, value)
            return Reply(200, api.PartitionList([_partition(state)]))
        found = await registry.list_partitions(name, page_of(query))
        items = [_partition(item) for item in found.items]
        return Reply(200, api.PartitionList(items, found.next_token))

    async def _body(self, request: Request, kind: type[_T]) -> _T:
        request.query()
        demand_json(request.scope)
        async with self._backend.bodies.read(request.scope, request.receive) as data:
            decoded: _T = body.decode(_DECODERS[kind], data)
            return decoded


# -- what requests say


def _page(request: Request) -> PageRequest:
    return page_of(request.query("page_size", "page_token"))


def page_of(query: dict[str, str]) -> PageRequest:
    size = query.get("page_size", str(PAGE_SIZE_DEFAULT))
    if not (size.isascii() and size.isdecimal()) or len(size) > 9:
        raise BadRequest(f"page_size must be a whole number from 1 to {PAGE_SIZE_MAX}")
    return PageRequest(int(size), query.get("page_token", ""))


def _tenant_name(request: Request) -> str:
    return names.tenant(request.path["tenant"])


def _namespace_name(request: Request) -> Namespace:
    return names.namespace(f"{_tenant_name(request)}/{request.path['namespace']}")


def _topic_name(request: Request) -> TopicName:
    return requests.topic_within(_namespace_name(request), request.path["topic"])


def _spec(namespace: Namespace, asked: api.CreateTopic) -> TopicSpec:
    kept = asked.retention
    columns = None
    if asked.fields is not None:
        columns = schema.schema(
            schema.field(item)
            if isinstance(item, str)
            else schema.column(item.name, item.type, item.nullable)
            for item in asked.fields
        )
    return TopicSpec(
        requests.topic_within(namespace, asked.topic),
        columns,
        asked.partition_column,
        Durability(asked.durability),
        Retention(kept.max_age_seconds, kept.max_bytes, kept.max_messages),
    )


# -- what replies say


def _time(microseconds: int) -> str:
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _tenant(info: TenantInfo) -> api.TenantReply:
    return api.TenantReply(f"tenants/{info.tenant}", _time(info.created_us))


def _namespace(info: NamespaceInfo) -> api.NamespaceReply:
    return api.NamespaceReply(info.name.full, _time(info.created_us), info.store)


def topic_reply(topic: Topic) -> api.TopicReply:
    spec, kept = topic.spec, topic.spec.retention
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
        api.RetentionLimits(kept.age_seconds_max, kept.bytes_max, kept.messages_max),
        _time(topic.created_us),
    )


def _partition(state: PartitionState) -> api.PartitionReply:
    return api.PartitionReply(
        shown(state.value), state.partition, state.start, state.next, state.messages
    )


# -- what the routes are


def _errors(*statuses: int) -> dict[int, Any]:
    return dict.fromkeys((400, *statuses, 421, 503), api.ErrorReply)


def _listing(path: str, handler: Any, what: str, reply: Any) -> Route:
    replies = {200: reply, **_errors(404)}
    return Route("GET", path, handler, f"List {what}, page by page.", replies, parameters=PAGE)


def _making(path: str, handler: Any, what: str, asked: Any, reply: Any) -> Route:
    replies = {_CREATED: reply, **_errors(404, 409, 413, 415, 429)}
    return Route("POST", path, handler, f"Create a {what}.", replies, asked)


def _showing(path: str, handler: Any, what: str, reply: Any) -> Route:
    return Route("GET", path, handler, f"Show a {what}.", {200: reply, **_errors(404)})


def _removing(path: str, handler: Any, what: str) -> Route:
    replies = {NO_CONTENT: None, **_errors(404, 409)}
    return Route("DELETE", path, handler, f"Delete a {what}.", replies)
