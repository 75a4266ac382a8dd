"""Work queues and interest retention delete settled messages, and no others."""

import asyncio
from typing import Any

import pytest

from penstock.streams.stream import Stream
from tests.broker.consumers import Lab, Peer, lab, until
from tests.broker.storage import World


async def filled(here: Lab, retention: str, consumers: dict[str, dict[str, Any]]) -> Peer:
    peer = await here.peer()
    await peer.stream("Q", "q.>", retention=retention)
    for name, config in consumers.items():
        await peer.consumer("Q", name, **config)
    for number in range(3):
        await peer.stored(f"q.{number % 2}", b"m%d" % number)
    return peer


async def kept(peer: Peer) -> tuple[int, int, int]:
    """The number of messages, the first and the last sequence."""
    state = (await peer.api("STREAM.INFO.Q"))["state"]
    return state["messages"], state["first_seq"], state["last_seq"]


@pytest.mark.feature("P11")
async def test_an_ack_removes_a_message_from_a_work_queue_before_it_is_answered(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here, "workqueue", {"d": {}})
        got = await peer.several(2, peer.pull("Q", "d", b"2"))
        await peer.request(got[0].reply, b"+ACK")
        assert await kept(peer) == (2, 2, 3)
        await peer.request(got[1].reply, b"+TERM")
        assert await kept(peer) == (1, 3, 3)


async def test_an_ack_is_not_answered_before_the_message_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await filled(here, "workqueue", {"d": {}})
        got = await peer.next(peer.pull("Q", "d"))
        deleting, go_on = asyncio.Event(), asyncio.Event()
        delete = Stream.delete

        async def slow(self: Stream, *wanted: Any) -> None:
            deleting.set()
            await go_on.wait()
            await delete(self, *wanted)

        monkeypatch.setattr(Stream, "delete", slow)
        sid = peer.subscribe("_INBOX.done")
        peer.publish(got.reply, b"+ACK", "_INBOX.done")
        await deleting.wait()
        await here.settled("Q")
        await peer.synced()
        assert peer.waiting(sid) == []
        go_on.set()
        await peer.next(sid)


@pytest.mark.feature("P11")
async def test_a_run_of_acks_empties_a_work_queue(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, "workqueue", {"d": {}})
        got = await peer.several(3, peer.pull("Q", "d", b"3"))
        peer.send(*[f"PUB {item.reply} 0\r\n\r\n".encode() for item in got])
        await until(lambda: here.stream("Q").messages == 0)
        assert await kept(peer) == (0, 4, 3)


@pytest.mark.feature("P11")
async def test_with_interest_a_message_stays_until_all_have_settled_it(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, "interest", {"a": {}, "b": {}})
        for_a = await peer.next(peer.pull("Q", "a"))
        await peer.request(for_a.reply, b"+ACK")
        assert await kept(peer) == (3, 1, 3)
        for_b = await peer.next(peer.pull("Q", "b"))
        await peer.request(for_b.reply, b"+ACK")
        assert await kept(peer) == (2, 2, 3)


async def test_with_interest_only_matching_consumers_retain_a_message(world: World) -> None:
    async with lab(world) as here:
        filters = {"a": {"filter_subject": "q.0"}, "b": {"filter_subject": "q.1"}}
        peer = await filled(here, "interest", filters)
        got = await peer.several(2, peer.pull("Q", "a", b"2"))
        await peer.request(got[1].reply, b"+ACK")
        assert await kept(peer) == (2, 1, 3)
        await peer.request(got[0].reply, b"+ACK")
        assert await kept(peer) == (1, 2, 3)


async def test_without_interest_no_message_is_stored(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, "interest", {"a": {"filter_subject": "q.1"}})
        assert (await kept(peer))[0] == 1


async def test_messages_that_only_a_deleted_consumer_needed_are_deleted(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, "interest", {"a": {}, "b": {}})
        for item in await peer.several(2, peer.pull("Q", "a", b"2")):
            await peer.request(item.reply, b"+ACK")
        assert await kept(peer) == (3, 1, 3)
        await peer.api("CONSUMER.DELETE.Q.b")
        await until(lambda: here.stream("Q").messages == 1)
        await peer.api("CONSUMER.DELETE.Q.a")
        await until(lambda: here.stream("Q").messages == 0)


async def test_without_acks_delivery_settles_messages(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, "interest", {"a": {"ack_policy": "none"}})
        await peer.several(3, peer.pull("Q", "a", b"3"))
        await until(lambda: here.stream("Q").messages == 0)


@pytest.mark.feature("P18")
async def test_settled_messages_are_deleted_after_a_crash(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_yet(self: Stream, *wanted: Any) -> None:
        await asyncio.sleep(60)

    async with lab(world) as here:
        peer = await filled(here, "workqueue", {"a": {"filter_subject": "q.0", "max_deliver": 1}})
        got = await peer.several(2, peer.pull("Q", "a", b"2"))
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "delete", not_yet)
            peer.publish(got[0].reply, b"+ACK")
            peer.publish(got[1].reply, b"-NAK")
            await peer.synced()
            await here.settled("Q")
            found = await here.crash()
            here.consumers("Q").settlements._unneeded._working.cancel()  # type: ignore[union-attr]
    async with lab(world, found) as again:
        await until(lambda: again.stream("Q").messages == 2)
        peer = await again.peer()
        assert await kept(peer) == (2, 2, 3)
