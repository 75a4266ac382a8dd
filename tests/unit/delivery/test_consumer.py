import pytest

from tests.unit.delivery.lab import NO_MESSAGES, lab
from tests.unit.tiers.core import World


@pytest.mark.feature("P05", "P06")
async def test_a_pull_gets_messages_under_their_own_subject_with_an_ack_subject(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s.>")
        await peer.stored("s.a", b"m0", b"m1", b"m2")
        await peer.consumer("S", "d")
        sid = peer.pull("S", "d")
        message = await peer.next(sid)
        assert (message.subject, message.payload) == ("s.a", b"m0")
        assert message.reply.startswith("$JS.ACK.S.d.1.1.1.")
        assert message.reply.endswith(".2")
        sid = peer.pull("S", "d", b"2")
        assert [item.reply.split(".")[4:7] for item in await peer.several(2, sid)] == [
            ["1", "2", "2"],
            ["1", "3", "3"],
        ]
        told = await peer.info("S", "d")
        assert told["num_ack_pending"] == 3
        assert told["num_pending"] == 0
        sid = peer.pull("S", "d", {"batch": 5, "no_wait": True})
        assert (await peer.next(sid)).headers == NO_MESSAGES
