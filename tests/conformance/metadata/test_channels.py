"""Records of channels in both stores, written by two brokers."""

from __future__ import annotations

import asyncio

import pytest

from penstock.config import SETTINGS
from penstock.delivery.channels.entities import Channel, Producer, ScheduledMessage, Versioned
from penstock.delivery.channels.sealing import Sealing
from penstock.delivery.channels.store import ChannelStore
from penstock.metadata import Metadata, MetadataKeys, Revision
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")
R0 = Revision(0)
LARGEST = SETTINGS["channels.schedule.max_bytes"].high


async def opened(store: Metadata, root: str) -> ChannelStore:
    made = ChannelStore(store, MetadataKeys(root), Sealing("key"))
    await made.open()
    return made


@pytest.mark.feature("C01")
async def test_what_one_broker_writes_the_other_knows(store: Metadata, root: str) -> None:
    one, other = await opened(store, root), await opened(store, root)
    told = list[str]()
    other.watch(told.append)
    assert await one.put(Versioned(Channel("c", "C", "token", "key", 0, 1, 1), R0))
    assert await one.put(Versioned(Producer("p", "P", "token", 1, 1), R0))

    async def followed() -> bool:
        return other.channels.get("c") is not None and other.producers.get("p") is not None

    await eventually(followed)
    assert told == ["c"]
    record = other.producers.get("p")
    assert record is not None
    assert record.token == "token"
    assert await other.delete(record, other.producers.revision("p"))

    async def gone() -> bool:
        return one.producers.get("p") is None

    await eventually(gone)
    await one.close()
    await other.close()


@pytest.mark.feature("C01")
async def test_of_many_writers_one_wins(store: Metadata, root: str) -> None:
    brokers = [await opened(store, root) for _ in range(4)]
    won = await asyncio.gather(
        *(b.put(Versioned(Producer("p", f"P{n}", "t", 1, 1), R0)) for n, b in enumerate(brokers))
    )
    assert sorted(won) == [False, False, False, True]
    for broker in brokers:
        await broker.close()


@pytest.mark.feature("C14")
async def test_the_largest_scheduled_message_fits(store: Metadata, root: str) -> None:
    one = await opened(store, root)
    message = ScheduledMessage(
        "c", "m", "p", "x/y", 0, [("a", "b" * 50_000)], b"\xff" * LARGEST, 9, 1
    )
    assert await one.put(Versioned(message, R0))
    again = await opened(store, root)
    assert again.scheduled("c").get("m") == message
    await one.close()
    await again.close()
