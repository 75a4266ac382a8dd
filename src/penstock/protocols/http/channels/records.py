"""Handlers for producers, channels and consumers, and for the settings of a consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.delivery.channels import (
    PULL,
    PUSH,
    Channel,
    ChannelService,
    Endpoint,
    EndpointSpec,
    EntityTable,
    PageCursor,
    Producer,
    Versioned,
    is_absolute,
)
from penstock.model.times import time_text_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels.replies import (
    ChannelRefusal,
    channel_path,
    consumer_path,
    empty,
    http_date,
    json_reply,
    page_links,
    producer_path,
)
from penstock.protocols.http.channels.requests import (
    Access,
    cursor_query,
    existing,
    form,
    whole_number,
)
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

ID_CHARACTERS_MAX: Final = 255
LIMIT_MAX: Final = 1_000_000
DISABLED_BY_HAND: Final = "it was disabled by hand"
IF_UNMODIFIED_SINCE: Final = b"if-unmodified-since"
_MISSING: Final = "Bad Request: Update is missing `If-Unmodified-Since` header "
_CHANGED: Final = "Precondition Failed: the resource has another `Last-Modified` or `ETag`"
_CONFLICT: Final = "the consumer has changed meanwhile; retry"

_T = TypeVar("_T", Producer, Channel, Endpoint)


class RecordHandlers:
    """Lists, shows, writes and deletes producers, channels and consumers."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._records, self._access = service.records, Access(service)
        self._bodies = bodies

    async def list_producers(self, request: Request) -> Reply:
        return _list(request, self._records.producers, "/producers", _producer_url)

    async def show_producer(self, request: Request) -> Reply:
        return _show(existing(self._records.producers.find(request.path["producer"])))

    async def put_producer(self, request: Request) -> Reply:
        id_ = _valid_id(request.path["producer"])
        fields = await form(request, self._bodies)
        seen = _unless_stale(request, self._records.producers.find(id_))
        names = fields.get("name", ""), fields.get("token", "")
        return _show_written(await self._records.put_producer(id_, *names, seen))

    async def list_channels(self, request: Request) -> Reply:
        return _list(request, self._records.channels, "/channels", _channel_url)

    async def show_channel(self, request: Request) -> Reply:
        return _show(existing(self._records.channels.find(request.path["channel"])))

    async def put_channel(self, request: Request) -> Reply:
        id_ = _valid_id(request.path["channel"])
        fields = await form(request, self._bodies)
        seen = _unless_stale(request, self._records.channels.find(id_))
        names = fields.get("name", ""), fields.get("token", "")
        return _show_written(await self._records.put_channel(id_, *names, seen))

    async def list_consumers(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        path = f"{channel_path(channel.id)}/consumers"
        return _list(request, self._records.endpoints(channel.id), path, _consumer_url)

    async def show_consumer(self, request: Request) -> Reply:
        return _show(self._access.endpoint(request))

    async def put_consumer(self, request: Request) -> Reply:
        id_ = _valid_id(request.path["consumer"])
        fields = await form(request, self._bodies)
        channel = self._access.channel(request)
        seen = _unless_stale(request, self._records.endpoints(channel.id).find(id_))
        url, kind = fields.get("callbackUrl", ""), fields.get("type", "") or PUSH
        if not is_absolute(url):
            raise BadRequest("Bad Request: `callbackUrl` must be an absolute http or https URL")
        if kind not in (PUSH, PULL):
            raise BadRequest("Bad Request: `type` must be `push` or `pull`")
        spec = EndpointSpec(fields.get("name", ""), fields.get("token", ""), url, kind)
        return _show_written(await self._records.put_endpoint(channel, id_, spec, seen))

    async def delete_consumer(self, request: Request) -> Reply:
        seen = self._access.endpoint(request)
        _unless_stale(request, seen)
        if not await self._records.delete_endpoint(seen):
            raise ChannelRefusal(412, _CHANGED)
        return empty(204)

    # -- settings of a consumer

    async def show_secrets(self, request: Request) -> Reply:
        endpoint = await self._access.own_endpoint(request)
        return json_reply({"Secrets": await self._records.current_secrets(endpoint)})

    async def rotate_secret(self, request: Request) -> Reply:
        endpoint = await self._access.own_endpoint(request)
        async with self._bodies.read(request.scope, request.receive) as data:
            secret = bytes(data).decode("ascii", "replace").strip()
        try:
            changed = await self._records.rotate_secret(endpoint, secret)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        return json_reply({"Secrets": _unless_conflict(changed).secrets})

    async def show_limits(self, request: Request) -> Reply:
        return json_reply(_limits_view(await self._access.own_endpoint(request)))

    async def put_limits(self, request: Request) -> Reply:
        endpoint = await self._access.own_endpoint(request)
        fields = await form(request, self._bodies)
        rate, concurrency = (
            whole_number(name, fields.get(name, "0"), LIMIT_MAX)
            for name in ("ratePerSecond", "concurrency")
        )
        changed = await self._records.limit(endpoint, rate, concurrency)
        return json_reply(_limits_view(_unless_conflict(changed)))

    async def disable(self, request: Request) -> Reply:
        await self._records.disable(await self._access.own_endpoint(request), DISABLED_BY_HAND)
        return empty(202)

    async def enable(self, request: Request) -> Reply:
        await self._records.enable(await self._access.own_endpoint(request))
        return empty(202)


def _valid_id(id_: str) -> str:
    if not 1 <= len(id_) <= ID_CHARACTERS_MAX:
        raise BadRequest(f"Bad Request: an id must have 1 to {ID_CHARACTERS_MAX} characters")
    return id_


def _unless_stale(request: Request, found: Versioned[_T] | None) -> Versioned[_T] | None:
    """The entity to overwrite; raises ChannelRefusal if the client has read another revision."""
    if found is None:
        return None
    tag = request.header(b"if-match")
    if tag is not None:
        if tag.strip('"') != str(found.revision):
            raise ChannelRefusal(412, _CHANGED)
        return found
    since = request.header(IF_UNMODIFIED_SINCE)
    if not since:
        raise BadRequest(_MISSING)
    if since != http_date(found.entity.updated_us):
        raise ChannelRefusal(412, _CHANGED)
    return found


def _unless_conflict(changed: Endpoint | None) -> Endpoint:
    if changed is None:
        raise ChannelRefusal(409, _CONFLICT)
    return changed


# -- views


def _list(request: Request, table: EntityTable[_T], path: str, url: Callable[[_T], str]) -> Reply:
    found = table.page(cursor_query(request))
    links = page_links(path, [PageCursor(entity.created_us, entity.id) for entity in found])
    return json_reply({"Result": [url(entity) for entity in found], "Pages": links, "Links": None})


def _producer_url(producer: Producer) -> str:
    return producer_path(producer.id)


def _channel_url(channel: Channel) -> str:
    return channel_path(channel.id)


def _consumer_url(endpoint: Endpoint) -> str:
    return consumer_path(endpoint.channel, endpoint.id)


def _show_written(written: Versioned[_T] | None) -> Reply:
    if written is None:
        raise ChannelRefusal(412, _CHANGED)
    return _show(written)


def _show(found: Versioned[_T]) -> Reply:
    entity, revision = found
    return json_reply(
        _view(entity),
        (b"last-modified", http_date(entity.updated_us).encode()),
        (b"etag", b'"%d"' % revision),
    )


def _view(entity: Producer | Channel | Endpoint) -> dict[str, Any]:
    view = {
        "ID": entity.id,
        "Name": entity.name,
        "Token": entity.token,
        "ChangedAt": time_text_us(entity.updated_us),
    }
    if isinstance(entity, Channel):
        path = channel_path(entity.id)
        view |= {
            "ConsumersURL": f"{path}/consumers",
            "MessagesURL": f"{path}/messages",
            "BroadcastURL": f"{path}/broadcast",
            "MessagesStatusURL": f"{path}/messages-status",
        }
    elif isinstance(entity, Endpoint):
        view |= {
            "CallbackURL": entity.callback_url,
            "DeadLetterQueueURL": f"{consumer_path(entity.channel, entity.id)}/dlq",
            "Type": entity.type,
        }
    return view


def _limits_view(endpoint: Endpoint) -> dict[str, Any]:
    return {
        "RatePerSecond": endpoint.rate_per_second,
        "Concurrency": endpoint.concurrency,
        "Disabled": bool(endpoint.disabled_reason),
        "DisabledReason": endpoint.disabled_reason,
    }
