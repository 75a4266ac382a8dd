"""Stores the entities of the channel API in the metadata store, with a copy of all in memory.

Lookups read the copy. A write is one transaction that compares the revisions the caller has read,
so that of two concurrent writes one is refused. A watch follows the writes of other brokers.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import structlog

from penstock.delivery.channels.entities import (
    Channel,
    Endpoint,
    Entity,
    Producer,
    ScheduledMessage,
    Versioned,
    decode,
    encode,
)
from penstock.delivery.channels.sealing import Sealing
from penstock.host.notifier import Cancel, Notifier
from penstock.host.tasks import Backoff, Tasks
from penstock.ledger.jobs import JobLedger
from penstock.metadata import (
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataEntry,
    MetadataKeys,
    Put,
    Revision,
)
from penstock.metadata.ownership import NotOwner
from penstock.model.errors import FormatError, PenstockError
from penstock.model.names import TopicName

PAGE_SIZE: Final = 25
RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 5.0
FLOORS_SECONDS: Final = 5.0
"""Minimum time between two writes of the floors of a topic while jobs change."""
_KINDS: Final[dict[str, type[Entity]]] = {
    "producer": Producer,
    "channel": Channel,
    "consumer": Endpoint,
    "scheduled": ScheduledMessage,
}
_events = structlog.get_logger(__name__)
_T = TypeVar("_T", Producer, Channel, Endpoint, ScheduledMessage)


class PageCursor(NamedTuple):
    """The position of an item in a list that is ordered by creation."""

    created_us: int
    id: str


class CursorQuery(NamedTuple):
    """Which items to list: older or newer ones than a cursor, without a cursor the newest."""

    older: PageCursor | None = None
    newer: PageCursor | None = None


class EntityTable(Generic[_T]):
    """Entities of one kind by id, and in the order of their creation."""

    def __init__(self) -> None:
        self._entities: dict[str, Versioned[_T]] = {}
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._entities)

    def __iter__(self) -> Iterator[_T]:
        return (found.entity for found in self._entities.values())

    def find(self, id_: str) -> Versioned[_T] | None:
        return self._entities.get(id_)

    def get(self, id_: str) -> _T | None:
        found = self._entities.get(id_)
        return None if found is None else found.entity

    def revision(self, id_: str) -> Revision:
        """The revision of an entity's key; 0 if there is no such entity."""
        found = self._entities.get(id_)
        return Revision(0) if found is None else found.revision

    def page(self, query: CursorQuery, limit: int = PAGE_SIZE) -> list[_T]:
        """Entities nearest to the cursor of a query, newest first."""
        if query.newer is not None:
            start = bisect_right(self._order, query.newer)
            chosen = self._order[start : start + limit]
        else:
            older = query.older
            stop = len(self._order) if older is None else bisect_left(self._order, older)
            chosen = self._order[max(stop - limit, 0) : stop]
        return [self._entities[id_].entity for _, id_ in reversed(chosen)]

    def oldest_first(self) -> Iterator[_T]:
        return (self._entities[id_].entity for _, id_ in list(self._order))

    def put(self, entity: _T, revision: Revision) -> None:
        self.remove(entity.id, revision)
        self._entities[entity.id] = Versioned(entity, revision)
        insort(self._order, (entity.created_us, entity.id))

    def remove(self, id_: str, before: Revision) -> bool:
        """Remove an entity that is not newer than this revision; returns whether it did."""
        found = self._entities.get(id_)
        if found is None or found.revision > before:
            return False
        del self._entities[id_]
        del self._order[bisect_left(self._order, (found.entity.created_us, id_))]
        return True


class ChannelStore:
    """All producers, channels, endpoints and scheduled messages."""

    def __init__(
        self,
        metadata: Metadata,
        keys: MetadataKeys,
        sealing: Sealing,
        backoff: Backoff | None = None,
    ) -> None:
        """`backoff` spaces the attempts to follow the metadata store after an error."""
        self._metadata, self._keys, self._sealing = metadata, keys.channel_keys, sealing
        self.producers: EntityTable[Producer] = EntityTable()
        self.channels: EntityTable[Channel] = EntityTable()
        self._endpoints: dict[str, EntityTable[Endpoint]] = {}
        self._scheduled: dict[str, EntityTable[ScheduledMessage]] = {}
        self.scheduled_bytes = 0
        """Bytes in the payloads of scheduled messages, all channels together."""
        self._by_key: dict[str, Entity] = {}
        self._changed = Notifier[[str]]()
        self._backoff = backoff or Backoff(RETRY_SECONDS, RETRY_SECONDS_MAX)
        self._tasks = Tasks()

    async def open(self) -> None:
        """Read all entities, then follow what other brokers write."""
        revision = await self._load()
        self._tasks.start(self._follow(revision))

    async def close(self) -> None:
        await self._tasks.cancel()

    def watch(self, observer: Callable[[str], object]) -> Cancel:
        """Call `observer` with the id of a channel whenever it or one of its endpoints changes.

        Returns the function that ends this.
        """
        return self._changed.add(observer)

    def endpoints(self, channel: str) -> EntityTable[Endpoint]:
        """The endpoints of a channel."""
        return self._endpoints.setdefault(channel, EntityTable())

    def scheduled(self, channel: str) -> EntityTable[ScheduledMessage]:
        """The scheduled messages of a channel, sent ones included."""
        return self._scheduled.setdefault(channel, EntityTable())

    async def put(self, *changes: Versioned[Entity]) -> bool:
        """Write entities, all or none; False if one has changed since its revision was read."""
        compares, puts = [], []
        for entity, revision in changes:
            key = self.key(entity)
            target, number = (
                (CompareTarget.MOD_REVISION, revision) if revision else (CompareTarget.VERSION, 0)
            )
            compares.append(Compare(key, target, number))
            puts.append(Put(key, encode(entity, self._sealing)))
        result = await self._metadata.transaction(compares, puts)
        if result.succeeded:
            for entity, _ in changes:
                self._add(self.key(entity), entity, result.revision)
        return result.succeeded

    async def delete(self, entity: Entity, revision: Revision) -> bool:
        """Delete an entity; False if it has changed since its revision was read."""
        key = self.key(entity)
        unchanged = Compare(key, CompareTarget.MOD_REVISION, revision)
        result = await self._metadata.transaction([unchanged], [DeleteKeys(key)])
        if result.succeeded:
            self._drop(key, result.revision)
        return result.succeeded

    async def seed_digest(self) -> bytes:
        """The digest of the seed that was written last; empty if there was none."""
        entry = await self._metadata.get(self._keys.channel_seed())
        return b"" if entry is None else entry.value

    async def put_seed_digest(self, digest: bytes) -> None:
        await self._metadata.put(self._keys.channel_seed(), digest)

    def key(self, entity: Entity) -> str:
        match entity:
            case Producer():
                return self._keys.producer(entity.id)
            case Channel():
                return self._keys.channel(entity.id)
            case Endpoint():
                return self._keys.channel_consumer(entity.channel, entity.id)
            case ScheduledMessage():
                return self._keys.scheduled(entity.channel, entity.id)

    # -- following the metadata store

    async def _load(self) -> Revision:
        """Add all stored entities and drop the others; returns the revision to watch from."""
        prefix, last, more = self._keys.channels(), "", True
        revision, listed = Revision(0), set[str]()
        while more:
            page = await self._metadata.range(prefix, last)
            # Later pages are newer: watching from the first one repeats what they missed.
            revision = revision or page.revision
            for entry in page.entries:
                last = entry.key
                listed.add(last)
                self._read(entry)
            more = page.more
        for key in [key for key in self._by_key if key not in listed]:
            self._drop(key, revision)
        return revision

    async def _follow(self, revision: Revision) -> None:
        since: Revision | None = revision
        while True:
            try:
                if since is None:
                    since = await self._load()
                    self._backoff.reset()
                async for changes in self._metadata.watch(self._keys.channels(), since):
                    for key, value, since in changes:
                        if value is None:
                            self._drop(key, since)
                        else:
                            self._read(MetadataEntry(key, value, since, since, 1, None))
            except PenstockError as error:
                _events.warning("channels_not_followed", reason=str(error))
                since = None
                await self._backoff.pause()

    def _read(self, entry: MetadataEntry) -> None:
        kind = _KINDS.get(entry.key.removeprefix(self._keys.channels()).partition("/")[0])
        if kind is None:
            return
        try:
            entity: Entity = decode(entry, kind, self._sealing)  # type: ignore[type-var]
        except FormatError as error:
            _events.error("record_damaged", key=entry.key, reason=str(error))
        else:
            self._add(entry.key, entity, entry.mod_revision)

    def _table(self, entity: Entity) -> EntityTable[Any]:
        match entity:
            case Producer():
                return self.producers
            case Channel():
                return self.channels
            case Endpoint():
                return self.endpoints(entity.channel)
            case ScheduledMessage():
                return self.scheduled(entity.channel)

    def _add(self, key: str, entity: Entity, revision: Revision) -> None:
        table = self._table(entity)
        if table.revision(entity.id) < revision:
            table.put(entity, revision)
            self.scheduled_bytes += _payload_bytes(entity) - _payload_bytes(self._by_key.get(key))
            self._by_key[key] = entity
            self._notify(entity)

    def _drop(self, key: str, revision: Revision) -> None:
        entity = self._by_key.get(key)
        if entity is not None and self._table(entity).remove(entity.id, revision):
            del self._by_key[key]
            self.scheduled_bytes -= _payload_bytes(entity)
            self._notify(entity)

    def _notify(self, entity: Entity) -> None:
        if isinstance(entity, Channel | Endpoint):
            self._changed(entity.id if isinstance(entity, Channel) else entity.channel)


def _payload_bytes(entity: Entity | None) -> int:
    return len(entity.payload) if isinstance(entity, ScheduledMessage) else 0


class _FloorsRecord(msgspec.Struct, frozen=True):
    floors: dict[int, int]


class JobFloors:
    """Stores how far the jobs of each topic are, for a broker that takes it over without its disk.

    The log of the topic has the exact state of every job. If the log is lost, the messages from an
    endpoint's floor on are delivered again; all jobs before its floor are done.
    """

    def __init__(
        self, metadata: Metadata, keys: MetadataKeys, guard: Callable[[TopicName], Compare]
    ) -> None:
        """`guard` is the condition under which this broker owns a topic."""
        self._metadata, self._keys, self._guard = metadata, keys, guard

    async def load(self, topic: TopicName) -> dict[int, int]:
        """Floors by the number of the endpoint; raises FormatError."""
        entry = await self._metadata.get(self._keys.job_floors(topic))
        if entry is None:
            return {}
        try:
            return msgspec.json.decode(entry.value, type=_FloorsRecord).floors
        except msgspec.DecodeError as error:
            raise FormatError(f"the record {entry.key} is damaged: {error}") from error

    async def save(self, topic: TopicName, floors: Mapping[int, int]) -> None:
        """Store floors; raises NotOwner."""
        put = Put(self._keys.job_floors(topic), msgspec.json.encode(_FloorsRecord(dict(floors))))
        if not (await self._metadata.transaction([self._guard(topic)], [put])).succeeded:
            raise NotOwner(topic)


class TopicFloors:
    """The floors of one topic, stored when they have changed."""

    def __init__(self, floors: JobFloors, topic: TopicName) -> None:
        self._floors, self._topic = floors, topic
        self._saved: Mapping[int, int] = {}
        self._saved_at = 0.0

    @property
    def due(self) -> bool:
        """Whether the last write was at least FLOORS_SECONDS ago."""
        return asyncio.get_running_loop().time() > self._saved_at + FLOORS_SECONDS

    async def load(self) -> dict[int, int]:
        return await self._floors.load(self._topic)

    async def save(self, ledgers: Mapping[int, JobLedger]) -> None:
        """Store the floors of ledgers; a failure is only logged, because the log has the jobs."""
        self._saved_at = asyncio.get_running_loop().time()
        floors = {number: ledger.floor() for number, ledger in ledgers.items()}
        if floors == self._saved:
            return
        try:
            await self._floors.save(self._topic, floors)
            self._saved = floors
        except PenstockError as error:
            _events.warning("job_floors_not_saved", topic=str(self._topic), reason=str(error))
