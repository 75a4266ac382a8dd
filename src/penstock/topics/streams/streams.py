"""The streams of this broker: every raw topic of the default namespace, and their configurations.

A stream is a topic; its configuration is a record beside the topic's own, which is written first
and goes with the topic's other keys. A topic that was made elsewhere has none, and is a stream that
keeps its own subject. A partition of a partitioned topic is a stream that only this broker writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

import structlog
from msgspec.structs import replace

from penstock.host.clock import Clock
from penstock.metadata.interface import Put
from penstock.model.errors import FormatError, PenstockError, ResourceExists, ResourceUnknown
from penstock.model.names import DEFAULT_NAMESPACE, Namespace, TopicName
from penstock.model.resources import TopicSpec
from penstock.model.subject_tree import SubjectTree, wild
from penstock.model.subjects import valid_filter, valid_subject
from penstock.model.units import ONLY_PARTITION, Offset
from penstock.topics.host import TopicHost
from penstock.topics.streams.answers import Answer
from penstock.topics.streams.expiry import Expiry
from penstock.topics.streams.mirror import Mirror
from penstock.topics.streams.partition_streams import PartitionStreams
from penstock.topics.streams.publisher import Publisher
from penstock.topics.streams.republish import Republisher, Send
from penstock.topics.streams.schedules import Schedules
from penstock.topics.streams.staging import Staging
from penstock.topics.streams.storing import Storing
from penstock.topics.streams.stream import Stream
from penstock.topics.streams.window import Window
from penstock.topics.topics import OpenTopic, Topics
from penstock.wire import headers
from penstock.wire.jetstream import errors, stream_config
from penstock.wire.jetstream.stream_config import StreamConfig
from penstock.wire.jetstream.stream_rules import check_new, check_update

NANOSECONDS: Final = 1000
"""In a microsecond."""
RECALLED_AT_ONCE: Final = 10_000
_events = structlog.get_logger(__name__)


class Served:
    """A stream and those who work for it."""

    def __init__(self, stream: Stream, clock: Clock, answer: Answer, staging: Staging) -> None:
        self.stream = stream
        self.expiry = Expiry(stream, clock)
        self.window = Window(stream.config.duplicate_window // NANOSECONDS, clock.now_us)
        self.publisher = Publisher(stream, self.window, answer, staging)
        self.schedules = Schedules(stream, Storing(stream, self.window), clock)
        self.mirror: Mirror | None = None
        self.republisher: Republisher | None = None

    def stop(self) -> None:
        self.expiry.stop()
        self.schedules.stop()
        self.publisher.stop()
        if self.mirror is not None:
            self.mirror.stop()
            self.mirror = None
        if self.republisher is not None:
            self.republisher.stop()
            self.republisher = None


class Streams:
    """Finds, makes, changes and removes streams."""

    def __init__(self, topics: Topics, host: TopicHost, answer: Answer) -> None:
        self._topics, self._host, self._answer = topics, host, answer
        self._served: dict[str, Served] = {}
        self._partitions = PartitionStreams(self._came, self._went)
        self._routes: SubjectTree[str] = SubjectTree()
        self._coming: SubjectTree[asyncio.Future[None]] = SubjectTree()
        """Streams that are being made, by their subjects; each is done when it is made."""
        self._making: dict[str, asyncio.Future[None]] = {}
        """The same by their names."""
        self._changing = asyncio.Lock()
        self.staging = Staging(host.clock)
        self.on_change: Callable[[], None] = lambda: None
        """Called when subjects may belong to other streams than before."""
        self.on_stream: Callable[[Stream], None] = lambda stream: None
        """Called with every stream that is served from now on."""
        self.send: Send = lambda *message: None
        """Publishes a message to whoever subscribed to its subject."""
        self.on_gone: Callable[[Stream], None] = lambda stream: None
        """Called with every stream that is not served any more."""

    def open(self) -> None:
        """Serve the topics that are there, and those that will be."""
        for opened in list(self._topics):
            self._opened(opened)
        self._topics.on_opened = self._opened
        self._topics.on_closed = self._closed

    # -- finding

    def get(self, name: str) -> Stream | None:
        """One that is served here; a partition too."""
        served = self._served.get(name)
        return self._partitions.get(name) if served is None else served.stream

    def __iter__(self) -> Iterator[Stream]:
        """All of them, by name."""
        return iter([self._served[name].stream for name in sorted(self._served)])

    def names(self) -> list[str]:
        return sorted(self._served)

    def mirror(self, name: str) -> Mirror | None:
        """How a stream copies another, if it does."""
        served = self._served.get(name)
        return None if served is None else served.mirror

    def mirrors_of(self, origin: str) -> list[Stream]:
        """Streams that may answer direct gets for another, whether that is there or not."""
        return [
            served.stream
            for served in self._served.values()
            if served.mirror is not None
            and served.mirror.source.name == origin
            and served.stream.config.mirror_direct
            and served.mirror.complete
        ]

    def route(self, subject: bytes) -> Publisher | None:
        """Who stores what is published to a subject; what is no subject is not stored."""
        for name in self._routes.find(subject):
            if valid_subject(subject) and _is_text(subject):
                return self._served[name].publisher
        return None

    def route_rollup(self, subject: bytes) -> Publisher | None:
        """Who deletes what a subject with wildcards matches, when it is told to."""
        if not wild(subject) or not _is_text(subject) or not valid_filter(subject):
            return None
        for name in self._routes.find(subject):
            return self._served[name].publisher
        return None

    def coming(self, subject: bytes) -> asyncio.Future[None] | None:
        """Completes when the stream is made that will store a subject; None if there is none."""
        return next(iter(self._coming.find(subject)), None) if self._making else None

    # -- changing

    async def create(self, config: StreamConfig) -> Stream:
        """Make a stream; one of the same configuration may be there. Raises ApiError."""
        async with self._changing:
            await self._others_made(config.name, config.subjects)
            check_new(config)
            existing = self._served.get(config.name)
            if existing is not None:
                if existing.stream.config != config:
                    raise errors.STREAM_NAME_EXISTS.error()
                return existing.stream
            self._check_overlap(config)
            made = self._begin_making(config)
        # Others may be made meanwhile: what they wait for, the disk does for all of them at once.
        try:
            return await self._create(config)
        finally:
            self._end_making(config, made)

    async def update(self, config: StreamConfig) -> Stream:
        """Change a stream's configuration. Raises ApiError."""
        async with self._changing:
            await self._others_made(config.name, config.subjects)
            served = self._served.get(config.name)
            if served is None:
                raise errors.STREAM_NOT_FOUND.error()
            stream = served.stream
            check_update(stream.config, config)
            self._check_overlap(config)
            name = stream.topic.name
            guard = self._host.ownership.guard(name)
            outcome = await self._host.metadata.transaction([guard], [self._record(name, config)])
            if not outcome.succeeded:
                raise errors.STREAM_UPDATE.error("another broker owns the stream now")
            self._unroute(stream)
            await stream.update(config)
            self._route(stream)
            served.window.window_us = config.duplicate_window // NANOSECONDS
            served.publisher.configured()
            served.expiry.start()
            served.schedules.start()
            self._mirror(served)
            self._republish(served)
            return stream

    async def delete(self, name: str) -> None:
        """Remove a stream and all its messages. Raises ApiError."""
        async with self._changing:
            await self._others_made(name, ())
            served = self._served.get(name)
            if served is None:
                raise errors.STREAM_NOT_FOUND.error()
            try:
                await self._topics.delete_topic(served.stream.topic.name)
            except ResourceUnknown:
                raise errors.STREAM_NOT_FOUND.error() from None
            except PenstockError as error:
                raise errors.STREAM_DELETE.error(str(error)) from error

    def close(self) -> None:
        """Do nothing more by itself."""
        self._topics.on_opened = self._topics.on_closed = lambda opened: None
        for served in self._served.values():
            served.stop()

    # -- what the topics tell

    def _opened(self, opened: OpenTopic) -> None:
        name = opened.topic.name
        if Namespace(name.tenant, name.namespace) != DEFAULT_NAMESPACE:
            return
        if opened.topic.spec.partition_column is not None:
            self._partitions.opened(opened)
            return
        config = self._config(opened)
        stream = Stream(name.topic, config, opened, ONLY_PARTITION)
        served = self._served[name.topic] = Served(
            stream, self._host.clock, self._answer, self.staging
        )
        opened.log.admit = stream.admission.check
        opened.log.on_append = stream.keeper.appended
        opened.log.on_commit = stream.committed
        opened.log.on_thrown_away = stream.thrown_away
        stream.measure_soon()
        if stream.next_offset:
            task = asyncio.get_running_loop().create_task(_recall(served, self._host.clock))
            served.publisher.wait_for(task)
        self._route(stream)
        served.expiry.start()
        served.schedules.start()
        self._mirror(served)
        self._republish(served)
        self._came(stream)

    def _closed(self, opened: OpenTopic) -> None:
        self._partitions.closed(opened)
        served = self._served.get(opened.topic.name.topic)
        if served is None or served.stream.opened is not opened:
            return
        del self._served[served.stream.name]
        served.stop()
        self._unroute(served.stream)
        self._went(served.stream)

    # -- details

    async def _create(self, config: StreamConfig) -> Stream:
        name = TopicName(DEFAULT_NAMESPACE.tenant, DEFAULT_NAMESPACE.namespace, config.name)
        record = self._record(name, config)
        try:
            await self._topics.create_with(TopicSpec(name), [record])
        except ResourceExists:
            kept = await self._host.metadata.get(record.key)
            if kept is None or kept.value != record.value:
                raise errors.STREAM_NAME_EXISTS.error() from None
        except PenstockError as error:
            raise errors.STREAM_CREATE.error(str(error)) from error
        made = self._served.get(config.name)
        if made is None:
            raise errors.STREAM_CREATE.error("another broker serves the stream already")
        if config.first_seq > 1:
            await made.stream.log.skip(ONLY_PARTITION, Offset(config.first_seq - 1), "first_seq")
        return made.stream

    async def _others_made(self, name: str, subjects: Sequence[str]) -> None:
        """Wait until no stream of this name, or with one of these subjects, is being made."""
        while (made := self._at_odds(name, subjects)) is not None:
            await asyncio.wait([made])

    def _at_odds(self, name: str, subjects: Sequence[str]) -> asyncio.Future[None] | None:
        if name in self._making:
            return self._making[name]
        coming = (self._coming.colliding(subject.encode()) for subject in subjects)
        return next(chain.from_iterable(coming), None)

    def _begin_making(self, config: StreamConfig) -> asyncio.Future[None]:
        """Whoever publishes to its subjects from now on waits for the stream."""
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._making[config.name] = made
        for subject in config.subjects:
            self._coming.add(subject.encode(), made)
        self.on_change()
        return made

    def _end_making(self, config: StreamConfig, made: asyncio.Future[None]) -> None:
        del self._making[config.name]
        for subject in config.subjects:
            self._coming.remove(subject.encode(), made)
        self.on_change()
        made.set_result(None)

    def _came(self, stream: Stream) -> None:
        self.on_stream(stream)

    def _went(self, stream: Stream) -> None:
        self.on_gone(stream)

    def _config(self, opened: OpenTopic) -> StreamConfig:
        """As recorded; of a topic that was not made as a stream, to keep what bears its name."""
        name = opened.topic.name.topic
        try:
            if opened.stream:
                return stream_config.decode(opened.stream)
        except FormatError as error:
            _events.error("stream_record_damaged", stream=name, reason=str(error))
        taken = self._routes.find(name.encode())
        config = stream_config.normalised(StreamConfig(name=name, allow_direct=True))
        return replace(config, subjects=()) if taken else config

    def _republish(self, served: Served) -> None:
        """Begin to publish again what is stored, or end it, as the configuration says."""
        if served.republisher is not None:
            served.republisher.stop()
            served.republisher = None
        config = served.stream.config.republish
        if config is not None:
            served.republisher = Republisher(served.stream, config, self.send)

    def _mirror(self, served: Served) -> None:
        """Begin to copy, or end it, as the configuration says."""
        source = served.stream.config.mirror
        if source is None and served.mirror is not None:
            served.mirror.stop()
            served.mirror = None
        elif source is not None and served.mirror is None:
            served.mirror = Mirror(served.stream, source, self.get, self._host.clock)
            served.mirror.start()

    def _check_overlap(self, config: StreamConfig) -> None:
        for subject in config.subjects:
            if any(name != config.name for name in self._routes.colliding(subject.encode())):
                raise errors.SUBJECTS_OVERLAP.error()

    def _record(self, name: TopicName, config: StreamConfig) -> Put:
        return Put(self._host.keys.stream(name), stream_config.encode(config))

    def _route(self, stream: Stream) -> None:
        for subject in stream.config.subjects:
            self._routes.add(subject.encode(), stream.name)
        self.on_change()

    def _unroute(self, stream: Stream) -> None:
        for subject in stream.config.subjects:
            self._routes.remove(subject.encode(), stream.name)
        self.on_change()


def _is_text(subject: bytes) -> bool:
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True


async def _recall(served: Served, clock: Clock) -> None:
    """Remember the message ids of the recent past."""
    try:
        await _read_ids(served, clock)
    except PenstockError as error:
        _events.error("message_ids_unknown", stream=served.stream.name, reason=str(error))


async def _read_ids(served: Served, clock: Clock) -> None:
    stream, window = served.stream, served.window
    if not window.window_us:
        return
    offset: int = await stream.offset_at(clock.now_us() - window.window_us)
    async for rows in stream.rows_from(offset, RECALLED_AT_ONCE):
        for place, block in enumerate(rows.headers or ()):
            told = headers.get(block, b"Nats-Msg-Id") if b"Nats-Msg-Id" in block else None
            if told:
                window.add(told, rows.offsets[place] + 1, rows.timestamps[place])
