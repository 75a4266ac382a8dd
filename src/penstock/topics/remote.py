"""Reads topics of other brokers: from the bucket, and the newest messages from the owner.

    where is the offset? -> in an object: read it from the bucket      (moved meanwhile: ask again)
                         -> at the owner: ask its HTTP server
                         -> nowhere yet: the head
                         -> gone: the earliest that is left

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
from penstock.topics.owners import Owners, OwnerUnavailable
from penstock.topics.source import Place

ATTEMPTS: Final = 3
RETRY_SECONDS: Final = 0.1
TOPICS_KEPT: Final = 64
"""Limit of topics with cached footers."""
OBJECT_READS_MAX: Final = 64
"""Limit of concurrent reads of objects; more wait."""
MESSAGE_BYTES_GUESS: Final = 1 << 10
"""Estimated message size of a topic before the first is read."""
_NO_WAIT: Final = Microseconds(0)


@dataclass(slots=True)
class _Known:
    """What is cached of a topic."""

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
        self._topics: OrderedDict[str, _Known] = OrderedDict()
        self._object_reads = asyncio.Semaphore(OBJECT_READS_MAX)
        self._waits = Tasks()

    async def read(
        self, place: Place, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        known = await self._known(place.topic)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                location = await self._registry.offset_location(
                    place.topic.name, place.value, offset, _NO_WAIT
                )
                if location is None:
                    return AtHead(offset)
                return await self._read(known, place, location, offset, bytes_max)
            except OffsetGone as error:
                return Gone(error.earliest)
            except OwnedElsewhere as error:
                return await self._ask_elsewhere(known, place, offset, bytes_max, error.address)
            except (ObjectMissing, OwnerUnavailable):
                # Merged into another object, uploaded or deleted since the location was returned.
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError

    @contextmanager
    def arrival(
        self, place: Place, offset: Offset, deadline: float
    ) -> Iterator[asyncio.Future[None]]:
        seconds = deadline - asyncio.get_running_loop().time()
        until = Microseconds(self._clock.now_us() + int(seconds * 1_000_000))
        arrival = self._waits.start(self._wait_for(place, offset, until))
        try:
            yield arrival
        finally:
            arrival.cancel()

    async def _wait_for(self, place: Place, offset: Offset, until: Microseconds) -> None:
        try:
            await self._registry.offset_location(place.topic.name, place.value, offset, until)
        except PenstockError:
            # The reader reads again and gets the error, but not at full speed.
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(
        self, known: _Known, place: Place, location: Location, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        offset = max(offset, location.first)
        if isinstance(location, InObject):
            return [await self._from_object(known, place, location, offset, bytes_max)]
        batches = await self._from_owner(known, place, location, offset, bytes_max)
        if not batches:
            reason = f"it has no message from offset {offset} on"
            raise OwnerUnavailable(place.topic.name.full, location.address, reason)
        return batches

    async def _from_object(
        self, known: _Known, place: Place, location: InObject, offset: Offset, bytes_max: int
    ) -> Batch:
        """A batch without deleted messages; empty if the remaining range has none."""
        entry = decode_entry(location.entry)
        span = next(span for span in entry.ranges if span.partition == location.partition)
        try:
            async with self._object_reads:
                batches = await known.reader.read(entry, span, offset, bytes_max)
        except ObjectRowsDamaged as error:
            topic = str(place.topic.name)
            raise DataDamaged(
                topic, location.partition, offset, location.next, str(error)
            ) from error
        if not batches:
            return _nothing(location, offset)
        batch = batches[0].limited_to(location.next - batches[0].first_offset)
        return batch.without(BitMap64.deserialize(location.deleted)) if location.deleted else batch

    async def _from_owner(
        self, known: _Known, place: Place, location: AtOwner, offset: Offset, bytes_max: int
    ) -> list[Batch]:
        wanted = min(bytes_max // known.message_bytes, location.next - offset, MESSAGES_MAX)
        batches = await self._owners.fetch(location.address, place, offset, max(1, wanted))
        messages = sum(batch.messages for batch in batches)
        if messages:
            size = sum(content_bytes(batch.content) for batch in batches)
            known.message_bytes = max(1, size // messages)
        return batches

    async def _ask_elsewhere(
        self, known: _Known, place: Place, offset: Offset, bytes_max: int, address: str
    ) -> list[Batch] | AtHead:
        """Read from the owner that another broker names: only that owner knows where the offset
        is.
        """
        anywhere = AtOwner(PartitionId(-1), offset, Offset(OFFSET_MAX), address)
        batches = await self._from_owner(known, place, anywhere, offset, bytes_max)
        return batches or AtHead(offset)

    async def _known(self, topic: Topic) -> _Known:
        known = self._topics.get(topic.unique)
        if known is None:
            name = topic.name
            info = await self._admin.get_namespace(Namespace(name.tenant, name.namespace))
            store = self._stores.get(info.store)
            reader = ObjectReader(store, self._threads, self._child, name.topic.encode())
            known = _Known(reader)
            self._topics[topic.unique] = known
            while len(self._topics) > TOPICS_KEPT:
                self._topics.popitem(last=False)
        self._topics.move_to_end(topic.unique)
        return known


def _nothing(location: InObject, offset: Offset) -> Batch:
    columns = Columns(b"", pa.array([], pa.binary()))
    none = np.empty(0, np.int64)
    count = location.next - offset
    return Batch(location.partition, offset, count, Microseconds(0), columns, None, none)
