from penstock.log.settlements import Settled
from tests.unit.delivery.lab import lab, until
from tests.unit.tiers.core import World


async def test_acks_that_nobody_waits_for_are_written_within_the_interval(world: World) -> None:
    async with lab(world, settle_seconds=0.01) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"+ACK")
        found: list[Settled] = []
        settlements = here.stream("S").log.settlements
        await until(lambda: here.consumer("S", "d").ledger.floor_stream_seq == 1)
        while not found or found[-1].entries[-1][7] < 1:
            found = await settlements.read("consumer")
        assert found[-1].entries[-1][0] == "d"
