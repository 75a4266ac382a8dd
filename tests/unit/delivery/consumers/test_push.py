"""Push consumers."""

import pytest

from penstock.delivery.consumers import push
from penstock.delivery.consumers.push import FlowWindow, PushConsumer
from tests.broker.consumers import UNSETTLED, lab, until
from tests.broker.storage import World

MS = 1_000_000


@pytest.mark.feature("P16")
async def test_messages_wait_until_the_deliver_subject_has_a_subscriber(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s.>")
        await peer.stored("s.a", b"m0", b"m1")
        info = await peer.consumer("S", "p", deliver_subject="to.p")
        assert "push_bound" not in info
        assert (info["num_pending"], info["num_waiting"]) == (2, 0)
        sid = peer.subscribe("to.p")
        got = await peer.several(2, sid)
        assert [(item.subject, item.payload) for item in got] == [("s.a", b"m0"), ("s.a", b"m1")]
        info = await peer.info("S", "p")
        assert (info["push_bound"], info["num_ack_pending"], info["num_waiting"]) == (True, 2, 0)
        await peer.stored("s.b", b"m2")
        assert (await peer.next(sid)).payload == b"m2"
        peer.unsubscribe(sid)
        await peer.stored("s.b", b"m3")
        info = await peer.info("S", "p")
        assert "push_bound" not in info
        assert info["num_pending"] == 1
        assert (await peer.next(peer.subscribe("to.p"))).payload == b"m3"


@pytest.mark.feature("P16")
async def test_an_unacked_message_is_pushed_again(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        sid = peer.subscribe("to.p")
        await peer.consumer("S", "p", deliver_subject="to.p", ack_wait=20 * MS, max_ack_pending=1)
        await peer.stored("s", b"m0", b"m1")
        got = await peer.several(2, sid)
        assert [item.payload for item in got] == [b"m0", b"m0"]
        peer.publish(got[0].reply)
        while (again := await peer.next(sid)).payload != b"m1":
            pass
        assert again.reply.split(".")[4] == "1"


@pytest.mark.feature("P16")
async def test_a_queue_group_shares_the_messages(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        sids = [peer.subscribe("to.p", "group") for _ in range(2)]
        await peer.consumer("S", "p", deliver_subject="to.p", deliver_group="group")
        payloads = [b"m%d" % number for number in range(40)]
        await peer.stored("s", *payloads)
        await until(lambda: here.consumer("S", "p").ledger.consumer_seq == 40)
        await peer.synced()
        got = [{item.payload for item in peer.waiting(sid)} for sid in sids]
        assert got[0] | got[1] == set(payloads)
        assert not got[0] & got[1]
        assert got[0]
        assert got[1]


@pytest.mark.feature("P16")
async def test_heartbeats_are_sent_while_there_are_no_messages(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        sid = peer.subscribe("to.p")
        await peer.consumer(
            "S", "p", deliver_subject="to.p", idle_heartbeat=500 * MS, ack_policy="none"
        )
        await peer.next(sid)
        beat = (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
        )
        for _ in range(2):
            message = await peer.next(sid)
            assert (message.subject, message.headers, message.reply) == ("to.p", beat, "")


@pytest.mark.feature("P16")
async def test_flow_control_holds_back_until_the_client_answers(
    world: World,
) -> None:
    async with lab(world, delivery=UNSETTLED._replace(flow_window_bytes=1000)) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        sid = peer.subscribe("to.p")
        flow = {"flow_control": True, "idle_heartbeat": 1000 * MS, "ack_policy": "none"}
        await peer.consumer("S", "p", deliver_subject="to.p", **flow)
        await peer.stored("s", b"x" * 1000)
        assert len((await peer.next(sid)).payload) == 1000
        asked = await peer.next(sid)
        assert asked.headers == b"NATS/1.0 100 FlowControl Request\r\n\r\n"
        assert asked.reply.startswith("$JS.FC.S.p.")
        await peer.stored("s", b"later")
        stalled = await peer.next(sid)
        assert stalled.headers.endswith(
            f"\r\nNats-Consumer-Stalled: {asked.reply}\r\n\r\n".encode()
        )
        peer.publish("$JS.FC.S.p.made-up")
        peer.publish(asked.reply)
        assert (await peer.next(sid)).payload == b"later"


@pytest.mark.feature("P16")
async def test_a_window_that_is_full_after_a_reply_is_requested_again(world: World) -> None:
    """A run larger than twice the window may be sent between a request and its reply."""
    async with lab(world, delivery=UNSETTLED._replace(flow_window_bytes=1000)) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        sid = peer.subscribe("to.p")
        flow = {"flow_control": True, "idle_heartbeat": 60_000 * MS, "ack_policy": "none"}
        await peer.consumer("S", "p", deliver_subject="to.p", **flow)
        await peer.stored("s", b"x" * 600)
        await peer.next(sid)
        first = await peer.next(sid)
        await peer.stored("s", b"x" * 5000)
        assert len((await peer.next(sid)).payload) == 5000
        await peer.stored("s", b"later")
        peer.publish(first.reply)
        second = await peer.next(sid)
        assert second.headers == b"NATS/1.0 100 FlowControl Request\r\n\r\n"
        peer.publish(second.reply)
        assert (await peer.next(sid)).payload == b"later"


async def test_a_rate_limit_spaces_the_messages(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        sid = peer.subscribe("to.p")
        await peer.consumer("S", "p", deliver_subject="to.p", rate_limit_bps=1)
        await peer.stored("s", b"m0")
        await peer.next(sid)
        await peer.stored("s", b"m1")
        await peer.synced()
        assert peer.waiting(sid) == []
        consumer = here.consumer("S", "p")
        assert isinstance(consumer, PushConsumer)
        consumer._outbox._end_rate_pause()
        assert (await peer.next(sid)).payload == b"m1"


async def test_a_changed_deliver_subject_receives_the_messages(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        first, second = peer.subscribe("to.p"), peer.subscribe("to.q")
        await peer.consumer("S", "p", deliver_subject="to.p")
        await peer.stored("s", b"m0")
        assert (await peer.next(first)).payload == b"m0"
        await peer.consumer("S", "p", deliver_subject="to.q")
        await peer.stored("s", b"m1")
        assert (await peer.next(second)).payload == b"m1"
        assert peer.waiting(first) == []


async def test_a_deleted_push_consumer_sends_no_status(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        sid = peer.subscribe("to.p")
        await peer.consumer("S", "p", deliver_subject="to.p")
        await peer.api("CONSUMER.DELETE.S.p")
        await peer.stored("s", b"m0")
        await peer.synced()
        assert peer.waiting(sid) == []


def test_a_flow_request_is_sent_at_half_the_window_and_each_reply_doubles_it() -> None:
    window = FlowWindow(2 << 20)
    half = window.bytes_max // 2
    assert not window.add(half)
    assert window.add(1)
    window.begin_request(b"q")
    assert not window.add(half)
    before = window.full
    window.end_request()
    assert (before, window.full) == (True, False)
    assert (window.bytes, window.bytes_max) == (half, 4 * half)
    for _ in range(9):
        window.end_request()
    assert window.bytes_max == push.WINDOW_BYTES_MAX
