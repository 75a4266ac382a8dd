"""All producers, channels, consumers and scheduled messages, in memory and in the metadata store.

Reads are looks into dictionaries. A write is one transaction that compares what was read, so of two
at the same time one is refused. What other brokers write is followed by a watch.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

import structlog

from penstock.metadata.channel_records import (
    Channel,
    Consumer,
    Kept,
    Producer,
    Record,
    Scheduled,
    decode,
    encode,
)
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    Metadata,
    MetadataEntry,
    Put,
    Revision,
)
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.sealing import Sealing
from penstock.model.errors import FormatError, PenstockError

RETRY_SECONDS: Final = 1.0
_KINDS: Final = {
    "producer": Producer,
    "channel": Channel,
    "consumer": Consumer,
    "scheduled": Scheduled,
}
_events = structlog.get_logger(__name__)
_T = TypeVar("_T", Producer, Channel, Consumer, Scheduled)


class Shelf(Generic[_T]):
    """Records of one kind by id, and in the order they were made."""

    def __init__(self) -> None:
        self._records: dict[str, tuple[_T, Revision]] = {}
        self._order: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[_T]:
        return (record for record, _ in self._records.values())

    def get(self, id_: str) -> _T | None:
        found = self._records.get(id_)
        return None if found is None else found[0]

    def revision(self, id_: str) -> Revision:
        """Of the record's key; 0 where there is none."""
        found = self._records.get(id_)
        return Revision(0) if found is None else found[1]

    def older(self, place: tuple[int, str] | None, limit: int) -> list[_T]:
        """Those made before this place, newest first."""
        stop = len(self._order) if place is None else bisect_left(self._order, place)
        return [self._records[id_][0] for _, id_ in self._order[max(stop - limit, 0) : stop][::-1]]

    def newer(self, place: tuple[int, str], limit: int) -> list[_T]:
        """Those made behind this place, the nearest `limit`, newest first."""
        start = bisect_right(self._order, place)
        return [self._records[id_][0] for _, id_ in self._order[start : start + limit][::-1]]

    def oldest(self) -> Iterator[_T]:
        """All, oldest first."""
        return (self._records[id_][0] for _, id_ in list(self._order))

    def put(self, record: _T, revision: Revision) -> None:
        self.remove(record.id, revision)
        self._records[record.id] = record, revision
        insort(self._order, (record.created_us, record.id))

    def remove(self, id_: str, before: Revision) -> _T | None:
        """The record that was there and is older than this revision."""
        found = self._records.get(id_)
        if found is None or found[1] > before:
            return None
        del self._records[id_]
        del self._order[bisect_left(self._order, (found[0].created_us, id_))]
        return found[0]


class ChannelStore:
    """Everything that is kept of channels; `listeners` are told which channel, or its consumers,
    changed.
    """

    def __init__(self, metadata: Metadata, keys: MetadataKeys, sealing: Sealing) -> None:
        self._metadata, self._keys, self._sealing = metadata, keys.channel_keys, sealing
        self.producers: Shelf[Producer] = Shelf()
        self.channels: Shelf[Channel] = Shelf()
        self._consumers: dict[str, Shelf[Consumer]] = {}
        self._scheduled: dict[str, Shelf[Scheduled]] = {}
        self.listeners: list[Callable[[str], None]] = []
        self.scheduled_bytes = 0
        """Payloads of scheduled messages, all channels together."""
        self._watch: asyncio.Task[None] | None = None
        self._by_key: dict[str, Record] = {}

    async def open(self) -> None:
        """Read everything, then follow what others write."""
        revision = await self._load()
        self._watch = asyncio.get_running_loop().create_task(self._follow(revision))

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])

    def consumers(self, channel: str) -> Shelf[Consumer]:
        return self._consumers.setdefault(channel, Shelf())

    def scheduled(self, channel: str) -> Shelf[Scheduled]:
        return self._scheduled.setdefault(channel, Shelf())

    async def put(self, *kept: Kept) -> bool:
        """Write records, all or none; False if one has changed since the revision told with it."""
        compares, puts = [], []
        for record, revision in kept:
            key = self.key(record)
            target, value = (
                (CompareTarget.MOD_REVISION, revision) if revision else (CompareTarget.VERSION, 0)
            )
            compares.append(Compare(key, target, value))
            puts.append(Put(key, encode(record, self._sealing)))
        outcome = await self._metadata.transaction(compares, puts)
        if outcome.succeeded:
            for record, _ in kept:
                self._take(self.key(record), record, outcome.revision)
        return outcome.succeeded

    async def delete(self, record: Record, revision: Revision) -> bool:
        """Remove a record; False if it has changed since."""
        key = self.key(record)
        same = Compare(key, CompareTarget.MOD_REVISION, revision)
        outcome = await self._metadata.transaction([same], [DeleteKeys(key)])
        if outcome.succeeded:
            self._drop(key, outcome.revision)
        return outcome.succeeded

    async def seeded(self) -> bytes:
        """What `put_seeded` kept."""
        entry = await self._metadata.get(self._keys.channel_seed())
        return b"" if entry is None else entry.value

    async def put_seeded(self, digest: bytes) -> None:
        await self._metadata.put(self._keys.channel_seed(), digest)

    def key(self, record: Record) -> str:
        if isinstance(record, Producer):
            return self._keys.producer(record.id)
        if isinstance(record, Channel):
            return self._keys.channel(record.id)
        if isinstance(record, Consumer):
            return self._keys.channel_consumer(record.channel, record.id)
        return self._keys.scheduled(record.channel, record.id)

    # -- details

    async def _load(self) -> Revision:
        """Take everything that is there and drop what is not; watch from the revision returned."""
        prefix, last, more = self._keys.channels(), "", True
        revision, listed = Revision(0), set[str]()
        while more:
            page = await self._metadata.range(prefix, last)
            # Later pages are newer; from the first on, the watch tells what they missed.
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
                async for changes in self._metadata.watch(self._keys.channels(), since):
                    for key, value, since in changes:
                        if value is None:
                            self._drop(key, since)
                        else:
                            self._read(MetadataEntry(key, value, since, since, 1, None))
            except PenstockError as error:
                _events.warning("channels_not_followed", reason=str(error))
                since = None
                await asyncio.sleep(RETRY_SECONDS)

    def _read(self, entry: MetadataEntry) -> None:
        kind = _KINDS.get(entry.key.removeprefix(self._keys.channels()).partition("/")[0])
        if kind is None:
            return
        try:
            record: Record = decode(entry, kind, self._sealing)  # type: ignore[arg-type]
        except FormatError as error:
            _events.error("record_damaged", key=entry.key, reason=str(error))
        else:
            self._take(entry.key, record, entry.mod_revision)

    def _shelf(self, record: Record) -> Shelf[_T]:
        if isinstance(record, Producer):
            shelf: object = self.producers
        elif isinstance(record, Channel):
            shelf = self.channels
        elif isinstance(record, Consumer):
            shelf = self.consumers(record.channel)
        else:
            shelf = self.scheduled(record.channel)
        return shelf  # type: ignore[return-value]

    def _take(self, key: str, record: Record, revision: Revision) -> None:
        shelf: Shelf[Producer] = self._shelf(record)
        if shelf.revision(record.id) < revision:
            shelf.put(record, revision)  # type: ignore[arg-type]
            self.scheduled_bytes += _payload_bytes(record) - _payload_bytes(self._by_key.get(key))
            self._by_key[key] = record
            self._tell(record)

    def _drop(self, key: str, revision: Revision) -> None:
        record = self._by_key.get(key)
        if record is None:
            return
        shelf: Shelf[Producer] = self._shelf(record)
        if shelf.remove(record.id, revision) is not None:
            del self._by_key[key]
            self.scheduled_bytes -= _payload_bytes(record)
            self._tell(record)

    def _tell(self, record: Record) -> None:
        if isinstance(record, Channel | Consumer):
            channel = record.id if isinstance(record, Channel) else record.channel
            for listener in self.listeners:
                listener(channel)


def _payload_bytes(record: Record | None) -> int:
    return len(record.payload) if isinstance(record, Scheduled) else 0
