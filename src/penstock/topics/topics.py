"""The topics of a broker: finds, opens, creates, deletes and loses them.

The record of a topic is written first and deleted last, so the next start, or the next request,
finishes what a crash interrupts. Only a topic's owner opens or deletes it; the first broker that
receives a request for a topic without an owner becomes its owner. A start lists the topics and
opens none (unopened.py). A lost topic is opened again, unless another broker serves it by then
(lost_topics.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import structlog

from penstock.formats.paths import topic_directory
from penstock.host.notifier import Cancel, Notifier, cancel_all
from penstock.host.tasks import KeyedLocks
from penstock.metadata import (
    LeaseExpired,
    MetadataUnavailable,
    Put,
    SingleFlight,
    StoredTopic,
    TopicState,
)
from penstock.metadata.catalog import Catalog
from penstock.model.errors import (
    LogError,
    LogReadOnly,
    OwnedElsewhere,
    PenstockError,
    ResourceExists,
    ResourceUnknown,
)
from penstock.model.metrics import Metric, single
from penstock.model.names import TopicName
from penstock.model.resources import Topic, TopicSpec
from penstock.topics.host import TopicHost
from penstock.topics.lost_topics import PAUSE_SECONDS, LostTopics, OpenErrors
from penstock.topics.namespaces import Namespaces
from penstock.topics.open_topic import OpenTopic
from penstock.topics.opening import TopicOpener
from penstock.topics.returning import ReturningLogs
from penstock.topics.unopened import UnopenedTopics

RETRY_SECONDS: Final = 1.0
"""How long an error is returned before another attempt to open the topic."""

REOPENING: Final = "messages of a returned disk are being restored; retry"
UNFINISHED_MAX: Final = 1000
"""Limit of topics whose failed creation may be completed by creating them again."""

_events = structlog.get_logger(__name__)


class Topics:
    """The open topics of a broker by name, and the operations that open and close them."""

    def __init__(
        self,
        host: TopicHost,
        *,
        retry_seconds: float = RETRY_SECONDS,
        regain_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """`retry_seconds` is how long an error of opening a topic is returned before a new attempt;
        `regain_seconds` is the pause before an attempt to open a lost topic without a request.
        """
        self._host, self._retry_seconds = host, retry_seconds
        self._catalog = Catalog(host.metadata, host.keys, host.clock)
        self.namespaces = Namespaces(self._catalog)
        self._opener = TopicOpener(host, self._catalog, self.namespaces)
        self._open: dict[TopicName, OpenTopic] = {}
        self._open_errors = OpenErrors()
        self._unfinished: deque[TopicName] = deque(maxlen=UNFINISHED_MAX)
        self._locks: KeyedLocks[TopicName] = KeyedLocks()
        """Held while a topic is opened, closed, created or deleted."""
        self._record_reads: SingleFlight[TopicName, StoredTopic | None] = SingleFlight()
        self._opened = Notifier[[OpenTopic]]()
        self._closed = Notifier[[OpenTopic]]()
        self.unopened = UnopenedTopics(self._open_recorded)
        self._lost_topics = LostTopics(self.find, self._is_settled_elsewhere, regain_seconds)
        self._returning = ReturningLogs(host, self._opener.store_of, self.reopen)
        host.tiers.watch(lost=self._lost)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenTopic]:
        return iter(self._open.values())

    def metrics(self) -> list[Metric]:
        """The current numbers of topics and partitions."""
        partitions = sum(len(opened.partitions) for opened in self)
        return [
            single("penstock_topics_open", "gauge", "Topics that are served here.", len(self)),
            single(
                "penstock_topics_unopened",
                "gauge",
                "Topics not opened since the start.",
                len(self.unopened),
            ),
            single("penstock_partitions", "gauge", "Partitions of open topics.", partitions),
        ]

    async def open(self) -> None:
        """Start, and open every topic; a topic that cannot be opened is logged and skipped.

        Raises MetadataUnavailable.
        """
        await self.start()
        await self.unopened.open_all()

    async def start(self) -> None:
        """List the topics on record; `unopened` opens them. Raises MetadataUnavailable."""
        await self._catalog.ensure_default()
        records = [record async for record in self._catalog.all_topics()]
        names = [record.topic.name for record in records]
        streams = await self._host.metadata.get_many([*map(self._host.keys.stream, names)])
        for record, stream in zip(records, streams, strict=True):
            self.unopened.add(record, b"" if stream is None else stream.value)
        for directory in self._host.logs.log_directories() - set(map(topic_directory, names)):
            _events.error("log_without_topic", directory=directory)
        await self._returning.start(names)

    async def close(self) -> None:
        """Stop opening topics in the background."""
        await self.unopened.close()
        await self._returning.close()
        await self._lost_topics.close()

    def watch(
        self,
        opened: Callable[[OpenTopic], object] | None = None,
        closed: Callable[[OpenTopic], object] | None = None,
    ) -> Cancel:
        """Call `opened` with each topic opened from now on, and `closed` with each closed one.

        Returns the function that ends this.
        """
        return cancel_all(
            *([] if opened is None else [self._opened.add(opened)]),
            *([] if closed is None else [self._closed.add(closed)]),
        )

    # -- finding

    def get(self, name: TopicName) -> OpenTopic:
        """A topic that is open here.

        Raises ResourceUnknown, or the reason why a topic that exists is not served here.
        """
        opened = self._open.get(name)
        if opened is not None:
            return opened
        self._open_errors.raise_last(name)
        raise ResourceUnknown("topic", name.full)

    def serves(self, opened: OpenTopic) -> bool:
        """Whether a topic is still open here."""
        return self._open.get(opened.topic.name) is opened

    async def find(self, name: TopicName) -> OpenTopic:
        """A topic that is open here, or is opened now if no other broker serves it.

        Raises what `get` raises.
        """
        if self.unopened:
            await self.unopened.tried(name)
        if (opened := self._open.get(name)) is not None:
            return opened
        self._open_errors.raise_recent(name)
        await self._look_up(name)
        async with self._locks[name]:
            if name in self._open:
                return self._open[name]
            self._open_errors.raise_recent(name)
            return await self._open_or_note_error(name)

    async def get_topic(self, name: TopicName) -> Topic:
        """The configuration of a topic, whichever broker serves it; raises ResourceUnknown."""
        if (opened := self._open.get(name)) is not None:
            return opened.topic
        return (await self._look_up(name)).topic

    # -- creating and deleting

    async def create_topic(self, spec: TopicSpec, beside: Sequence[Put] = ()) -> Topic:
        """Create a topic, which accepts pushes on return; `beside` is written with its record.

        Completes an earlier creation that failed half-way. Raises LogError if it is not served yet.
        """
        await self.unopened.tried(spec.name)
        async with self._locks[spec.name]:
            topic = await self._record(spec, beside)
            try:
                return (await self._open_topic(spec.name)).topic
            except OwnedElsewhere:  # Another broker has opened it for a request meanwhile.
                return topic
            except (PenstockError, OSError) as error:
                self._unfinished.append(spec.name)
                raise LogError(
                    str(spec.name),
                    f"is recorded but not served yet: {error}; create it again, or restart the "
                    "broker, to complete it",
                ) from error

    async def delete_topic(self, name: TopicName) -> None:
        """Delete the topic and all its data; may be repeated if it fails. Raises OwnedElsewhere."""
        await self.unopened.tried(name)
        async with self._locks[name]:
            if await self._catalog.find_topic(name) is None:
                raise ResourceUnknown("topic", name.full)
            stored = await self._opener.own(name)
            try:
                await self._delete(stored)
            except (PenstockError, OSError) as error:
                raise LogError(
                    str(name),
                    f"is not deleted in full yet: {error}; delete it again, or restart the "
                    "broker, to finish",
                ) from error

    async def reopen(self, name: TopicName) -> None:
        """Close an open topic and open it again, which may fill its gaps."""
        async with self._locks[name]:
            if name not in self._open:
                return
            await self._host.tiers.remove(name, REOPENING)
            self._close(name)
            try:
                await self._open_or_note_error(name)
            except PenstockError as error:
                _events.error("topic_not_reopened", topic=str(name), reason=str(error))
                self._lost_topics.add(name)

    # -- details

    async def _look_up(self, name: TopicName) -> StoredTopic:
        """The record of a topic that is not open; concurrent callers share one read."""
        stored = await self._record_reads.fetch(name, lambda: self._catalog.find_topic(name))
        if stored is None or stored.state is TopicState.DELETING:
            self._open_errors.forget(name)
            raise ResourceUnknown("topic", name.full)
        return stored

    async def _record(self, spec: TopicSpec, beside: Sequence[Put]) -> Topic:
        """Create a record, or return that of an earlier attempt that failed."""
        try:
            return await self._catalog.record_topic(spec, beside)
        except MetadataUnavailable:
            self._unfinished.append(spec.name)
            raise
        except ResourceExists:
            stored = await self._catalog.find_topic(spec.name)
            if spec.name not in self._unfinished or stored is None or stored.topic.spec != spec:
                raise
            return stored.topic

    async def _open_recorded(self, stored: StoredTopic) -> None:
        """Open a topic of the list that the start read, or finish its deletion; log an error."""
        name = stored.topic.name
        async with self._locks[name]:
            try:
                if stored.state is not TopicState.ACTIVE:
                    await self._finish_deletion(name)
                elif name not in self._open:
                    await self._open_or_note_error(name)
            except OwnedElsewhere as error:
                _events.info("topic_elsewhere", topic=str(name), owner=error.broker)
                if self._host.logs.exists(name):
                    self._lost_topics.add(name)
            except (PenstockError, OSError) as error:
                _events.error("topic_unavailable", topic=str(name), reason=str(error))
                if isinstance(error, LeaseExpired | MetadataUnavailable):
                    self._lost_topics.add(name)

    async def _finish_deletion(self, name: TopicName) -> None:
        stored = await self._opener.own(name)
        if stored.state is TopicState.DELETING:
            await self._delete(stored)
        else:
            await self._open_or_note_error(name)

    async def _open_or_note_error(self, name: TopicName) -> OpenTopic:
        """Open a topic; if that fails, remember the error for `get`."""
        try:
            return await self._open_topic(name)
        except (PenstockError, OSError) as error:
            if isinstance(error, OSError):
                error = LogError(str(name), f"cannot be opened: {error}")
            self._open_errors.note(name, error, self._retry_seconds)
            raise error from None

    async def _open_topic(self, name: TopicName) -> OpenTopic:
        opened = self._open[name] = await self._opener.open(name)
        self.namespaces.add_topic(name)
        self._open_errors.forget(name)
        with suppress(ValueError):
            self._unfinished.remove(name)
        self._opened(opened)
        return opened

    async def _delete(self, stored: StoredTopic) -> None:
        """Delete a topic that this broker owns."""
        stored = await self._opener.mark_deleting(stored)
        name = stored.topic.name
        self._close(name)
        self._open_errors.forget(name)
        await self._opener.delete(stored)

    def _close(self, name: TopicName) -> OpenTopic | None:
        if (opened := self._open.pop(name, None)) is not None:
            self.namespaces.remove_topic(name)
            opened.stop()
            self._closed(opened)
        return opened

    def _lost(self, name: TopicName, reason: str) -> None:
        """Close a topic whose ownership ended, and try to open it again later."""
        opened = self._close(name)
        if opened is not None:
            opened.log.refusal = reason
            self._open_errors.note(name, LogReadOnly(str(name), reason), retry_seconds=0.0)
            self._lost_topics.add(name)

    async def _is_settled_elsewhere(self, name: TopicName) -> bool:
        """Whether no WAL here has messages to return to a topic that another broker owns."""
        async with self._locks[name]:
            return name in self._open or await self._host.tiers.is_settled_elsewhere(name)
