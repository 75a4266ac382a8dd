"""The consumers of all streams that are open in this broker."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from penstock.delivery.consumers.consumers import Consumers
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.records import ConsumerRecords
from penstock.host.tasks import Tasks, Timer
from penstock.model.errors import PenstockError
from penstock.model.resources import Topic
from penstock.streams import SEPARATOR, Stream, Streams
from penstock.wire.jetstream import errors

_events = structlog.get_logger(__name__)


class Deliveries:
    """Loads the consumers of every stream that is opened here, and closes them with the stream."""

    def __init__(self, host: DeliveryHost, streams: Streams) -> None:
        self._host, self._served = host, streams
        self._streams: dict[str, Consumers] = {}
        self._loading: dict[Consumers, asyncio.Task[None]] = {}
        self._tasks = Tasks()
        self._retry_timers: dict[Consumers, Timer] = {}
        """For consumers whose records could not be read, the timer of the next attempt."""
        self._closed = False
        streams.watch(opened=self._opened, closed=self._stream_closed)

    def get(self, stream: str) -> Consumers | None:
        """The consumers of a stream; some may not be loaded yet. None if it is not open."""
        consumers = self._streams.get(stream)
        # A partition is opened as a stream on the first request for it.
        if consumers is None and self._served.get(stream) is not None:
            consumers = self._streams.get(stream)
        return consumers

    async def of(self, stream: str) -> Consumers | None:
        """Load and return the consumers of a stream.

        Raises ApiError while their records cannot be read, so that no existing consumer is created
        a second time.
        """
        await self._served.find(stream)
        consumers = self.get(stream)
        loading = self.loading(stream)
        if loading is not None:
            await asyncio.wait([loading])
        if consumers in self._retry_timers:
            raise errors.SYSTEM_UNAVAILABLE.error()
        return consumers

    async def streams_of(self, topic: Topic) -> list[str]:
        """The streams of a topic that may have consumers, in order of partition.

        Raises MetadataUnavailable.
        """
        name = topic.name.topic
        if topic.spec.partition_column is None:
            served = await self._served.find(name)
            # Another namespace may have a topic of this name, which is no stream.
            return [name] if served is not None and served.topic.name == topic.name else []
        recorded = await ConsumerRecords(self._host, topic.name).partitions()
        streams = {f"{name}{SEPARATOR}{number}": number for number in recorded}
        for stream, consumers in self._streams.items():
            if consumers.stream.topic.name == topic.name:
                streams[stream] = consumers.stream.partition.id
        return sorted(streams, key=streams.__getitem__)

    def loading(self, stream: str) -> asyncio.Future[None] | None:
        """A future to wait for if consumers of the stream are being loaded; otherwise None."""
        consumers = self._streams.get(stream)
        return self._served.opening(stream) if consumers is None else self._loading.get(consumers)

    def count(self, stream: Stream) -> int:
        consumers = self._streams.get(stream.name)
        return 0 if consumers is None else len(consumers)

    async def loaded(self) -> None:
        """Wait until no stream is loading its consumers."""
        while self._loading:
            await asyncio.wait(list(self._loading.values()))

    def leave(self) -> None:
        """End all pull requests with a status, because the broker stops."""
        for consumers in self._streams.values():
            consumers.leave()

    async def close(self) -> None:
        """Write the settlements of all consumers, then close the progress updater."""
        self._closed = True
        await self.loaded()
        for timer in self._retry_timers.values():
            timer.stop()
        for consumers in list(self._streams.values()):
            await consumers.close()
        await self._host.progress.close()

    def _opened(self, stream: Stream) -> None:
        consumers = self._streams[stream.name] = Consumers(self._host, stream)
        self._begin(consumers)

    def _stream_closed(self, stream: Stream) -> None:
        consumers = self._streams.get(stream.name)
        if consumers is not None and consumers.stream is stream:
            del self._streams[stream.name]
            consumers.stream_closed()

    async def _load(self, consumers: Consumers) -> None:
        try:
            await consumers.load()
        except (PenstockError, OSError) as error:
            name = consumers.stream.name
            _events.error("consumers_not_loaded", stream=name, reason=str(error))
            timer = self._retry_timers[consumers] = Timer(partial(self._begin, consumers))
            timer.after(self._host.limits.retry_seconds)
        else:
            self._retry_timers.pop(consumers, None)
        finally:
            del self._loading[consumers]

    def _begin(self, consumers: Consumers) -> None:
        """Start to load a stream's consumers, if the stream is still open."""
        if self._streams.get(consumers.stream.name) is consumers and not self._closed:
            self._loading[consumers] = self._tasks.start(self._load(consumers))
        else:
            self._retry_timers.pop(consumers, None)
