"""Consumers as clients see them, byte by byte where it matters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.host.clock import Clock
from penstock.model.errors import ReadFailed
from penstock.model.times import parse_time
from penstock.model.units import Offset, PartitionId
from penstock.protocols.nats import NatsLimits
from penstock.streams.rows import Rows
from penstock.streams.stream import Stream
from tests.broker.consumers import NO_MESSAGES, UNSETTLED, Lab, Message, Peer, lab, until
from tests.broker.storage import World

LONG = 60_000_000_000


async def test_a_long_delivery_continues_in_later_turns(world: World) -> None:
    async with lab(world, delivery=UNSETTLED._replace(steps_per_turn=1)) as here:
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
    async with lab(world, delivery=UNSETTLED._replace(retry_seconds=1e-6)) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        here.stream("S").opened.log._tail.clear()
        failures = [ReadFailed("S", PartitionId(0), Offset(0), "the disk is busy")]
        read = Stream.read

        async def failing(self: Stream, *wanted: Any) -> Any:
            if failures:
                raise failures.pop()
            return await read(self, *wanted)

        monkeypatch.setattr(Stream, "read", failing)
        assert (await peer.next(peer.pull("S", "d"))).payload == b"m0"
        assert not failures


async def test_messages_read_for_an_ended_pull_wait_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d")
        here.stream("S").opened.log._tail.clear()
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
        await until(lambda: not here.consumer("S", "d")._loop.reading)
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
async def test_a_push_is_no_faster_than_its_client_reads(world: World, in_memory: bool) -> None:
    """The stream is larger than the pending output for which a client is disconnected."""
    async with lab(world, limits=NatsLimits(pending_bytes=6 << 20)) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        for _ in range(40):
            await peer.stored("s", b"x" * 500_000)
        if not in_memory:
            here.stream("S").opened.log._tail.clear()
        reader = await here.peer()
        sid = reader.subscribe("to.p")
        await peer.consumer("S", "p", deliver_subject="to.p", ack_policy="none")
        for _ in range(40):
            assert len((await reader.next(sid)).payload) == 500_000


MS = 1_000_000
LONG = 60_000 * MS


async def filled(here: Lab, *payloads: bytes, **config: Any) -> Peer:
    """Create a stream S with these messages and a consumer d; returns the client."""
    peer = await here.peer()
    await peer.stream("S", "s.>")
    await peer.stored("s.a", *payloads)
    await peer.consumer("S", "d", **config)
    return peer


def numbers(message: Message) -> list[int]:
    """Deliveries, stream sequence, consumer sequence and pending messages of an ack subject."""
    tokens = message.reply.split(".")
    return [int(tokens[place]) for place in (4, 5, 6, 8)]


def state(info: dict[str, Any]) -> tuple[Any, ...]:
    """Delivered, ack floor, in flight, redelivered, waiting and pending of a consumer info."""
    return (
        (info["delivered"]["consumer_seq"], info["delivered"]["stream_seq"]),
        (info["ack_floor"]["consumer_seq"], info["ack_floor"]["stream_seq"]),
        info["num_ack_pending"],
        info["num_redelivered"],
        info["num_waiting"],
        info["num_pending"],
    )


@pytest.mark.feature("P04", "P05", "P06")
async def test_a_pull_gets_messages_under_their_own_subject_with_an_ack_subject(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1", b"m2")
        message = await peer.next(peer.pull("S", "d"))
        assert (message.subject, message.payload, message.headers) == ("s.a", b"m0", b"")
        assert message.reply.startswith("$JS.ACK.S.d.")
        assert numbers(message) == [1, 1, 1, 2]
        two = await peer.several(2, peer.pull("S", "d", b"2"))
        assert [numbers(item) for item in two] == [[1, 2, 2, 1], [1, 3, 3, 0]]
        assert state(await peer.info("S", "d")) == ((3, 3), (0, 0), 3, 0, 0, 0)


@pytest.mark.feature("P07")
async def test_a_no_wait_pull_receives_available_messages_then_a_status(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1")
        sid = peer.pull("S", "d", {"batch": 5, "no_wait": True})
        got = await peer.several(3, sid)
        assert [message.payload for message in got[:2]] == [b"m0", b"m1"]
        assert (got[2].headers, got[2].payload, got[2].reply) == (NO_MESSAGES, b"", "")
        for body in ({"no_wait": True}, {"batch": 1, "no_wait": True, "expires": LONG}):
            assert (await peer.next(peer.pull("S", "d", body))).headers == NO_MESSAGES


@pytest.mark.feature("P07")
async def test_a_no_wait_pull_is_answered_at_once_at_max_ack_pending(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1", max_ack_pending=1)
        await peer.next(peer.pull("S", "d"))
        sid = peer.pull("S", "d", {"batch": 1, "no_wait": True})
        assert (await peer.next(sid)).headers == NO_MESSAGES
        assert (await peer.info("S", "d"))["num_waiting"] == 0


@pytest.mark.feature("P08")
async def test_an_expired_pull_receives_its_remaining_counts(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0")
        sid = peer.pull("S", "d", {"batch": 3, "expires": 500 * MS})
        assert (await peer.next(sid)).payload == b"m0"
        assert (await peer.next(sid)).headers == (
            b"NATS/1.0 408 Request Timeout\r\n"
            b"Nats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n"
        )
        sid = peer.pull("S", "d", {"batch": 1, "expires": -5})
        assert b"408 Request Timeout" in (await peer.next(sid)).headers


@pytest.mark.feature("P06")
async def test_messages_are_delivered_as_they_arrive(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        sid = peer.pull("S", "d", {"batch": 3, "expires": LONG})
        for payload in (b"x", b"y"):
            await peer.stored("s.b", payload)
            message = await peer.next(sid)
            assert (message.subject, message.payload) == ("s.b", payload)
        assert (await peer.info("S", "d"))["num_waiting"] == 1


@pytest.mark.feature("P09", "P10")
async def test_a_pull_ends_at_once_when_its_inbox_loses_its_subscriber(world: World) -> None:
    async with lab(world) as here:
        peer, other = await filled(here), await here.peer()
        sid = peer.pull("S", "d", {"batch": 1, "expires": LONG})
        other.pull("S", "d", {"batch": 1, "expires": LONG})
        await other.synced()
        assert (await peer.info("S", "d"))["num_waiting"] == 2
        peer.unsubscribe(sid)
        assert (await peer.info("S", "d"))["num_waiting"] == 1
        await other.end()
        await until(lambda: len(here.consumer("S", "d").ledger.waiting) == 0)
        await peer.stored("s.a", b"m0")
        assert state(await peer.info("S", "d")) == ((0, 0), (0, 0), 0, 0, 0, 1)


@pytest.mark.feature("P09")
async def test_an_auto_unsubscribe_takes_no_more_messages_than_it_delivers(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1", b"m2")
        sid = peer.subscribe("_INBOX.few")
        peer.unsubscribe(sid, 2)
        body = b'{"batch":5,"expires":60000000000}'
        peer.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", body, "_INBOX.few")
        assert [item.payload for item in await peer.several(2, sid)] == [b"m0", b"m1"]
        assert state(await peer.info("S", "d")) == ((2, 2), (0, 0), 2, 0, 0, 1)


@pytest.mark.feature("P09")
async def test_a_pull_to_an_inbox_without_subscriber_is_ignored(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        body = b'{"batch":1,"expires":60000000000}'
        peer.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", body, "_INBOX.nobody")
        assert (await peer.info("S", "d"))["num_waiting"] == 0


@pytest.mark.feature("P10")
async def test_a_pull_beyond_max_waiting_is_refused(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, max_waiting=1)
        peer.pull("S", "d", {"batch": 1, "expires": LONG})
        refused = await peer.next(peer.pull("S", "d", {"batch": 1, "expires": LONG}))
        assert refused.headers == b"NATS/1.0 409 Exceeded MaxWaiting\r\n\r\n"
        silent = peer.pull("S", "d", {"batch": 1, "expires": LONG, "idle_heartbeat": 1000 * MS})
        await peer.synced()
        assert peer.waiting(silent) == []


@pytest.mark.feature("P12")
async def test_bytes_are_counted_with_subject_and_ack_subject(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1", b"m2")
        message = await peer.next(peer.pull("S", "d"))
        size = len(message.subject) + len(message.reply) + len(message.payload)
        sid = peer.pull("S", "d", {"batch": 5, "expires": LONG, "max_bytes": size + 1})
        got = await peer.several(2, sid)
        assert got[0].payload == b"m1"
        assert got[1].headers == (
            b"NATS/1.0 409 Message Size Exceeds MaxBytes\r\nNats-Pending-Messages: 4\r\n"
            b"Nats-Pending-Bytes: 1\r\nNats-Msg-Size: %d\r\n\r\n" % size
        )
        sid = peer.pull("S", "d", {"batch": 1, "max_bytes": 1000})
        done = (await peer.several(2, sid))[1].headers
        assert done == (
            b"NATS/1.0 409 Batch Completed\r\nNats-Pending-Messages: 0\r\n"
            b"Nats-Pending-Bytes: %d\r\n\r\n" % (1000 - size)
        )


@pytest.mark.feature("P12")
async def test_heartbeats_name_the_last_sequences(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0")
        body = {"batch": 2, "expires": LONG, "idle_heartbeat": 500 * MS}
        sid = peer.pull("S", "d", body)
        beats = (await peer.several(3, sid))[1:]
        beat = (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
        )
        assert [message.headers for message in beats] == [beat, beat]


async def test_several_pulls_share_the_messages_in_turn(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        sids = [peer.pull("S", "d", {"batch": 2, "expires": LONG}) for _ in range(3)]
        await peer.synced()
        other = await here.peer()
        other.send(*[b"PUB s.a 2\r\nx%d\r\n" % number for number in range(6)])
        got = [[item.payload for item in await peer.several(2, sid)] for sid in sids]
        assert got == [[b"x0", b"x3"], [b"x1", b"x4"], [b"x2", b"x5"]]


@pytest.mark.feature("P11")
async def test_an_unacked_message_is_redelivered_until_max_deliver(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", ack_wait=30 * MS, max_deliver=2)
        given_up = peer.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
        sid = peer.pull("S", "d", {"batch": 5, "expires": LONG})
        got = await peer.several(2, sid)
        assert [numbers(item) for item in got] == [[1, 1, 1, 0], [2, 1, 2, 0]]
        told = (await peer.next(given_up)).payload
        assert b'"type":"io.nats.jetstream.advisory.v1.max_deliver"' in told
        assert b'"stream":"S","consumer":"d","stream_seq":1,"deliveries":2}' in told
        assert state(await peer.info("S", "d")) == ((2, 1), (0, 0), 0, 1, 1, 0)


async def test_an_ack_makes_room_for_a_pending_pull(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1", max_ack_pending=1, ack_wait=10 * LONG)
        sid = peer.pull("S", "d", {"batch": 2, "expires": 10 * LONG})
        first = await peer.next(sid)
        await peer.synced()
        assert peer.waiting(sid) == []
        peer.publish(first.reply, b"+ACK")
        assert (await peer.next(sid)).payload == b"m1"


async def test_headers_only_omits_the_payload_and_names_its_size(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", headers_only=True)
        message = await peer.next(peer.pull("S", "d"))
        assert (message.headers, message.payload) == (
            b"NATS/1.0\r\nNats-Msg-Size: 2\r\n\r\n",
            b"",
        )


async def test_a_paused_consumer_waits_until_its_time(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0")
        told = await peer.api("CONSUMER.PAUSE.S.d", {"pause_until": "2099-01-01T00:00:00Z"})
        assert (told["paused"], told["pause_until"]) == (True, "2099-01-01T00:00:00Z")
        sid = peer.pull("S", "d", {"batch": 1, "no_wait": True})
        assert (await peer.next(sid)).headers == NO_MESSAGES
        sid = peer.pull("S", "d", {"batch": 1, "expires": LONG})
        info = await peer.info("S", "d")
        assert info["paused"] is True
        assert info["pause_remaining"] > 0
        assert (await peer.api("CONSUMER.PAUSE.S.d"))["paused"] is False
        assert (await peer.next(sid)).payload == b"m0"


async def test_a_pause_ends_by_itself(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0")
        until = here.clock_text(50 * MS)
        await peer.api("CONSUMER.PAUSE.S.d", {"pause_until": until})
        sid = peer.pull("S", "d", {"batch": 1, "expires": LONG})
        assert (await peer.next(sid)).payload == b"m0"
        assert Clock().now_us() * 1000 >= parse_time(until)


async def test_an_overflow_pull_waits_for_its_minimum(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", priority_groups=["A"], priority_policy="overflow")
        body = {"batch": 1, "expires": LONG, "group": "A", "min_pending": 2}
        sid = peer.pull("S", "d", body)
        await peer.synced()
        assert peer.waiting(sid) == []
        await peer.stored("s.a", b"m1")
        assert (await peer.next(sid)).payload == b"m0"


async def test_of_simultaneous_requests_the_one_with_priority_is_served(
    world: World,
) -> None:
    async with lab(world) as here:
        rules = {"priority_groups": ["A"], "priority_policy": "prioritized"}
        peer = await filled(here, **rules)
        body = {"batch": 1, "expires": LONG, "group": "A"}
        low, high = (peer.pull("S", "d", body | {"priority": number}) for number in (1, 0))
        await peer.synced()
        await peer.stored("s.a", b"m0", b"m1")
        assert (await peer.next(high)).payload == b"m0"
        assert (await peer.next(low)).payload == b"m1"


async def test_only_the_pinned_client_is_served_and_knows_by_an_id(world: World) -> None:
    async with lab(world) as here:
        rules = {"priority_groups": ["A"], "priority_policy": "pinned_client"}
        peer = await filled(here, b"m0", b"m1", b"m2", **rules, priority_timeout=LONG)
        first = await peer.next(peer.pull("S", "d", {"batch": 1, "expires": LONG, "group": "A"}))
        pin = first.headers.split(b"Nats-Pin-Id: ")[1].split(b"\r\n")[0].decode()
        assert len(pin) == 22
        wrong = {"batch": 1, "expires": LONG, "group": "A", "id": "wrong"}
        refused = await peer.next(peer.pull("S", "d", wrong))
        assert refused.headers == b"NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n"
        other = peer.pull("S", "d", {"batch": 1, "expires": LONG, "group": "A"})
        own = peer.pull("S", "d", {"batch": 1, "expires": LONG, "group": "A", "id": pin})
        assert (await peer.next(own)).payload == b"m1"
        assert peer.waiting(other) == []
        group = (await peer.info("S", "d"))["priority_groups"][0]
        assert (group["group"], group["pinned_client_id"]) == ("A", pin)
        await peer.api("CONSUMER.UNPIN.S.d", {"group": "A"})
        assert (await peer.next(other)).payload == b"m2"


async def test_a_purge_settles_the_deleted_messages(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, *(b"m%d" % number for number in range(5)))
        await peer.several(2, peer.pull("S", "d", b"2"))
        assert (await peer.api("STREAM.PURGE.S"))["purged"] == 5
        assert state(await peer.info("S", "d")) == ((2, 5), (2, 5), 0, 0, 0, 0)


async def test_a_message_that_was_deleted_is_not_delivered_again(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, b"m0", b"m1")
        first = (await peer.several(2, peer.pull("S", "d", b"2")))[0]
        await peer.api("STREAM.MSG.DELETE.S", {"seq": 1})
        peer.publish(first.reply, b"-NAK")
        sid = peer.pull("S", "d", {"batch": 1, "no_wait": True})
        assert (await peer.next(sid)).headers == NO_MESSAGES
        assert (await peer.info("S", "d"))["num_ack_pending"] == 1


async def test_messages_from_disk_are_delivered_like_those_from_memory(world: World) -> None:
    async with lab(world) as here:
        payloads = [b"m%d" % number for number in range(20)]
        peer = await filled(here, *payloads)
        here.stream("S").opened.log._tail.clear()
        sid = peer.pull("S", "d", {"batch": 20, "no_wait": True})
        got = await peer.several(20, sid)
        assert [message.payload for message in got] == payloads
        assert [numbers(message)[3] for message in got] == list(range(19, -1, -1))


async def test_an_inactive_consumer_is_deleted_after_its_threshold(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("S", "brief", inactive_threshold=500 * MS)
        sid = peer.pull("S", "brief", {"batch": 1, "expires": 1200 * MS})
        await asyncio.sleep(0.7)
        assert here.consumers("S").get("brief") is not None
        assert b"408" in (await peer.next(sid)).headers
        await until(lambda: here.consumers("S").get("brief") is None)
        assert (await peer.info("S", "brief"))["error"]["err_code"] == 10014
