"""Records of channels in memory and in the store, written by several brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from penstock.metadata.channel_records import Channel, Consumer, Kept, Producer, Scheduled
from penstock.metadata.channel_store import ChannelStore, Shelf
from penstock.metadata.interface import Revision
from penstock.metadata.keys import Keys
from penstock.metadata.sealing import Sealing
from penstock.metadata.sqlite import SqliteMetadata
from tests.eventually import eventually

R0 = Revision(0)


def producer(id_: str, created: int = 1, token: str = "t") -> Producer:
    return Producer(id_, id_, token, created, created)


@pytest_asyncio.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[SqliteMetadata]:
    store = await SqliteMetadata.open(tmp_path)
    yield store
    await store.close()


async def opened(metadata: SqliteMetadata) -> ChannelStore:
    store = ChannelStore(metadata, Keys(), Sealing())
    await store.open()
    return store


def test_a_shelf_is_read_both_ways() -> None:
    shelf: Shelf[Producer] = Shelf()
    for number in range(5):
        shelf.put(producer(f"p{number}", created=number // 2), Revision(1))
    names = [record.id for record in shelf.older(None, 10)]
    assert names == ["p4", "p3", "p2", "p1", "p0"]
    assert [r.id for r in shelf.older((1, "p3"), 2)] == ["p2", "p1"]
    assert [r.id for r in shelf.newer((0, "p0"), 2)] == ["p2", "p1"]
    assert [r.id for r in shelf.oldest()] == names[::-1]
    assert shelf.remove("p2", R0) is None
    assert shelf.remove("p2", Revision(2)) is not None
    assert [r.id for r in shelf.older(None, 10)] == ["p4", "p3", "p1", "p0"]


@pytest.mark.feature("C01")
async def test_of_two_writers_that_saw_the_same_one_is_refused(metadata: SqliteMetadata) -> None:
    one, two = await opened(metadata), await opened(metadata)
    assert await one.put(Kept(producer("p"), R0))
    assert not await two.put(Kept(producer("p", token="other"), R0))

    async def followed() -> bool:
        return two.producers.revision("p") == one.producers.revision("p")

    await eventually(followed)
    seen = two.producers.revision("p")
    assert await two.put(Kept(producer("p", token="second"), seen))
    assert not await one.put(Kept(producer("p", token="third"), seen))
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
    await store.put(Kept(channel, R0))
    stale = store.channels.revision("c")
    counted = msgspec.structs.replace(channel, consumers=1)
    assert await store.put(Kept(counted, stale))
    consumer = Consumer("c", "a", "a", "t", "http://a/", "push", 1, "u", 0, [], 1, 1)
    assert not await store.put(Kept(consumer, R0), Kept(counted, stale))
    assert store.consumers("c").get("a") is None
    await store.close()


async def test_listeners_are_told_and_a_new_broker_finds_everything(
    metadata: SqliteMetadata,
) -> None:
    store, told = await opened(metadata), list[str]()
    store.listeners.append(told.append)
    await store.put(Kept(Channel("c", "c", "t", "k", 0, 1, 1), R0))
    consumer = Consumer("c", "a/b", "a", "t", "http://a/", "push", 1, "u", 0, [], 1, 1)
    await store.put(Kept(consumer, R0))
    assert told == ["c", "c"]
    await store.put_seeded(b"digest")
    await store.close()
    again = await opened(metadata)
    assert again.consumers("c").get("a/b") == consumer
    assert await again.seeded() == b"digest"
    assert len(again.channels) == 1
    await again.close()


async def test_a_damaged_record_does_not_hide_the_others(metadata: SqliteMetadata) -> None:
    await metadata.put(Keys().producer("bad"), b"{")
    await metadata.put("/penstock/channels/unknown/x", b"{}")
    store = await opened(metadata)
    await store.put(Kept(producer("good"), R0))
    assert [record.id for record in store.producers] == ["good"]
    await store.close()


async def test_what_is_scheduled_is_counted_in_bytes(metadata: SqliteMetadata) -> None:
    store, told = await opened(metadata), list[str]()
    store.listeners.append(told.append)
    waiting = Scheduled("c", "m", "p", "text/plain", 0, [], b"12345", 9, 1)
    await store.put(Kept(waiting, R0))
    again = await opened(metadata)
    assert (store.scheduled_bytes, again.scheduled_bytes) == (5, 5)
    sent = msgspec.structs.replace(waiting, payload=b"", sent_us=9)
    await store.put(Kept(sent, store.scheduled("c").revision("m")))
    assert store.scheduled_bytes == 0
    await store.delete(sent, store.scheduled("c").revision("m"))
    assert store.scheduled_bytes == 0
    assert told == []
    await store.close()
    await again.close()
