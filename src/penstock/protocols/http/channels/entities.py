"""Producers, channels and consumers: shown, listed, written, removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from penstock.delivery.channels.seed import SeedConsumer, absolute, blank
from penstock.delivery.channels.service import ChannelService
from penstock.metadata import Revision
from penstock.metadata.channel_records import PULL, PUSH, Channel, Consumer, Producer
from penstock.metadata.channel_store import Shelf
from penstock.model.times import time_text_us
from penstock.protocols.http.body import Bodies
from penstock.protocols.http.channels import pages, paths
from penstock.protocols.http.channels.access import Access
from penstock.protocols.http.channels.pages import PAGE_SIZE, PageCursor
from penstock.protocols.http.channels.replies import (
    ChannelRefusal,
    empty,
    http_date,
    json,
    not_found,
)
from penstock.protocols.http.channels.requests import IF_UNMODIFIED_SINCE, form
from penstock.protocols.http.errors import BadRequest
from penstock.protocols.http.reply import Reply
from penstock.protocols.http.routes import Request

ID_CHARACTERS_MAX: Final = 255
_MISSING: Final = "Bad Request: Update is missing `If-Unmodified-Since` header "
_CHANGED: Final = "Precondition Failed: the resource has another `Last-Modified` or `ETag`"

_T = TypeVar("_T", Producer, Channel, Consumer)


class EntityPages:
    """Serves producers, channels and consumers."""

    def __init__(self, service: ChannelService, bodies: Bodies) -> None:
        self._service, self._bodies = service, bodies
        self._store, self._access = service.store, Access(service)

    # -- producers

    async def producers(self, request: Request) -> Reply:
        return _listed(request, self._store.producers, "/producers", lambda p: paths.producer(p.id))

    async def producer(self, request: Request) -> Reply:
        return self._shown(self._store.producers, request.path["producer"], self._producer)

    async def put_producer(self, request: Request) -> Reply:
        id_, shelf = _checked(request.path["producer"]), self._store.producers
        fields = await form(request, self._bodies)
        seen = _seen(request, shelf, id_)
        name, token = fields.get("name", ""), fields.get("token", "")
        _demand(await self._service.entities.put_producer(id_, name, token, seen))
        return self._shown(shelf, id_, self._producer)

    # -- channels

    async def channels(self, request: Request) -> Reply:
        return _listed(request, self._store.channels, "/channels", lambda c: paths.channel(c.id))

    async def channel(self, request: Request) -> Reply:
        return self._shown(self._store.channels, request.path["channel"], self._channel)

    async def put_channel(self, request: Request) -> Reply:
        id_, shelf = _checked(request.path["channel"]), self._store.channels
        fields = await form(request, self._bodies)
        seen = _seen(request, shelf, id_)
        name, token = fields.get("name", ""), fields.get("token", "")
        _demand(await self._service.entities.put_channel(id_, name, token, seen))
        return self._shown(shelf, id_, self._channel)

    # -- consumers

    async def consumers(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        path = f"{paths.channel(channel.id)}/consumers"
        shelf = self._store.consumers(channel.id)
        return _listed(request, shelf, path, lambda c: paths.consumer(channel.id, c.id))

    async def consumer(self, request: Request) -> Reply:
        shelf = self._store.consumers(self._access.channel(request).id)
        return self._shown(shelf, request.path["consumer"], self._consumer)

    async def put_consumer(self, request: Request) -> Reply:
        id_ = _checked(request.path["consumer"])
        fields = await form(request, self._bodies)
        channel = self._access.channel(request)
        shelf = self._store.consumers(channel.id)
        seen = _seen(request, shelf, id_)
        url, kind = fields.get("callbackUrl", ""), fields.get("type", "") or PUSH
        if not absolute(url):
            raise BadRequest("Bad Request: `callbackUrl` must be an absolute http or https URL")
        if kind not in (PUSH, PULL):
            raise BadRequest("Bad Request: `type` must be `push` or `pull`")
        named = fields.get("name", ""), fields.get("token", "")
        asked = blank(SeedConsumer(channel.id, id_, *named, url, kind))
        _demand(await self._service.entities.put_consumer(channel, asked, seen))
        return self._shown(shelf, id_, self._consumer)

    async def delete_consumer(self, request: Request) -> Reply:
        channel = self._access.channel(request)
        consumer = self._access.consumer(request, channel)
        seen = _seen(request, self._store.consumers(channel.id), consumer.id)
        _demand(await self._service.entities.delete_consumer(consumer, seen))
        return empty(204)

    # -- details

    def _shown(self, shelf: Shelf[_T], id_: str, view: Callable[[_T], dict[str, Any]]) -> Reply:
        found = shelf.get(id_)
        if found is None:
            raise not_found()
        return json(
            view(found),
            (b"last-modified", http_date(found.updated_us).encode()),
            (b"etag", b'"%d"' % shelf.revision(id_)),
        )

    def _named(self, record: Producer | Channel | Consumer) -> dict[str, Any]:
        return {
            "ID": record.id,
            "Name": record.name,
            "Token": record.token,
            "ChangedAt": time_text_us(record.updated_us),
        }

    def _producer(self, producer: Producer) -> dict[str, Any]:
        return self._named(producer)

    def _channel(self, channel: Channel) -> dict[str, Any]:
        path = paths.channel(channel.id)
        return self._named(channel) | {
            "ConsumersURL": f"{path}/consumers",
            "MessagesURL": f"{path}/messages",
            "BroadcastURL": f"{path}/broadcast",
            "MessagesStatusURL": f"{path}/messages-status",
        }

    def _consumer(self, consumer: Consumer) -> dict[str, Any]:
        return self._named(consumer) | {
            "CallbackURL": consumer.callback_url,
            "DeadLetterQueueURL": f"{paths.consumer(consumer.channel, consumer.id)}/dlq",
            "Type": consumer.type,
        }


def _checked(id_: str) -> str:
    if not 1 <= len(id_) <= ID_CHARACTERS_MAX:
        raise BadRequest(f"Bad Request: an id must have 1 to {ID_CHARACTERS_MAX} characters")
    return id_


def _seen(request: Request, shelf: Shelf[_T], id_: str) -> Revision:
    """The revision to overwrite; raises ChannelRefusal if the caller has read another one."""
    found, revision = shelf.get(id_), shelf.revision(id_)
    if found is None:
        return revision
    tag = request.header(b"if-match")
    if tag is not None:
        if tag.strip('"') != str(revision):
            raise ChannelRefusal(412, _CHANGED)
        return revision
    since = request.header(IF_UNMODIFIED_SINCE)
    if not since:
        raise BadRequest(_MISSING)
    if since != http_date(found.updated_us):
        raise ChannelRefusal(412, _CHANGED)
    return revision


def _demand(written: bool) -> None:
    if not written:
        raise ChannelRefusal(412, _CHANGED)


def _listed(request: Request, shelf: Shelf[_T], path: str, url: Callable[[_T], str]) -> Reply:
    wanted = pages.wanted(request)
    if wanted.newer is not None:
        found = shelf.newer(wanted.newer, PAGE_SIZE)
    else:
        found = shelf.older(wanted.older, PAGE_SIZE)
    ends = [PageCursor(item.created_us, item.id) for item in (found[:1] + found[-1:])]
    links = pages.links(path, ends[0], ends[-1]) if ends else {}
    return json({"Result": [url(item) for item in found], "Pages": links, "Links": None})
