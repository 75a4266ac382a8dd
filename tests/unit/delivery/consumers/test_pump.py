import asyncio
from typing import Any

import pytest

from penstock.delivery.consumers import pump
from penstock.doors.nats.clients import NatsLimits
from penstock.model.errors import ReadFailed
from penstock.model.units import Offset, PartitionId
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream
from tests.unit.delivery.lab import NO_MESSAGES, lab, until
from tests.unit.tiers.core import World

LONG = 60_000_000_000


async def test_a_long_delivery_lets_others_have_their_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "STEPS_MAX", 1)
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        payloads = [bytes([65 + number]) * 400_000 for number in range(8)]
        await peer.stored("s", *payloads)
        await peer.consumer("S", "d")
        sid = peer.pull("S", "d", {"batch": 8, "expires": LONG})
        assert [item.payload for item in await peer.several(8, sid)] == payloads


async def test_a_read_that_fails_is_tried_again_by_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.delivery.consumers.consumer.RETRY_NS", 1000)
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        here.stream("S").log._tail.clear()
        failures = [ReadFailed("S", PartitionId(0), Offset(0), "the disk is busy")]
        read = Stream.read

        async def failing(self: Stream, *wanted: Any) -> Any:
            if failures:
                raise failures.pop()
            return await read(self, *wanted)

        monkeypatch.setattr(Stream, "read", failing)
        assert (await peer.next(peer.pull("S", "d"))).payload == b"m0"
        assert not failures


async def test_what_was_read_for_a_pull_that_is_gone_waits_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        here.stream("S").log._tail.clear()
        reading, go_on = asyncio.Event(), asyncio.Event()
        read = Stream.read

        async def slow(self: Stream, *wanted: Any) -> Any:
            reading.set()
            await go_on.wait()
            return await read(self, *wanted)

        monkeypatch.setattr(Stream, "read", slow)
        sid = peer.pull("S", "d", {"batch": 1, "expires": LONG})
        await reading.wait()
        peer.unsubscribe(sid)
        await peer.synced()
        go_on.set()
        await until(lambda: here.consumer("S", "d")._pump._working is None)
        info = await peer.info("S", "d")
        assert (info["num_pending"], info["delivered"]["consumer_seq"]) == (1, 0)
        assert (await peer.next(peer.pull("S", "d"))).payload == b"m0"


async def test_messages_acked_while_they_were_read_again_are_not_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        first = await peer.next(peer.pull("S", "d"))
        reading, go_on = asyncio.Event(), asyncio.Event()
        read = Stream.read_offsets

        async def slow(self: Stream, *wanted: Any) -> Rows:
            reading.set()
            await go_on.wait()
            return await read(self, *wanted)

        monkeypatch.setattr(Stream, "read_offsets", slow)
        peer.publish(first.reply, b"-NAK")
        sid = peer.pull("S", "d", {"batch": 1, "no_wait": True})
        await reading.wait()
        peer.publish(first.reply, b"+ACK")
        await peer.synced()
        go_on.set()
        assert (await peer.next(sid)).headers == NO_MESSAGES


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_push_goes_no_faster_than_its_client_reads(world: World, in_memory: bool) -> None:
    """Far more than may wait for a client that does not read, which would be cut off."""
    async with lab(world, limits=NatsLimits(pending_bytes=6 << 20)) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        for _ in range(40):
            await peer.stored("s", b"x" * 500_000)
        if not in_memory:
            here.stream("S").log._tail.clear()
        reader = await here.peer()
        sid = reader.subscribe("to.p")
        await peer.consumer("S", "p", deliver_subject="to.p", ack_policy="none")
        for _ in range(40):
            assert len((await reader.next(sid)).payload) == 500_000
