from penstock.delivery.consumers.view import Owed, view
from tests.unit.delivery.lab import lab
from tests.unit.tiers.core import World

LONG = 60_000_000_000


async def test_it_shows_who_waits_and_what_is_owed(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0", b"m1", b"m2")
        await peer.consumer("S", "d", max_ack_pending=2, ack_wait=LONG)
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"-NAK")
        await peer.several(2, peer.pull("S", "d", b"2"))
        peer.pull("S", "d", {"batch": 5, "expires": LONG}, "_INBOX.me")
        await peer.synced()
        consumer = here.consumer("S", "d")
        now = consumer._clock.monotonic_ns()
        shown = await view(consumer, now)
        assert shown.stalled == "max_ack_pending is reached"
        assert (shown.num_pending, shown.num_waiting, shown.num_ack_pending) == (1, 1, 2)
        [waiting] = shown.waiting
        assert (waiting.inbox, waiting.left) == ("_INBOX.me", 5)
        assert waiting.expires is not None
        assert waiting.age + waiting.expires == LONG
        assert [(item.seq, item.deliveries) for item in shown.ack_pending] == [(1, 2), (2, 1)]
        assert all(0 < (item.due or 0) <= LONG for item in shown.ack_pending)


async def test_what_waits_to_be_delivered_again_is_due_for_whoever_comes(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"-NAK")
        told = await peer.api("CONSUMER.VIEW.S.d")
        assert told.pop("type") == "io.nats.jetstream.api.v1.consumer_view_response"
        assert told == {
            "stalled": "no requests wait",
            "num_pending": 0,
            "num_waiting": 0,
            "waiting": [],
            "num_ack_pending": 1,
            "ack_pending": [{"seq": 1, "consumer_seq": 1, "deliveries": 1, "due": None}],
        }
        consumer = here.consumer("S", "d")
        shown = await view(consumer, consumer._clock.monotonic_ns())
        assert shown.ack_pending == [Owed(1, 1, 1, None)]
