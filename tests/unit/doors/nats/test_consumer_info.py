from msgspec import UNSET

from penstock.doors.nats.consumer_info import describe
from penstock.host.clock import Clock
from penstock.wire.jetstream.documents import SequenceInfo
from penstock.wire.jetstream.times import parse_time
from tests.unit.delivery.lab import lab
from tests.unit.tiers.core import World


async def test_what_never_happened_is_left_out(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.consumer("S", "d")
        info = await describe(here.consumer("S", "d"), {"a": 1}, Clock())
        assert info.config == {"a": 1}
        assert info.delivered == info.ack_floor == SequenceInfo(0, 0, UNSET)
        assert (info.push_bound, info.paused, info.pause_remaining) == (UNSET, UNSET, UNSET)
        assert info.priority_groups is UNSET


async def test_times_of_the_last_delivery_and_ack_are_told(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        before = Clock().now_us() * 1000
        first = await peer.next(peer.pull("S", "d"))
        await peer.request(first.reply, b"+ACK")
        info = await describe(here.consumer("S", "d"), {}, Clock())
        active = (info.delivered.last_active, info.ack_floor.last_active)
        delivered, acked, told = (parse_time(str(text)) for text in (*active, info.ts))
        assert before <= delivered <= acked <= told
