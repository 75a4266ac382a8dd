"""The streams of this broker: every raw topic of the default namespace, with its configuration.

A stream is a topic; its configuration is a record beside the topic's own, written first and deleted
with the topic's other keys. A topic that was created otherwise has no such record, and is a stream
of the subject that equals its name. A partition of a partitioned topic is a read-only stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, groupby

import structlog
from msgspec.structs import replace

from penstock.host.notifier import Cancel, Notifier, cancel_all
from penstock.metadata import Put
from penstock.model.errors import FormatError, PenstockError, ResourceExists, ResourceUnknown
from penstock.model.names import DEFAULT_NAMESPACE, Namespace, TopicName
from penstock.model.resources import Topic, TopicSpec
from penstock.model.subject_tree import SubjectTree
from penstock.model.subjects import storable_subject
from penstock.model.units import ONLY_PARTITION
from penstock.streams.answers import Answer
from penstock.streams.following import Mirror
from penstock.streams.open_batches import OpenBatches
from penstock.streams.partition_streams import PartitionStreams
from penstock.streams.publisher import Publisher
from penstock.streams.republish import Send
from penstock.streams.served_stream import ServedStream
from penstock.streams.sources import SourceCopy
from penstock.streams.stream import Stream
from penstock.streams.stream_creations import StreamCreations
from penstock.streams.unopened_streams import UnopenedStreams
from penstock.topics import OpenTopic, TopicHost, Topics
from penstock.wire.jetstream import errors, stream_config
from penstock.wire.jetstream.source_rules import check_origins
from penstock.wire.jetstream.stream_config import StreamConfig
from penstock.wire.jetstream.stream_rules import check_new, check_update

_events = structlog.get_logger(__name__)


class Streams:
    """Finds, creates, changes and deletes streams."""

    def __init__(self, topics: Topics, host: TopicHost, answer: Answer, send: Send) -> None:
        """`answer` replies to publishers; `send` publishes a message to the current subscribers."""
        self._topics, self._host = topics, host
        self._answer, self._send = answer, send
        self._stream_opened = Notifier[[Stream]]()
        self._stream_closed = Notifier[[Stream]]()
        self._routes_changed = Notifier[[]]()
        self._stop_watching: Cancel = cancel_all()
        self._served: dict[str, ServedStream] = {}
        self._partitions = PartitionStreams(self._stream_opened, self._stream_closed)
        self._routes: SubjectTree[str] = SubjectTree()
        self._copies: dict[str, list[SourceCopy]] = {}
        """Sources, by the names of the streams that they copy from."""
        self._unopened = UnopenedStreams(topics.unopened, self._routes_changed)
        self._creations = StreamCreations(self._unopened, self._routes_changed)
        self._changing = asyncio.Lock()
        self.open_batches = OpenBatches(host.clock, send)

    def open(self) -> None:
        """Serve the open topics and those that will be opened."""
        for opened in list(self._topics):
            self._opened(opened)
        # Recorded streams first: they own their subjects even if a topic has the name of one.
        for unopened in sorted(self._topics.unopened, key=lambda topic: not topic.stream):
            if _is_default(unopened.name):
                self._unopened.add(unopened, self._config(unopened.record.topic, unopened.stream))
        self._stop_watching = self._topics.watch(self._opened, self._closed)

    def watch(
        self,
        *,
        opened: Callable[[Stream], object] | None = None,
        closed: Callable[[Stream], object] | None = None,
        routes_changed: Callable[[], object] | None = None,
    ) -> Cancel:
        """Register observers; returns the function that ends this.

        `opened` and `closed` are called with every stream that this broker begins or ceases to
        serve, `routes_changed` when a subject may belong to another stream than before.
        """
        return cancel_all(
            *([] if opened is None else [self._stream_opened.add(opened)]),
            *([] if closed is None else [self._stream_closed.add(closed)]),
            *([] if routes_changed is None else [self._routes_changed.add(routes_changed)]),
        )

    # -- finding

    def get(self, name: str) -> Stream | None:
        """A stream or a partition that is served here."""
        served = self._served.get(name)
        return self._partitions.get(name) if served is None else served.stream

    def __iter__(self) -> Iterator[Stream]:
        """Iterate over all streams that are served here, by name."""
        return iter([self._served[name].stream for name in sorted(self._served)])

    async def find(self, name: str) -> Stream | None:
        """A stream or a partition that this broker serves, opened if need be."""
        if (opening := self.opening(name)) is not None:
            await asyncio.wait([opening])
        return self.get(name)

    def opening(self, name: str) -> asyncio.Future[None] | None:
        """Completes when an unopened stream was opened; None for any other."""
        return self._unopened.open(name)

    def names(self) -> list[str]:
        """Names of all streams, open or not."""
        return sorted([*self._served, *self._unopened.configs])

    def config_of(self, name: str) -> StreamConfig | None:
        """The configuration of a stream, open or not."""
        served = self.get(name)
        return self._unopened.configs.get(name) if served is None else served.config

    def mirror(self, name: str) -> Mirror | None:
        """The mirror that fills a stream, if it is one."""
        served = self._served.get(name)
        return None if served is None else served.mirror

    def sources(self, name: str) -> list[SourceCopy]:
        """The sources that a stream copies."""
        served = self._served.get(name)
        return [] if served is None or served.sources is None else list(served.sources)

    def mirrors_of(self, origin: str) -> list[Stream]:
        """Complete mirrors that may answer direct gets for an origin, even if that does not
        exist.
        """
        return [
            served.stream
            for served in self._served.values()
            if served.mirror is not None
            and served.mirror.source.name == origin
            and served.stream.config.mirror_direct
            and served.mirror.complete
        ]

    def route(self, subject: bytes) -> Publisher | None:
        """The publisher of the stream that stores a subject; None if there is none or it is no
        valid subject.
        """
        for name in self._routes.find(subject):
            if storable_subject(subject) and _is_text(subject):
                return self._served[name].publisher
        return None

    def coming(self, subject: bytes) -> asyncio.Future[None] | None:
        """Completes when the stream of a subject is created or opened; None if there is none."""
        creation = self._creations.of_subject(subject)
        return creation or self._unopened.open_first(self._unopened.storing(subject))

    async def find_storing(self, subject: bytes) -> Stream | None:
        """The stream that stores a subject, opened if need be."""
        if (opening := self.coming(subject)) is not None:
            await asyncio.wait([opening])
        publisher = self.route(subject)
        return None if publisher is None else publisher.stream

    # -- changing

    async def create(self, config: StreamConfig) -> Stream:
        """Create a stream, or return one with the same configuration. Raises ApiError."""
        async with self._changing:
            await self._creations.wait_for(config.name, config.subjects)
            check_new(config)
            check_origins(config, self.config_of)
            existing = self._served.get(config.name)
            if existing is not None:
                if existing.stream.config != config:
                    raise errors.STREAM_NAME_EXISTS.error()
                return existing.stream
            self._check_overlap(config)
            end_creation = self._creations.begin(config)
        # Outside the lock, so that streams created at the same time share the disk's flushes.
        try:
            return await self._create(config)
        finally:
            end_creation()

    async def update(self, config: StreamConfig) -> Stream:
        """Change a stream's configuration. Raises ApiError."""
        async with self._changing:
            await self._creations.wait_for(config.name, config.subjects)
            served = self._served.get(config.name)
            if served is None:
                raise errors.STREAM_NOT_FOUND.error()
            stream = served.stream
            check_update(stream.config, config)
            check_origins(config, self.config_of)
            self._check_overlap(config)
            config, name = stream_config.with_seal(config), stream.topic.name
            guard = self._host.ownership.guard(name)
            outcome = await self._host.metadata.transaction([guard], [self._record(name, config)])
            if not outcome.succeeded:
                raise errors.STREAM_UPDATE.error("another broker owns the stream now")
            self._unroute(stream)
            await stream.update(config)
            self._route(stream)
            served.apply_config()
            served.update_mirror(self.get)
            self._source(served)
            served.update_republisher(self._send)
            return stream

    async def delete(self, name: str) -> None:
        """Delete a stream and all its messages. Raises ApiError."""
        async with self._changing:
            await self._creations.wait_for(name, ())
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
        """Stop the background work of all streams."""
        self._stop_watching()
        for served in self._served.values():
            served.stop()

    # -- observers of the topics

    def _opened(self, opened: OpenTopic) -> None:
        name = opened.topic.name
        if not _is_default(name):
            return
        config = self._config(opened.topic, opened.stream)
        if config is None:
            self._partitions.opened(opened)
            return
        copies = partial(self._copies_of, name.topic)
        stream = Stream(name.topic, config, opened, ONLY_PARTITION, copies)
        served = self._served[name.topic] = ServedStream(
            stream, self._host.clock, self._answer, self.open_batches
        )
        opened.add_admission(stream.admission.check)
        opened.observe(stream.enforcer)
        opened.observe(stream)
        stream.measure_if_limited()
        if (restoring := served.message_ids.start()) is not None:
            served.publisher.check_after(restoring)
        self._route(stream)
        served.expiry.start()
        served.schedules.start()
        served.update_mirror(self.get)
        self._source(served)
        served.update_republisher(self._send)
        self._stream_opened(stream)

    def _closed(self, opened: OpenTopic) -> None:
        self._partitions.closed(opened)
        served = self._served.get(opened.topic.name.topic)
        if served is None or served.stream.opened is not opened:
            return
        del self._served[served.stream.name]
        if served.sources is not None:
            self._find_copies()
        served.stop()
        self._unroute(served.stream)
        self._stream_closed(served.stream)

    # -- details

    async def _create(self, config: StreamConfig) -> Stream:
        name = TopicName(DEFAULT_NAMESPACE.tenant, DEFAULT_NAMESPACE.namespace, config.name)
        record, first = self._record(name, config), max(config.first_seq - 1, 0)
        try:
            await self._topics.create_topic(TopicSpec(name, first_offset=first), [record])
        except ResourceExists:
            existing = await self._host.metadata.get(record.key)
            if existing is None or existing.value != record.value:
                raise errors.STREAM_NAME_EXISTS.error() from None
        except PenstockError as error:
            raise errors.STREAM_CREATE.error(str(error)) from error
        served = self._served.get(config.name)
        if served is None:
            raise errors.STREAM_CREATE.error("another broker serves the stream already")
        if served.sources is not None:
            served.sources.load_soon()
        return served.stream

    def _config(self, topic: Topic, record: bytes) -> StreamConfig | None:
        """The recorded configuration; without a record, that of a stream of the topic's name.

        None for a partitioned topic: only its partitions are streams.
        """
        if topic.spec.partition_column is not None:
            return None
        name = topic.name.topic
        try:
            if record:
                return stream_config.decode(record)
        except FormatError as error:
            _events.error("stream_record_damaged", stream=name, reason=str(error))
        storing = chain(self._routes.find(name.encode()), self._unopened.storing(name.encode()))
        config = stream_config.normalised(StreamConfig(name=name, allow_direct=True))
        if any(other != name for other in storing):
            return replace(config, subjects=())
        return config

    def _source(self, served: ServedStream) -> None:
        """Copy from the sources that the configuration names."""
        had = served.sources is not None
        # A new stream copies once its first sequence is set.
        served.update_sources(self.get, begin=served.stream.name not in self._creations)
        if had or served.sources is not None:
            self._find_copies()

    def _find_copies(self) -> None:
        copies = [copy for served in self._served.values() for copy in served.sources or ()]
        copies.sort(key=lambda copy: copy.source.name)
        grouped = groupby(copies, key=lambda copy: copy.source.name)
        self._copies = {name: list(of_name) for name, of_name in grouped}

    def _copies_of(self, origin: str) -> list[SourceCopy]:
        """Sources of other streams that copy from this one."""
        return self._copies.get(origin, [])

    def _check_overlap(self, config: StreamConfig) -> None:
        for subject in config.subjects:
            if any(name != config.name for name in self._routes.colliding(subject.encode())):
                raise errors.SUBJECTS_OVERLAP.error()

    def _record(self, name: TopicName, config: StreamConfig) -> Put:
        return Put(self._host.keys.stream(name), stream_config.encode(config))

    def _route(self, stream: Stream) -> None:
        for subject in stream.config.subjects:
            self._routes.add(subject.encode(), stream.name)
        self._routes_changed()

    def _unroute(self, stream: Stream) -> None:
        for subject in stream.config.subjects:
            self._routes.remove(subject.encode(), stream.name)
        self._routes_changed()


def _is_default(name: TopicName) -> bool:
    return Namespace(name.tenant, name.namespace) == DEFAULT_NAMESPACE


def _is_text(subject: bytes) -> bool:
    try:
        subject.decode()
    except UnicodeDecodeError:
        return False
    return True
