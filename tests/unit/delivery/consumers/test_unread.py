import asyncio

import pytest

from penstock.delivery.consumers.unread import Unread
from tests.unit.delivery.lab import Lab, Peer, lab
from tests.unit.tiers.core import World


async def next_file(here: Lab, peer: Peer) -> None:
    """Have the log begin a new file, with a message in it."""
    log = here.stream("S").log
    before = log.writer.active
    log.rotate()
    while log.writer.active is before:
        await peer.stored("s", b"more")


async def test_a_file_is_needed_until_every_consumer_has_passed_it(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        stream = here.stream("S")
        await stream.log.settlements.read("consumer")
        unread = Unread(stream)
        await peer.stored("s", b"m0", b"m1")
        unread.passed([0, 2])
        first = stream.log.settle_floor
        await next_file(here, peer)
        unread.committed()
        end = stream.next_offset
        assert not unread.frees(end - 1)
        unread.passed([end - 1, end])
        assert stream.log.settle_floor == first
        assert unread.frees(end)
        unread.passed([end, end + 5])
        active = stream.log.writer.active
        assert active is not None
        assert stream.log.settle_floor == active.file.header.first_frame
        unread.passed([])
        assert stream.log.settle_floor is None


@pytest.mark.feature("T20")
async def test_a_lagging_consumer_holds_files_and_one_that_is_gone_does_not(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.consumer("S", "slow")
        await peer.consumer("S", "fast")
        await peer.stored("s", b"m0", b"m1")
        log = here.stream("S").log
        await next_file(here, peer)
        for message in await peer.several(3, peer.pull("S", "fast", b"3")):
            await peer.request(message.reply, b"+ACK")
        held = log.settle_floor
        assert held is not None
        await next_file(here, peer)
        assert log.settle_floor == held
        await peer.api("CONSUMER.DELETE.S.slow")
        while (log.settle_floor or 0) <= held:
            await asyncio.sleep(0.01)
            await here.settled("S")
