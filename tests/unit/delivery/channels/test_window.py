"""Single messages, read in windows."""

from __future__ import annotations

import pytest

from penstock.delivery.channels.window import WINDOWS_MAX, Window
from penstock.model.batch import AtHead, Batch, Gone
from penstock.model.units import Offset, PartitionId
from penstock.topics import LocalSource, TopicPartition
from tests.unit.tiers.core import World
from tests.unit.topics.served import push, serve


class Counting(LocalSource):
    """Counts reads."""

    reads = 0

    async def read(
        self, place: TopicPartition, offset: Offset, bytes_max: int
    ) -> list[Batch] | AtHead | Gone:
        self.reads += 1
        return await super().read(place, offset, bytes_max)


async def test_neighbours_cost_one_read(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, *(b"%d" % n for n in range(100)))
    opened.log._tail.clear()
    source = Counting(served.topics)
    window = Window(opened, source)
    for _ in range(3):
        found = [await window.message(offset) for offset in range(100)]
        assert [message and message.payload for message in found] == [b"%d" % n for n in range(100)]
    assert source.reads == 1


async def test_messages_in_the_tail_cache_cost_no_read(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, b"0", b"1")
    source = Counting(served.topics)
    window = Window(opened, source)
    found = [await window.message(offset) for offset in range(2)]
    assert [message and message.payload for message in found] == [b"0", b"1"]
    assert source.reads == 0


async def test_a_message_that_is_deleted_is_gone_though_it_was_read(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, *(b"%d" % n for n in range(10)))
    window = Window(opened, served.source)
    assert await window.message(5) is not None
    await opened.log.delete(PartitionId(0), [5])
    await opened.log.purge(PartitionId(0), Offset(3))
    assert [await window.message(n) is None for n in (2, 3, 4, 5, 6, 10)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    fresh = Window(opened, served.source)
    message = await fresh.message(6)
    assert message is not None
    assert message.payload == b"6"


@pytest.mark.parametrize("pushes", [1, 3 * WINDOWS_MAX])
async def test_many_small_batches_are_found_too(world: World, pushes: int) -> None:
    served = await serve(world)
    opened = await served.create()
    for number in range(pushes):
        await push(opened, b"%d" % number)
    opened.log._tail.clear()
    window = Window(opened, served.source)
    for number in (0, pushes - 1, pushes // 2):
        message = await window.message(number)
        assert message is not None
        assert message.payload == b"%d" % number
