"""Acks as clients send them, and the replies."""

import pytest

from tests.broker.consumers import NO_MESSAGES, Lab, Peer, lab, until
from tests.broker.storage import World
from tests.unit.delivery.consumers.test_consumer import numbers, state

LONG = 60_000_000_000


async def filled(here: Lab, count: int = 3, **config: object) -> Peer:
    peer = await here.peer()
    await peer.stream("S", "s.>")
    await peer.stored("s.a", *(b"m%d" % number for number in range(count)))
    await peer.consumer("S", "d", **config)
    return peer


@pytest.mark.feature("P11")
@pytest.mark.parametrize("payload", [b"", b"+ACK", b"+OK"])
async def test_an_ack_settles_and_one_with_a_reply_is_answered_empty(
    world: World, payload: bytes
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        first = await peer.next(peer.pull("S", "d"))
        for _ in range(2):
            answer = await peer.request(first.reply, payload)
            assert (answer.reply, answer.headers, answer.payload) == ("", b"", b"")
        info = await peer.info("S", "d")
        assert state(info) == ((1, 1), (1, 1), 0, 0, 0, 2)
        assert "last_active" in info["ack_floor"]


@pytest.mark.feature("P11")
async def test_a_run_of_acks_settles_as_a_run(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 30)
        got = await peer.several(30, peer.pull("S", "d", b"30"))
        peer.send(*[f"PUB {item.reply} 4\r\n+ACK\r\n".encode() for item in got])
        assert state(await peer.info("S", "d")) == ((30, 30), (30, 30), 0, 0, 0, 0)


@pytest.mark.feature("P11")
async def test_a_naked_message_is_redelivered_now_or_after_a_delay(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        advisories = peer.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.S.d")
        first = await peer.next(peer.pull("S", "d"))
        assert (await peer.request(first.reply, b"-NAK")).payload == b""
        told = (await peer.next(advisories)).payload
        assert (
            b'"stream":"S","consumer":"d","consumer_seq":1,"stream_seq":1,"deliveries":1}' in told
        )
        again = await peer.next(peer.pull("S", "d"))
        assert numbers(again) == [2, 1, 2, 2]
        for delay in (b'-NAK {"delay":30000000}', b"-NAK 30ms"):
            peer.publish(again.reply, delay)
            sid = peer.pull("S", "d", {"batch": 3, "expires": LONG})
            got = await peer.several(3, sid)
            assert got[-1].payload == b"m0"
            for other in got[:2]:
                peer.publish(other.reply, b"-NAK")
            again = got[-1]


@pytest.mark.feature("P11")
async def test_a_termination_is_final_and_published_as_an_advisory(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 1)
        advisories = peer.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.S.d")
        first = await peer.next(peer.pull("S", "d"))
        assert (await peer.request(first.reply, b"+TERM bad thing")).payload == b""
        told = (await peer.next(advisories)).payload
        assert b'"type":"io.nats.jetstream.advisory.v1.terminated"' in told
        assert told.endswith(
            b'"consumer_seq":1,"stream_seq":1,"deliveries":1,"reason":"bad thing"}'
        )
        assert state(await peer.info("S", "d")) == ((1, 1), (1, 1), 0, 0, 0, 0)


@pytest.mark.feature("P11")
async def test_work_in_progress_gives_more_time(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 1, ack_wait=LONG)
        first = await peer.next(peer.pull("S", "d"))
        pending = here.consumer("S", "d").ledger.pending
        before = pending.deadline(1)
        assert (await peer.request(first.reply, b"+WPI")).payload == b""
        after = pending.deadline(1)
        assert before is not None
        assert after is not None
        assert after > before


@pytest.mark.feature("P11")
async def test_an_ack_may_ask_for_the_next_message(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        first = await peer.next(peer.pull("S", "d"))
        sid = peer.subscribe("_INBOX.nx")
        peer.publish(first.reply, b"+NXT", "_INBOX.nx")
        second = await peer.next(sid)
        assert numbers(second) == [1, 2, 2, 1]
        peer.publish(second.reply, b'+NXT {"batch":2,"no_wait":true}', "_INBOX.nx")
        got = await peer.several(2, sid)
        assert (got[0].payload, got[1].headers) == (b"m2", NO_MESSAGES)
        assert state(await peer.info("S", "d")) == ((3, 3), (2, 2), 1, 0, 0, 0)


async def test_unknown_ack_payloads_change_nothing_and_have_no_reply(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 1)
        first = await peer.next(peer.pull("S", "d"))
        sid = peer.subscribe("_INBOX.x")
        peer.publish(first.reply, b"garbage", "_INBOX.x")
        peer.publish("$JS.ACK.S.d.1.999.999.1.0", b"+ACK", "_INBOX.x")
        await peer.synced()
        await here.settled("S")
        await peer.synced()
        assert peer.waiting(sid) == []
        assert (await peer.info("S", "d"))["num_ack_pending"] == 1


async def test_acks_without_a_target_receive_no_responders(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 1)
        await peer.consumer("S", "careless", ack_policy="none")
        for subject in (
            "$JS.ACK.S.nope.1.1.1.1.0",
            "$JS.ACK.NOPE.d.1.1.1.1.0",
            "$JS.ACK.S.careless.1.1.1.1.0",
            "$JS.ACK.S.d.what",
        ):
            answer = await peer.request(subject, b"+ACK")
            assert answer.headers == f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()


async def test_acks_of_several_consumers_and_kinds_in_one_run_all_count(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("S", "e")
        mine = await peer.several(3, peer.pull("S", "d", b"3"))
        theirs = await peer.several(3, peer.pull("S", "e", b"3"))
        sid = peer.subscribe("_INBOX.done")
        said = [
            (mine[0].reply, b"+ACK", ""),
            (theirs[0].reply, b"+ACK", ""),
            (mine[1].reply, b"-NAK 1h", ""),
            (mine[2].reply, b"", "_INBOX.done"),
            (theirs[1].reply, b"+TERM", "_INBOX.done"),
        ]
        peer.send(
            *[
                f"PUB {to} {reply} {len(text)}\r\n".encode() + text + b"\r\n"
                for to, text, reply in said
            ]
        )
        await peer.several(2, sid)
        assert state(await peer.info("S", "d")) == ((3, 3), (1, 1), 1, 0, 0, 0)
        assert state(await peer.info("S", "e")) == ((3, 3), (2, 2), 1, 0, 0, 0)


async def test_a_pull_from_nobody_is_answered_at_once(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        for place in ("S.nope", "NOPE.nope"):
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{place}"
            answer = await peer.request(subject)
            assert answer.headers == f"NATS/1.0 503\r\nNats-Subject: {subject}\r\n\r\n".encode()


async def test_a_pull_without_a_reply_subject_is_ignored(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        peer.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", b"3")
        assert state(await peer.info("S", "d")) == ((0, 0), (0, 0), 0, 0, 0, 3)


async def test_pulls_and_acks_wait_for_consumers_that_are_still_being_read(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"+ACK")
        await peer.info("S", "d")
        await here.settled("S")
        found = await here.crash()
    async with lab(world, found) as again:
        peer = await again.peer()
        sid = peer.pull("S", "d", {"batch": 1, "expires": LONG})
        assert numbers(await peer.next(sid)) == [1, 2, 2, 1]
        await until(lambda: len(again.consumers("S")) == 1)


async def test_a_pull_that_needs_a_newer_server_is_refused(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        sid = peer.subscribe("_INBOX.new")
        for level, answer in (("99", b"NATS/1.0 412 Required Api Level\r\n\r\n"), ("1", b"")):
            block = f"NATS/1.0\r\nNats-Required-Api-Level: {level}\r\n\r\n".encode()
            place = "$JS.API.CONSUMER.MSG.NEXT.S.d _INBOX.new"
            peer.send(f"HPUB {place} {len(block)} {len(block)}\r\n".encode(), block, b"\r\n")
            assert (await peer.next(sid)).headers == answer
