"""The JetStream API about streams: make, change, describe, list, remove and empty them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.doors.nats.api import Answer, ApiRequest, Endpoint
from penstock.doors.nats.purge import purge
from penstock.doors.nats.stream_info import StreamDescriber
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.streams import Streams
from penstock.wire.jetstream import documents, errors, requests, stream_config
from penstock.wire.jetstream.documents import LIST_LIMIT, ClusterInfo, Usage
from penstock.wire.jetstream.overlap import overlap
from penstock.wire.jetstream.stream_config import StreamConfig

MADE: Final = {"did_create": True}
_MIRROR_DIFFERS: Final = {
    True: "origin stream has direct get set, mirror has it disabled",
    False: "origin stream has direct get disabled, mirror has it set",
}


class StreamApi:
    """Answers requests about streams."""

    def __init__(
        self,
        streams: Streams,
        describer: StreamDescriber,
        server_name: str,
        asked: Callable[[], tuple[int, int]],
    ) -> None:
        """`asked` tells how many requests there were and how many of them failed."""
        self._streams, self._describer = streams, describer
        self._server_name, self._asked = server_name, asked

    def endpoints(self) -> dict[str, Endpoint]:
        return {
            "INFO": Endpoint(self._account, "account_info_response"),
            "STREAM.CREATE": Endpoint(self._create, "stream_create_response", 1, 1),
            "STREAM.UPDATE": Endpoint(self._update, "stream_update_response", 1, 1),
            "STREAM.INFO": Endpoint(self._info, "stream_info_response", 1, 1),
            "STREAM.NAMES": Endpoint(self._names, "stream_names_response"),
            "STREAM.LIST": Endpoint(self._list, "stream_list_response"),
            "STREAM.DELETE": Endpoint(self._delete, "stream_delete_response", 1, 1),
            "STREAM.PURGE": Endpoint(self._purge, "stream_purge_response", 1, 1),
        }

    async def _account(self, request: ApiRequest) -> Answer:
        streams = list(self._streams)
        held = {"memory": 0, "file": 0}
        for stream in streams:
            held[stream.config.storage] += stream.size_bytes
        consumers = sum(map(self._describer.count_consumers, streams))
        usage = Usage(held["memory"], held["file"], len(streams), consumers, *self._asked())
        return documents.account_info(usage)

    async def _create(self, request: ApiRequest) -> Answer:
        stream = await self._streams.create(self._config(request))
        return await self._described("stream_create_response", stream, MADE)

    async def _update(self, request: ApiRequest) -> Answer:
        stream = await self._streams.update(self._config(request))
        return await self._described("stream_update_response", stream, {})

    async def _info(self, request: ApiRequest) -> Answer:
        asked = requests.parse_info(request.body)
        stream = found(self._streams, request)
        config = stream_config.shown(stream.config)
        info = await self._describer.info(stream, config, deleted=asked.deleted_details)
        info.cluster = ClusterInfo(self._server_name)
        if not asked.subjects_filter:
            return documents.stream_info(info)
        offset = max(asked.offset, 0)
        total, page = await self._describer.subjects(stream, asked.subjects_filter, offset)
        if not total:
            return documents.stream_info(info)
        info.state.subjects = page
        limit = documents.SUBJECTS_LIMIT
        return documents.stream_info(info, total, min(offset, total), limit)

    def _names(self, request: ApiRequest) -> Answer:
        asked = requests.parse_page(request.body, "JSApiStreamNamesRequest")
        names = [stream.name for stream in self._chosen(asked.subject)]
        return documents.names("stream", names, asked.offset)

    async def _list(self, request: ApiRequest) -> Answer:
        asked = requests.parse_page(request.body, "JSApiStreamListRequest")
        chosen = self._chosen(asked.subject)
        offset = min(max(asked.offset, 0), len(chosen))
        page = [
            await self._describer.info(stream, stream_config.listed(stream.config))
            for stream in chosen[offset : offset + LIST_LIMIT]
        ]
        return documents.infos("stream", page, len(chosen), offset)

    async def _delete(self, request: ApiRequest) -> Answer:
        if request.body:
            raise errors.NOT_EMPTY_REQUEST.error()
        await self._streams.delete(request.tokens[0])
        return documents.success("stream_delete_response")

    async def _purge(self, request: ApiRequest) -> Answer:
        asked = requests.parse_purge(request.body)
        stream = found(self._streams, request)
        if stream.config.sealed:
            raise errors.STREAM_SEALED.error()
        if stream.config.deny_purge:
            raise errors.PURGE_FAILED.error("stream purge not permitted")
        told = {"success": True, "purged": await purge(stream, asked)}
        return documents.reply("stream_purge_response", told)

    async def _described(self, response: str, stream: Stream, more: dict[str, bool]) -> bytes:
        info = await self._describer.info(stream, stream_config.shown(stream.config))
        return documents.reply(response, info, more)

    def _config(self, request: ApiRequest) -> StreamConfig:
        """What is asked for, with all that was left open."""
        asked, pedantic = stream_config.parse_stream_config(request.body, request.tokens[0])
        config = stream_config.normalised(asked, pedantic=pedantic)
        origin = None if config.mirror is None else self._streams.get(config.mirror.name)
        if origin is None or origin.config.allow_direct == config.mirror_direct:
            return config
        if pedantic:
            raise errors.PEDANTIC.error(_MIRROR_DIFFERS[origin.config.allow_direct])
        return msgspec.structs.replace(config, mirror_direct=origin.config.allow_direct)

    def _chosen(self, subject: str) -> list[Stream]:
        """Streams that keep some of these subjects; of an empty one, all."""
        streams = list(self._streams)
        if not subject:
            return streams
        return [stream for stream in streams if overlap([subject], stream.config.subjects)]


def found(streams: Streams, request: ApiRequest) -> Stream:
    """The stream that the first token names; raises ApiError."""
    stream = streams.get(request.tokens[0])
    if stream is None:
        raise errors.STREAM_NOT_FOUND.error()
    return stream
