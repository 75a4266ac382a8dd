"""Entities in memory and in the metadata store, written by several brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from penstock.delivery.channels.entities import (
    Channel,
    Endpoint,
    Entity,
    Producer,
    ScheduledMessage,
    Versioned,
)
from penstock.delivery.channels.sealing import Sealing
from penstock.delivery.channels.store import ChannelStore, CursorQuery, EntityTable, PageCursor
from penstock.host.tasks import Backoff
from penstock.metadata.interface import (
    EntryPage,
    HistoryCompacted,
    KeyChange,
    MetadataUnavailable,
    Revision,
)
from penstock.metadata.keys import MetadataKeys
from penstock.metadata.sqlite.metadata import SqliteMetadata
from tests.eventually import WAIT_SECONDS, eventually

R0 = Revision(0)


def producer(id_: str, created: int = 1, token: str = "t") -> Producer:
    return Producer(id_, id_, token, created, created)


def channel(id_: str) -> Channel:
    return Channel(id_, id_, "t", "k", 0, 1, 1)


@pytest_asyncio.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[SqliteMetadata]:
    store = await SqliteMetadata.open(tmp_path)
    yield store
    await store.close()


async def opened(metadata: SqliteMetadata) -> ChannelStore:
    store = ChannelStore(metadata, MetadataKeys(), Sealing(), Backoff(0.001, 0.001))
    await store.open()
    return store


async def answers(_: int) -> None:
    """Lets a page be listed at once."""


class Outage:
    """The first watch yields nothing until `end`, and then raises HistoryCompacted.

    From then on a page of a listing has one entry, and `before_page` is awaited before each page
    with its number, from 1.
    """

    def __init__(self, metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch) -> None:
        self._range, self._watch = metadata.range, metadata.watch
        self._over, self._broke = asyncio.Event(), False
        self._before_page: Callable[[int], Awaitable[None]] = answers
        self.pages = 0
        monkeypatch.setattr(metadata, "range", self._one_entry)
        monkeypatch.setattr(metadata, "watch", self._broken_once)

    def end(self, before_page: Callable[[int], Awaitable[None]] = answers) -> None:
        self._before_page = before_page
        self._over.set()

    async def _one_entry(self, prefix: str, after: str = "") -> EntryPage:
        if self._over.is_set():
            self.pages += 1
            await self._before_page(self.pages)
        return await self._range(prefix, after, 1)

    async def _broken_once(self, prefix: str, since: Revision) -> AsyncIterator[list[KeyChange]]:
        if not self._broke:
            await self._over.wait()
            self._broke = True
            raise HistoryCompacted(since, Revision(since + 1))
        async for changes in self._watch(prefix, since):
            yield changes


class Others:
    """Another broker, which only writes."""

    def __init__(self, metadata: SqliteMetadata) -> None:
        self._metadata = metadata
        self._store = ChannelStore(metadata, MetadataKeys(), Sealing())

    async def put(self, *records: Entity) -> None:
        assert await self._store.put(*(Versioned(record, R0) for record in records))

    async def delete(self, *records: Entity) -> None:
        for record in records:
            assert await self._metadata.delete(self._store.key(record))


async def wait_for_producer(store: ChannelStore, id_: str) -> None:
    """Return once the store knows this producer."""

    async def known() -> bool:
        return store.producers.get(id_) is not None

    await eventually(known)


def test_a_table_is_read_both_ways() -> None:
    table: EntityTable[Producer] = EntityTable()
    for number in range(5):
        table.put(producer(f"p{number}", created=number // 2), Revision(1))
    names = [record.id for record in table.page(CursorQuery(), 10)]
    assert names == ["p4", "p3", "p2", "p1", "p0"]
    assert [r.id for r in table.page(CursorQuery(older=PageCursor(1, "p3")), 2)] == ["p2", "p1"]
    assert [r.id for r in table.page(CursorQuery(newer=PageCursor(0, "p0")), 2)] == ["p2", "p1"]
    assert [r.id for r in table.oldest_first()] == names[::-1]
    assert not table.remove("p2", R0)
    assert table.remove("p2", Revision(2))
    assert [r.id for r in table.page(CursorQuery(), 10)] == ["p4", "p3", "p1", "p0"]


@pytest.mark.feature("C01")
async def test_one_of_two_writers_that_saw_the_same_revision_is_refused(
    metadata: SqliteMetadata,
) -> None:
    one, two = await opened(metadata), await opened(metadata)
    assert await one.put(Versioned(producer("p"), R0))
    assert not await two.put(Versioned(producer("p", token="other"), R0))

    async def followed() -> bool:
        return two.producers.revision("p") == one.producers.revision("p")

    await eventually(followed)
    seen = two.producers.revision("p")
    assert await two.put(Versioned(producer("p", token="second"), seen))
    assert not await one.put(Versioned(producer("p", token="third"), seen))
    assert not await one.delete(producer("p"), seen)
    assert await two.delete(producer("p"), two.producers.revision("p"))

    async def gone() -> bool:
        return one.producers.get("p") is None and two.producers.get("p") is None

    await eventually(gone)
    await one.close()
    await two.close()


async def test_all_or_none_of_several_records_is_written(metadata: SqliteMetadata) -> None:
    store = await opened(metadata)
    channel = Channel("c", "c", "t", "k", 0, 1, 1)
    await store.put(Versioned(channel, R0))
    stale = store.channels.revision("c")
    counted = msgspec.structs.replace(channel, endpoints_created=1)
    assert await store.put(Versioned(counted, stale))
    consumer = Endpoint("c", "a", "a", "t", "http://a/", "push", 1, "u", 0, [], 1, 1)
    assert not await store.put(Versioned(consumer, R0), Versioned(counted, stale))
    assert store.endpoints("c").get("a") is None
    await store.close()


async def test_observers_are_notified_and_a_new_broker_reads_all_entities(
    metadata: SqliteMetadata,
) -> None:
    store, notified = await opened(metadata), list[str]()
    store.watch(notified.append)
    await store.put(Versioned(Channel("c", "c", "t", "k", 0, 1, 1), R0))
    consumer = Endpoint("c", "a/b", "a", "t", "http://a/", "push", 1, "u", 0, [], 1, 1)
    await store.put(Versioned(consumer, R0))
    assert notified == ["c", "c"]
    await store.put_seed_digest(b"digest")
    await store.close()
    again = await opened(metadata)
    assert again.endpoints("c").get("a/b") == consumer
    assert await again.seed_digest() == b"digest"
    assert len(again.channels) == 1
    await again.close()


async def test_a_damaged_record_does_not_hide_the_others(metadata: SqliteMetadata) -> None:
    await metadata.put(MetadataKeys().channel_keys.producer("bad"), b"{")
    await metadata.put("/penstock/channels/unknown/x", b"{}")
    store = await opened(metadata)
    await store.put(Versioned(producer("good"), R0))
    assert [record.id for record in store.producers] == ["good"]
    await store.close()


async def test_the_bytes_of_scheduled_messages_are_counted(metadata: SqliteMetadata) -> None:
    store, notified = await opened(metadata), list[str]()
    store.watch(notified.append)
    waiting = ScheduledMessage("c", "m", "p", "text/plain", 0, [], b"12345", 9, 1)
    await store.put(Versioned(waiting, R0))
    again = await opened(metadata)
    assert (store.scheduled_bytes, again.scheduled_bytes) == (5, 5)
    sent = msgspec.structs.replace(waiting, payload=b"", sent_us=9)
    await store.put(Versioned(sent, store.scheduled("c").revision("m")))
    assert store.scheduled_bytes == 0
    await store.delete(sent, store.scheduled("c").revision("m"))
    assert store.scheduled_bytes == 0
    assert notified == []
    await store.close()
    await again.close()


async def test_an_unavailable_metadata_store_is_retried_and_then_followed(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, others = Outage(metadata, monkeypatch), Others(metadata)
    store = await opened(metadata)

    async def away(page: int) -> None:
        if page < 4:
            raise MetadataUnavailable("away")

    await others.put(producer("missed"))
    outage.end(away)
    await wait_for_producer(store, "missed")
    await others.put(producer("later"))
    await wait_for_producer(store, "later")
    assert outage.pages == 4
    await store.close()


async def test_closing_ends_the_retries(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, store = Outage(metadata, monkeypatch), await opened(metadata)
    requested_again = asyncio.Event()

    async def away(page: int) -> None:
        if page > 1:
            requested_again.set()
            await asyncio.Event().wait()
        raise MetadataUnavailable("away")

    outage.end(away)
    async with asyncio.timeout(WAIT_SECONDS):
        await requested_again.wait()
        await store.close()
    assert outage.pages == 2


async def test_deletions_by_others_during_an_outage_are_applied(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, notified = Others(metadata), list[str]()
    consumer = Endpoint("c", "a", "a", "t", "http://a/", "push", 1, "u", 0, [], 1, 1)
    waiting = ScheduledMessage("c", "m", "p", "text/plain", 0, [], b"12345", 9, 1)
    deleted = channel("c"), consumer, producer("p", token="secret"), waiting
    await others.put(*deleted, channel("remaining"), producer("remaining"))
    outage, store = Outage(metadata, monkeypatch), await opened(metadata)
    store.watch(notified.append)
    assert store.scheduled_bytes == 5

    await others.delete(*deleted)
    await others.put(producer("missed"))
    outage.end()
    await wait_for_producer(store, "missed")
    assert [record.id for record in store.producers] == ["remaining", "missed"]
    assert [record.id for record in store.channels] == ["remaining"]
    assert (len(store.endpoints("c")), len(store.scheduled("c"))) == (0, 0)
    assert (store.scheduled_bytes, notified) == (0, ["c", "c"])
    await store.close()


async def test_a_write_during_a_listing_is_not_dropped(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, notified = Others(metadata), list[str]()
    await others.put(channel("b"), channel("c"), channel("gone"))
    outage, store = Outage(metadata, monkeypatch), await opened(metadata)
    store.watch(notified.append)

    async def written_meanwhile(page: int) -> None:
        if page == 2:
            assert await store.put(Versioned(channel("a"), R0))

    await others.delete(channel("gone"))
    outage.end(written_meanwhile)

    async def gone() -> bool:
        return store.channels.get("gone") is None

    await eventually(gone)
    await others.put(producer("later"))
    await wait_for_producer(store, "later")
    assert [record.id for record in store.channels.oldest_first()] == ["a", "b", "c"]
    assert notified == ["a", "gone"]
    await store.close()


async def test_an_incomplete_listing_drops_nothing(
    metadata: SqliteMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, notified = Others(metadata), list[str]()
    await others.put(channel("b"), channel("c"), channel("gone"))
    outage, store = Outage(metadata, monkeypatch), await opened(metadata)
    store.watch(notified.append)
    notified_before = list[list[str]]()

    async def breaks_off(page: int) -> None:
        notified_before.append(list(notified))
        if page == 2:
            raise MetadataUnavailable("away")

    await others.delete(channel("gone"))
    await others.put(producer("missed"))
    outage.end(breaks_off)
    await wait_for_producer(store, "missed")
    assert notified_before == [[]] * 5
    assert notified == ["gone"]
    await store.close()
