"""Reads topics of other brokers: from the bucket, and the newest messages from the owner.

    locate the offset -> in an object: read it from the bucket     (moved meanwhile: locate again)
                      -> at the owner: fetch from its HTTP server
                      -> not written yet: the head
                      -> deleted: the earliest existing offset

Only footers of objects are cached between reads, so that no reader skips or repeats a message that
is moved meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.tasks import Tasks
from penstock.host.threads import WorkerThreads
from penstock.metadata.catalog import Admin, AtOwner, InObject, Location, OffsetRegistry
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.columns import Columns, content_bytes
from penstock.model.errors import DataDamaged, OffsetGone, OwnedElsewhere, PenstockError
from penstock.model.limits import OFFSET_MAX
from penstock.model.names import Namespace
from penstock.model.resources import Topic
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.objects import ObjectMissing, Stores
from penstock.tiers import ObjectReader, ObjectRowsDamaged, decode_entry
from penstock.topics.fetch_state import MESSAGES_MAX
from penstock.topics.remote.owners import Owners, OwnerUnavailable
from penstock.topics.source import TopicPartition

ATTEMPTS: Final = 3
RETRY_SECONDS: Final = 0.1
CACHED_TOPICS_MAX: Final = 64
"""Limit of topics with cached footers."""
OBJECT_READS_MAX: Final = 64
"""Limit of concurrent reads of objects; more wait."""
MESSAGE_BYTES_GUESS: Final = 1 << 10
"""Estimated message size of a topic before the first is read."""
_NO_WAIT: Final = Microseconds(0)


@dataclass(slots=True)
class _CachedTopic:
    """The reader of a topic's objects, which caches footers, and the size of its messages."""

    reader: ObjectReader
    message_bytes: int = MESSAGE_BYTES_GUESS


class RemoteSource:
    """Implements Source for a node that has neither logs nor manifests."""

    def __init__(
        self,
        admin: Admin,
        registry: OffsetRegistry,
        stores: Stores,
        owners: Owners,
        threads: WorkerThreads,
        child: Child,
        clock: Clock,
    ) -> None:
        self._admin, self._registry, self._stores = admin, registry, stores
        self._owners, self._clock = owners, clock
        self._threads, self._child = threads, child
        self._topics: OrderedDict[str, _CachedTopic] = OrderedDict()
        self._object_reads = asyncio.Semaphore(OBJECT_READS_MAX)
        self._waits = Tasks()

    async def read(
        self, partition: TopicPartition, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        cached = await self._cached(partition.topic)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                location = await self._registry.offset_location(
                    partition.topic.name, partition.value, offset, _NO_WAIT
                )
                if location is None:
                    return AtHead(offset)
                return await self._read(cached, partition, location, offset, bytes_max)
            except OffsetGone as error:
                return Gone(error.earliest)
            except OwnedElsewhere as error:
                return await self._fetch_elsewhere(
                    cached, partition, offset, bytes_max, error.address
                )
            except (ObjectMissing, OwnerUnavailable):
                # The messages were merged, uploaded or deleted since the location was returned.
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError

    @contextmanager
    def arrival(
        self, partition: TopicPartition, offset: Offset, deadline: float
    ) -> Iterator[asyncio.Future[None]]:
        seconds = deadline - asyncio.get_running_loop().time()
        until = Microseconds(self._clock.now_us() + int(seconds * 1_000_000))
        arrival = self._waits.start(self._wait_for(partition, offset, until))
        try:
            yield arrival
        finally:
            arrival.cancel()

    async def _wait_for(
        self, partition: TopicPartition, offset: Offset, until: Microseconds
    ) -> None:
        try:
            await self._registry.offset_location(
                partition.topic.name, partition.value, offset, until
            )
        except PenstockError:
            # The reader reads again and receives the error; the pause bounds its attempts.
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(
        self,
        cached: _CachedTopic,
        partition: TopicPartition,
        location: Location,
        offset: Offset,
        bytes_max: int,
    ) -> list[Batch]:
        offset = max(offset, location.first)
        if isinstance(location, InObject):
            return [await self._from_object(cached, partition, location, offset, bytes_max)]
        batches = await self._from_owner(cached, partition, location, offset, bytes_max)
        if not batches:
            reason = f"it has no message from offset {offset} on"
            raise OwnerUnavailable(partition.topic.name.full, location.address, reason)
        return batches

    async def _from_object(
        self,
        cached: _CachedTopic,
        partition: TopicPartition,
        location: InObject,
        offset: Offset,
        bytes_max: int,
    ) -> Batch:
        """A batch without deleted messages; it is empty if the remaining range has no message."""
        entry = decode_entry(location.entry)
        span = next(span for span in entry.ranges if span.partition == location.partition)
        try:
            async with self._object_reads:
                batches = await cached.reader.read(entry, span, offset, bytes_max)
        except ObjectRowsDamaged as error:
            topic = str(partition.topic.name)
            raise DataDamaged(
                topic, location.partition, offset, location.next, str(error)
            ) from error
        if not batches:
            return _nothing(location, offset)
        batch = batches[0].limited_to(location.next - batches[0].first_offset)
        return batch.without(BitMap64.deserialize(location.deleted)) if location.deleted else batch

    async def _from_owner(
        self,
        cached: _CachedTopic,
        partition: TopicPartition,
        location: AtOwner,
        offset: Offset,
        bytes_max: int,
    ) -> list[Batch]:
        messages_max = min(bytes_max // cached.message_bytes, location.next - offset, MESSAGES_MAX)
        batches = await self._owners.fetch(
            location.address, partition, offset, max(1, messages_max)
        )
        messages = sum(batch.messages for batch in batches)
        if messages:
            size = sum(content_bytes(batch.content) for batch in batches)
            cached.message_bytes = max(1, size // messages)
        return batches

    async def _fetch_elsewhere(
        self,
        cached: _CachedTopic,
        partition: TopicPartition,
        offset: Offset,
        bytes_max: int,
        address: str,
    ) -> list[Batch] | AtHead:
        """Read from the owner that another broker names, which alone can locate the offset."""
        anywhere = AtOwner(PartitionId(-1), offset, Offset(OFFSET_MAX), address)
        batches = await self._from_owner(cached, partition, anywhere, offset, bytes_max)
        return batches or AtHead(offset)

    async def _cached(self, topic: Topic) -> _CachedTopic:
        cached = self._topics.get(topic.unique)
        if cached is None:
            name = topic.name
            info = await self._admin.get_namespace(Namespace(name.tenant, name.namespace))
            store = self._stores.get(info.store)
            reader = ObjectReader(store, self._threads, self._child, name.topic.encode())
            cached = _CachedTopic(reader)
            self._topics[topic.unique] = cached
            while len(self._topics) > CACHED_TOPICS_MAX:
                self._topics.popitem(last=False)
        self._topics.move_to_end(topic.unique)
        return cached


def _nothing(location: InObject, offset: Offset) -> Batch:
    columns = Columns(b"", pa.array([], pa.binary()))
    none = np.empty(0, np.int64)
    count = location.next - offset
    return Batch(location.partition, offset, count, Microseconds(0), columns, None, none)
