from penstock.delivery.consumers.holders import Holders
from tests.unit.delivery.consumers.test_consumer import numbers
from tests.unit.delivery.heard import Heard
from tests.unit.delivery.lab import lab
from tests.unit.tiers.core import World

LONG = 60_000_000_000


def test_what_a_client_had_is_told_when_it_goes() -> None:
    heard, gone = Heard(), list[list[int]]()
    holders = Holders(heard, gone.append)
    holders.given(b"a", [1, 2, 3])
    holders.given(b"b", [4, 3])
    holders.settled([2, 9])
    heard.departures[b"a"]()
    heard.departures[b"b"]()
    assert gone == [[1], [3, 4]]
    holders.settled([1, 3, 4])


def test_nobody_is_watched_who_has_nothing() -> None:
    heard = Heard()
    holders = Holders(heard, lambda seqs: None)
    holders.given(b"a", [1, 2])
    holders.given(b"a", [1])
    assert list(heard.departures) == [b"a"]
    holders.settled([1])
    assert list(heard.departures) == [b"a"]
    holders.given(b"b", [2])
    assert list(heard.departures) == [b"b"]


async def test_messages_come_again_when_the_connection_is_gone_and_not_before(
    world: World,
) -> None:
    async with lab(world) as here:
        peer, other = await here.peer(), await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0", b"m1", b"m2")
        option = {"penstock.redeliver_on_disconnect": "true"}
        await peer.consumer("S", "d", ack_wait=10 * LONG, metadata=option)
        sid = other.pull("S", "d", b"2")
        got = await other.several(2, sid)
        other.publish(got[0].reply, b"+ACK")
        other.unsubscribe(sid)
        await other.synced()
        mine = peer.pull("S", "d", {"batch": 5, "expires": 10 * LONG})
        assert numbers(await peer.next(mine))[:2] == [1, 3]
        await peer.synced()
        assert peer.waiting(mine) == []
        await other.end()
        assert numbers(await peer.next(mine))[:2] == [2, 2]
