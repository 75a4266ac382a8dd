"""The JetStream API of streams: create, update, info, list, delete and purge."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.model.subjects import Filter
from penstock.protocols.nats.jetstream.api import Answer, ApiEndpoint, ApiRequest, requested_stream
from penstock.protocols.nats.jetstream.message_api import subject_filter
from penstock.protocols.nats.jetstream.stream_info import StreamDescriber
from penstock.streams import Stream, Streams
from penstock.wire.jetstream import documents, errors, requests, stream_config
from penstock.wire.jetstream.documents import LIST_LIMIT, ClusterInfo, Usage
from penstock.wire.jetstream.overlap import overlap
from penstock.wire.jetstream.requests import PurgeRequest
from penstock.wire.jetstream.stream_config import StreamConfig

PURGE_PART_MESSAGES: Final = 10_000


async def purge(
    stream: Stream, request: PurgeRequest, part_messages: int = PURGE_PART_MESSAGES
) -> int:
    """Delete messages durably; returns how many. Messages that arrive meanwhile are retained.

    Filtered messages are deleted in parts of `part_messages`.
    """
    stop = stream.next_offset if not request.seq else min(request.seq - 1, stream.next_offset)
    subjects = subject_filter(request.filter or ">")
    if subjects is None:
        return 0
    if subjects.everything:
        if request.seq - 1 > stream.next_offset:
            return await _restart(stream, request.seq - 1)
        return await _purge_all(stream, stop, request.keep)
    return await _purge_matching(stream, subjects, stop, request.keep, part_messages)


async def _restart(stream: Stream, next_offset: int) -> int:
    """Purge everything; the next message gets this offset, as it does in nats-server."""
    count = stream.messages
    await stream.purge(next_offset, past_end=True)
    return count


async def _purge_all(stream: Stream, stop: int, keep: int) -> int:
    first = stream.first_offset
    if keep:
        span = range(first, stop + 1)
        stop = span[bisect_left(span, -keep, key=lambda start: -stream.count_all(start, stop))]
    count = stream.count_all(first, stop)
    if count:
        await stream.purge(stop)
    return count


async def _purge_matching(
    stream: Stream, subjects: Filter, stop: int, keep: int, part_messages: int
) -> int:
    first: int = stream.first_offset
    left = total = max(await stream.count(subjects, first, stop) - keep, 0)
    while left:
        offsets = await stream.matching(subjects, first, min(left, part_messages))
        offsets = [offset for offset in offsets if offset < stop]
        if not offsets:
            return total - left
        await stream.delete(offsets, "purge")
        left -= len(offsets)
        first = offsets[-1] + 1
    return total


CREATED: Final = {"did_create": True}
_MIRROR_DIFFERS: Final = {
    True: "origin stream has direct get set, mirror has it disabled",
    False: "origin stream has direct get disabled, mirror has it set",
}


class StreamApi:
    """Endpoints of the stream API."""

    def __init__(
        self,
        streams: Streams,
        describer: StreamDescriber,
        server_name: str,
        count_requests: Callable[[], tuple[int, int]],
    ) -> None:
        """`count_requests` returns how many API requests there were and how many of them failed."""
        self._streams, self._describer = streams, describer
        self._server_name, self._count_requests = server_name, count_requests

    def endpoints(self) -> dict[str, ApiEndpoint]:
        return {
            "INFO": ApiEndpoint(self._account, "account_info_response"),
            "STREAM.CREATE": ApiEndpoint(self._create, "stream_create_response", 1, 1),
            "STREAM.UPDATE": ApiEndpoint(self._update, "stream_update_response", 1, 1),
            "STREAM.INFO": ApiEndpoint(self._info, "stream_info_response", 1, 1),
            "STREAM.NAMES": ApiEndpoint(self._names, "stream_names_response"),
            "STREAM.LIST": ApiEndpoint(self._list, "stream_list_response"),
            "STREAM.DELETE": ApiEndpoint(self._delete, "stream_delete_response", 1, 1),
            "STREAM.PURGE": ApiEndpoint(self._purge, "stream_purge_response", 1, 1, confirms=True),
        }

    async def _account(self, request: ApiRequest) -> Answer:
        # Clients send this request as they connect and must not wait for all streams to open, so
        # the bytes and consumers of unopened streams are not counted.
        streams, count = list(self._streams), len(self._streams.names())
        size = {"memory": 0, "file": 0}
        for stream in streams:
            size[stream.config.storage] += stream.size_bytes
        consumers = sum(map(self._describer.count_consumers, streams))
        usage = Usage(size["memory"], size["file"], count, consumers, *self._count_requests())
        return documents.account_info(usage)

    async def _create(self, request: ApiRequest) -> Answer:
        stream = await self._streams.create(self._config(request))
        return await self._described("stream_create_response", stream, CREATED)

    async def _update(self, request: ApiRequest) -> Answer:
        stream = await self._streams.update(self._config(request))
        return await self._described("stream_update_response", stream, {})

    async def _info(self, request: ApiRequest) -> Answer:
        info_request = requests.parse_info(request.body)
        stream = await requested_stream(self._streams, request)
        config = stream_config.shown(stream.config)
        info = await self._describer.info(stream, config, deleted=info_request.deleted_details)
        info.cluster = ClusterInfo(self._server_name)
        if not info_request.subjects_filter:
            return documents.stream_info(info)
        offset = max(info_request.offset, 0)
        total, page = await self._describer.subjects(stream, info_request.subjects_filter, offset)
        if not total:
            return documents.stream_info(info)
        info.state.subjects = page
        limit = documents.SUBJECTS_LIMIT
        return documents.stream_info(info, total, min(offset, total), limit)

    def _names(self, request: ApiRequest) -> Answer:
        page = requests.parse_page(request.body, "JSApiStreamNamesRequest")
        return documents.names("stream", self._names_of(page.subject), page.offset)

    async def _list(self, request: ApiRequest) -> Answer:
        page_request = requests.parse_page(request.body, "JSApiStreamListRequest")
        names = self._names_of(page_request.subject)
        offset = min(max(page_request.offset, 0), len(names))
        streams = [await self._streams.find(name) for name in names[offset : offset + LIST_LIMIT]]
        page = [
            await self._describer.info(stream, stream_config.listed(stream.config))
            for stream in streams
            if stream is not None
        ]
        return documents.infos("stream", page, len(names), offset)

    async def _delete(self, request: ApiRequest) -> Answer:
        if request.body:
            raise errors.NOT_EMPTY_REQUEST.error()
        await self._streams.delete(request.tokens[0])
        return documents.success("stream_delete_response")

    async def _purge(self, request: ApiRequest) -> Answer:
        purge_request = requests.parse_purge(request.body)
        stream = await requested_stream(self._streams, request)
        if stream.config.sealed:
            raise errors.STREAM_SEALED.error()
        if stream.config.deny_purge:
            raise errors.PURGE_FAILED.error("stream purge not permitted")
        purged = await purge(stream, purge_request)
        return documents.reply("stream_purge_response", {"success": True, "purged": purged})

    async def _described(self, response: str, stream: Stream, more: dict[str, bool]) -> bytes:
        info = await self._describer.info(stream, stream_config.shown(stream.config))
        return documents.reply(response, info, more)

    def _config(self, request: ApiRequest) -> StreamConfig:
        """The requested configuration, with the defaults of everything that it leaves out."""
        requested, pedantic = stream_config.parse_stream_config(request.body, request.tokens[0])
        config = stream_config.normalised(requested, pedantic=pedantic)
        origin = None if config.mirror is None else self._streams.config_of(config.mirror.name)
        if origin is None or origin.allow_direct == config.mirror_direct:
            return config
        if pedantic:
            raise errors.PEDANTIC.error(_MIRROR_DIFFERS[origin.allow_direct])
        return msgspec.structs.replace(config, mirror_direct=origin.allow_direct)

    def _names_of(self, subject: str) -> list[str]:
        """The names of the streams that store subjects of a filter; of all if it is empty."""
        return [
            name
            for name in self._streams.names()
            if not subject
            or ((config := self._streams.config_of(name)) and overlap([subject], config.subjects))
        ]
