"""The consumers of all streams that are served here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from penstock.delivery.consumers.consumers import Consumers
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.records import Records
from penstock.model.errors import PenstockError
from penstock.model.names import TopicName
from penstock.model.resources import Topic
from penstock.topics.streams.partition_streams import SEPARATOR
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream import errors

RETRY_SECONDS: Final = 1.0

_events = structlog.get_logger(__name__)


class Deliveries:
    """Follows the streams: their consumers come and go with them."""

    def __init__(self, host: DeliveryHost, find: Callable[[str], Stream | None]) -> None:
        """`find` has a stream served that is served only when it is asked for."""
        self._host, self._find = host, find
        self._streams: dict[str, Consumers] = {}
        self._loading: dict[Consumers, asyncio.Task[None]] = {}
        self._failed: set[Consumers] = set()
        """Whose records could not be read yet."""
        self._closed = False

    def get(self, stream: str) -> Consumers | None:
        """Those of a stream; perhaps not all are there yet."""
        found = self._streams.get(stream)
        if found is None and self._find(stream) is not None:
            found = self._streams.get(stream)
        return found

    async def of(self, stream: str) -> Consumers | None:
        """Those of a stream, all that are on record.

        Raises ApiError while these cannot be read: a consumer must not be made anew that is there.
        """
        found = self.get(stream)
        loading = self.loading(stream)
        if loading is not None:
            await asyncio.wait([loading])
        if found in self._failed:
            raise errors.SYSTEM_UNAVAILABLE.error()
        return found

    async def streams_of(self, topic: Topic) -> list[str]:
        """The streams of a topic that may have consumers, in order of partition.

        Raises MetadataUnavailable.
        """
        name = topic.name.topic
        if topic.spec.partition_column is None:
            return [name] if self._serves(name, topic.name) else []
        recorded = await Records(self._host, topic.name).partitions()
        streams = {f"{name}{SEPARATOR}{number}": number for number in recorded}
        for stream, consumers in self._streams.items():
            if consumers.stream.topic.name == topic.name:
                streams[stream] = consumers.stream.partition
        return sorted(streams, key=streams.__getitem__)

    def _serves(self, stream: str, topic: TopicName) -> bool:
        """Whether a stream is that topic, and not one of its name in another namespace."""
        found = self.get(stream)
        return found is not None and found.stream.topic.name == topic

    def loading(self, stream: str) -> asyncio.Task[None] | None:
        """What to wait for where a consumer may be on record that is not there yet."""
        found = self._streams.get(stream)
        return None if found is None else self._loading.get(found)

    def count(self, stream: Stream) -> int:
        found = self._streams.get(stream.name)
        return 0 if found is None else len(found)

    def opened(self, stream: Stream) -> None:
        """A stream is served from now on."""
        consumers = self._streams[stream.name] = Consumers(self._host, stream)
        self._begin(consumers)

    def gone(self, stream: Stream) -> None:
        """A stream is not served any more."""
        found = self._streams.get(stream.name)
        if found is not None and found.stream is stream:
            del self._streams[stream.name]
            found.gone()

    async def loaded(self) -> None:
        """Wait until every consumer on record is there."""
        while self._loading:
            await asyncio.wait(list(self._loading.values()))

    def leave(self) -> None:
        """The broker stops: tell whoever waits."""
        for consumers in self._streams.values():
            consumers.leave()

    async def close(self) -> None:
        """Keep what was settled."""
        self._closed = True
        await self.loaded()
        for consumers in list(self._streams.values()):
            await consumers.close()

    async def _load(self, consumers: Consumers) -> None:
        try:
            await consumers.load()
        except (PenstockError, OSError) as error:
            name = consumers.stream.name
            _events.error("consumers_not_loaded", stream=name, reason=str(error))
            self._failed.add(consumers)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._begin, consumers)
        else:
            self._failed.discard(consumers)
        finally:
            del self._loading[consumers]

    def _begin(self, consumers: Consumers) -> None:
        """Read what is on record, if the stream is served still."""
        if self._streams.get(consumers.stream.name) is consumers and not self._closed:
            task = asyncio.get_running_loop().create_task(self._load(consumers))
            self._loading[consumers] = task
        else:
            self._failed.discard(consumers)
