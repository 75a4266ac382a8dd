from __future__ import annotations

from penstock.delivery.consumers.view import (
    ConsumerCursor,
    PendingAck,
    consumer_page,
    consumer_view,
)
from penstock.formats.api import ConsumerReply
from penstock.model import names
from tests.broker.consumers import Lab, lab
from tests.broker.storage import World
from tests.broker.topics import BY_REGION, region

S = names.topic("S")


async def filled(here: Lab) -> None:
    """Create two consumers of five messages: one has settled two and has two in flight."""
    peer = await here.peer()
    await peer.stream("S", "s")
    await peer.stored("s", b"m0", b"m1", b"m2", b"m3", b"m4")
    await peer.consumer("S", "busy")
    await peer.consumer("S", "idle", deliver_policy="last")
    first, second, third, _ = await peer.several(4, peer.pull("S", "busy", b"4"))
    for message in (first, second):
        peer.publish(message.reply, b"+ACK")
    peer.publish(third.reply, b"-NAK")
    await peer.next(peer.pull("S", "busy"))
    await peer.synced()


async def test_a_page_shows_what_was_delivered_and_settled(world: World) -> None:
    async with lab(world) as here:
        await filled(here)
        busy, idle = await consumer_page(here.deliveries, here.topics.get(S).topic, None, 10)
        assert busy == ConsumerReply("busy", 0, "pull", 5, 4, 2, 1, 2, 5, 1, 0, 0, False)
        assert (idle.name, idle.delivered_offset, idle.settled_offset) == ("idle", 4, 4)
        assert (idle.pending, idle.deliveries) == (1, 0)


async def test_a_page_continues_after_a_cursor(world: World) -> None:
    async with lab(world) as here:
        await filled(here)
        topic = here.topics.get(S).topic
        [first] = await consumer_page(here.deliveries, topic, None, 1)
        rest = await consumer_page(here.deliveries, topic, ConsumerCursor(0, first.name), 10)
        assert [first.name, *(item.name for item in rest)] == ["busy", "idle"]
        assert await consumer_page(here.deliveries, topic, ConsumerCursor(0, "idle"), 10) == []


async def test_consumers_of_partitions_are_listed_after_a_restart(world: World) -> None:
    async with lab(world) as here:
        await here.topics.create_topic(BY_REGION)
        opened = here.topics.get(BY_REGION.name)
        await opened.partitions.ensure([region(f"r{number}") for number in range(12)])
        peer = await here.peer()
        for number in (10, 2):
            for letter in "dc":
                await peer.consumer(f"regions--{number}", letter)
        told = await consumer_page(here.deliveries, opened.topic, None, 10)
        places = [(item.partition_id, item.name) for item in told]
        assert places == [(2, "c"), (2, "d"), (10, "c"), (10, "d")]
        assert await consumer_page(here.deliveries, opened.topic, None, 3) == told[:3]
        found = await here.crash()
    async with lab(world, found) as again:
        topic = again.topics.get(BY_REGION.name).topic
        again_told = await consumer_page(again.deliveries, topic, None, 10)
        assert again_told == told
        assert await consumer_page(again.deliveries, topic, ConsumerCursor(2, "d"), 10) == told[2:]
        assert again.deliveries.get("regions--2") is not None
        assert "regions--3" not in again.deliveries._streams


LONG = 60_000_000_000


async def test_a_view_shows_pending_pulls_and_pending_acks(world: World) -> None:
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
        shown = await consumer_view(consumer, now)
        assert shown.stalled == "max_ack_pending is reached"
        assert (shown.num_pending, shown.num_waiting, shown.num_ack_pending) == (1, 1, 2)
        [waiting] = shown.waiting
        assert (waiting.inbox, waiting.left) == ("_INBOX.me", 5)
        assert waiting.expires is not None
        assert waiting.age + waiting.expires == LONG
        assert [(item.seq, item.deliveries) for item in shown.ack_pending] == [(1, 2), (2, 1)]
        assert all(0 < (item.due or 0) <= LONG for item in shown.ack_pending)


async def test_a_queued_message_has_no_due_time(world: World) -> None:
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
        shown = await consumer_view(consumer, consumer._clock.monotonic_ns())
        assert shown.ack_pending == [PendingAck(1, 1, 1, None)]
