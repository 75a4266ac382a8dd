"""The life cycle of consumers: creation, restart, update and deletion."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.delivery.consumers import feed as feeds
from penstock.log import Settled
from penstock.log.append.settlements import Settlements
from penstock.metadata import SubscriptionId
from penstock.model.names import TopicName
from penstock.model.resources import Durability, TopicSpec
from penstock.model.run import ColumnRun
from tests.broker.consumers import NO_MESSAGES, Lab, Peer, lab, until
from tests.broker.storage import KEYS, World
from tests.broker.topics import BY_REGION, region
from tests.unit.delivery.consumers.test_consumer import numbers, state

LONG = 60_000_000_000
TOPIC = TopicName("default", "default", "S")


async def filled(here: Lab, count: int = 6, **config: Any) -> Peer:
    peer = await here.peer()
    await peer.stream("S", "s.>")
    await peer.stored("s.a", *(b"m%d" % number for number in range(count)))
    await peer.consumer("S", "d", **config)
    return peer


async def sequences(peer: Peer, name: str = "d") -> list[tuple[int, int]]:
    """Stream sequence and number of deliveries of all messages that are delivered now."""
    sid = peer.pull("S", name, {"batch": 100, "no_wait": True})
    found = []
    while (message := await peer.next(sid)).headers != NO_MESSAGES:
        deliveries, seq, *_ = numbers(message)
        found.append((seq, deliveries))
    return found


@pytest.mark.feature("P18")
async def test_after_a_crash_no_acked_message_is_redelivered_and_no_other_is_lost(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here, ack_wait=50_000_000)
        got = await peer.several(4, peer.pull("S", "d", b"4"))
        for message in (got[0], got[2]):
            peer.publish(message.reply, b"+ACK")
        before = state(await peer.info("S", "d"))
        await here.settled("S")
        found = await here.crash()
    async with lab(world, found) as again:
        peer = await again.peer()
        assert state(await peer.info("S", "d")) == before == ((4, 4), (1, 1), 2, 0, 0, 2)
        sid = peer.pull("S", "d", {"batch": 4, "expires": LONG})
        seen = sorted(tuple(numbers(item)[:2]) for item in await peer.several(4, sid))
        assert seen == [(1, 5), (1, 6), (2, 2), (2, 4)]


@pytest.mark.feature("P18")
async def test_answered_acks_are_never_undone(world: World) -> None:
    """No other settlements are written, because the interval does not end in this test."""
    async with lab(world) as here:
        peer = await filled(here)
        got = await peer.several(3, peer.pull("S", "d", b"3"))
        await peer.request(got[0].reply, b"+ACK")
        await peer.request(got[2].reply, b"+TERM")
        found = await here.crash()
    async with lab(world, found) as again:
        ledger = (await loaded(again)).ledger
        assert list(ledger.pending.consumer_seqs) == [2]
        assert await sequences(await again.peer()) == [(4, 1), (5, 1), (6, 1)]


@pytest.mark.feature("P18")
async def test_an_exhausted_message_is_not_redelivered_after_a_restart(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, max_deliver=1)
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"-NAK")
        await peer.synced()
        await here.settled("S")
        found = await here.crash()
    async with lab(world, found) as again:
        peer = await again.peer()
        assert await sequences(peer) == [(seq, 1) for seq in range(2, 7)]


async def loaded(here: Lab) -> Any:
    await until(lambda: here.consumers("S").get("d") is not None)
    return here.consumer("S", "d")


async def test_a_consumer_in_memory_does_not_survive_a_restart(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await peer.consumer("S", "brief", mem_storage=True)
        found = await here.crash()
    async with lab(world, found) as again:
        peer = await again.peer()
        assert (await peer.api("CONSUMER.NAMES.S"))["consumers"] == ["d"]


async def test_configurations_and_changes_of_them_are_kept(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        changed = await peer.consumer("S", "d", description="new", filter_subject="s.b")
        assert changed["num_pending"] == 0
        found = await here.crash()
    async with lab(world, found) as again:
        peer = await again.peer()
        assert (await peer.info("S", "d"))["config"] == changed["config"]


async def test_a_consumer_created_again_inherits_nothing(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        for message in await peer.several(6, peer.pull("S", "d", b"6")):
            await peer.request(message.reply, b"+ACK")
        await peer.api("CONSUMER.DELETE.S.d")
        await peer.consumer("S", "d")
        found = await here.crash()
    async with lab(world, found) as again:
        assert len(await sequences(await again.peer())) == 6


@pytest.mark.feature("T21")
async def test_without_the_disk_a_consumer_continues_from_the_floor_in_metadata(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        for message in (await peer.several(3, peer.pull("S", "d", b"3")))[:2]:
            peer.publish(message.reply)
        await peer.synced()
        subscription = SubscriptionId(TOPIC, "d")
        await until(lambda: here.progress.floor(subscription) is not None)
        assert await here.progress.flush()
        assert here.progress.floor(subscription) == 2
        await here.settled("S")
        found = await here.crash()

    read = Settlements.read

    async def nothing(self: Settlements, kind: str) -> list[Settled]:
        await read(self, kind)
        return []

    monkeypatch.setattr(Settlements, "read", nothing)
    async with lab(world, found) as again:
        assert await sequences(await again.peer()) == [(seq, 1) for seq in range(3, 7)]


async def test_last_per_subject_continues_after_a_restart(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s.>")
        for name in "abcabc":
            await peer.stored(f"s.{name}", name.encode())
        await peer.consumer("S", "d", deliver_policy="last_per_subject", filter_subject="s.*")
        first = await peer.next(peer.pull("S", "d"))
        assert numbers(first) == [1, 4, 1, 2]
        await peer.request(first.reply, b"+ACK")
        found = await here.crash()
    async with lab(world, found) as again:
        await loaded(again)
        peer = await again.peer()
        await peer.stored("s.b", b"newer")
        assert await sequences(peer) == [(5, 1), (6, 1), (7, 1)]


async def test_a_deleted_consumer_leaves_no_key_and_ends_pending_pulls(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 0)
        sid = peer.pull("S", "d", {"batch": 4, "expires": LONG})
        await peer.synced()
        assert (await peer.api("CONSUMER.DELETE.S.d"))["success"] is True
        ended = await peer.next(sid)
        assert ended.headers == b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
        kept = (await world.metadata.range(KEYS.subscriptions(TOPIC))).entries
        assert kept == []


async def test_deleting_the_stream_ends_pending_pulls_before_it_is_answered(
    world: World,
) -> None:
    async with lab(world) as here:
        peer = await filled(here, 0)
        sid = peer.pull("S", "d", {"batch": 4, "expires": LONG})
        await peer.synced()
        peer.publish("$JS.API.STREAM.DELETE.S", b"", "_INBOX.deleted")
        peer.subscribe("_INBOX.deleted")
        assert b"409 Consumer Deleted" in (await peer.next(sid)).headers
        await until(lambda: here.gone("S"))


async def test_pending_pulls_receive_a_status_when_the_broker_stops(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here, 0)
        sid = peer.pull("S", "d", {"batch": 4, "expires": LONG})
        await peer.synced()
        await here.close()
        assert (await peer.next(sid)).headers == (
            b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 4\r\n"
            b"Nats-Pending-Bytes: 0\r\n\r\n"
        )


async def test_a_work_queue_gives_a_subject_to_one_consumer(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("W", "w.>", retention="workqueue")
        await peer.consumer("W", "x", filter_subject="w.a")

        async def refused(name: str, **config: Any) -> int:
            whole = {"durable_name": name, "ack_policy": "explicit", **config}
            body = {"stream_name": "W", "config": whole}
            told = await peer.api(f"CONSUMER.CREATE.W.{name}", body)
            return int(told["error"]["err_code"])

        assert await refused("y", filter_subject="w.*") == 10100
        assert await refused("y") == 10099
        await peer.consumer("W", "y", filter_subject="w.b")
        assert await refused("y", filter_subject="w.>") == 10100


async def test_no_more_consumers_than_the_stream_allows(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("M", "m", max_consumers=1)
        await peer.consumer("M", "a")
        body = {"stream_name": "M", "config": {"durable_name": "b"}}
        told = await peer.api("CONSUMER.CREATE.M.b", body)
        assert told["error"]["err_code"] == 10026


async def test_a_consumer_is_not_created_if_it_cannot_be_recorded(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await world.depose(TOPIC)
        body = {"stream_name": "S", "config": {"durable_name": "b"}}
        told = await peer.api("CONSUMER.CREATE.S.b", body)
        assert told["error"]["code"] == 500
        assert here.consumers("S").get("b") is None


async def test_a_topic_in_memory_has_consumers_too(world: World) -> None:
    async with lab(world) as here:
        spec = TopicSpec(TopicName("default", "default", "M"), durability=Durability.MEMORY)
        await here.topics.create_topic(spec)
        peer = await here.peer()
        await peer.stored("M", b"m0", b"m1")
        await peer.consumer("M", "d")
        got = await peer.several(2, peer.pull("M", "d", b"2"))
        assert (await peer.request(got[0].reply, b"+ACK")).payload == b""
        assert (await peer.info("M", "d"))["num_ack_pending"] == 1
        await peer.api("CONSUMER.DELETE.M.d")


async def test_a_partition_of_a_topic_has_consumers_of_its_own(world: World) -> None:
    async with lab(world) as here:
        await here.topics.create_topic(BY_REGION)
        opened = here.topics.get(BY_REGION.name)
        for name in ("north", "south"):
            (partition,) = await opened.partitions.ensure([region(name)])
            batch = pa.record_batch({"region": [name] * 2})
            await opened.log.append(ColumnRun(batch, partition=partition))
        peer = await here.peer()
        await peer.consumer("regions--0", "d")
        await peer.consumer("regions--1", "d")
        got = await peer.several(2, peer.pull("regions--1", "d", b"2"))
        assert [numbers(message) for message in got] == [[1, 1, 1, 1], [1, 2, 2, 0]]
        await peer.request(got[0].reply, b"+ACK")
        assert (await peer.info("regions--0", "d"))["num_pending"] == 2
        found = await here.crash()
    async with lab(world, found) as again:
        peer = await again.peer()
        assert state(await peer.info("regions--1", "d")) == ((2, 2), (1, 1), 1, 0, 0, 0)
        assert state(await peer.info("regions--0", "d")) == ((0, 0), (0, 0), 0, 0, 0, 2)


@pytest.mark.feature("P18")
async def test_a_reset_that_was_answered_holds_after_a_crash_with_and_without_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        for message in await peer.several(6, peer.pull("S", "d", b"6")):
            await peer.request(message.reply, b"+ACK")
        await until(lambda: here.progress.floor(SubscriptionId(TOPIC, "d")) is not None)
        assert await here.progress.flush()
        assert (await peer.api("CONSUMER.RESET.S.d", {"seq": 3}))["reset_seq"] == 3
        found = await here.crash()
    async with lab(world, found) as again:
        assert (await loaded(again)).ledger.stream_seq == 2
        found = await again.crash()
    read = Settlements.read

    async def nothing(self: Settlements, kind: str) -> list[Settled]:
        await read(self, kind)
        return []

    monkeypatch.setattr(Settlements, "read", nothing)
    async with lab(world, found) as again:
        assert await sequences(await again.peer()) == [(seq, 1) for seq in range(3, 7)]


async def test_a_consumer_whose_record_cannot_be_deleted_remains(world: World) -> None:
    async with lab(world) as here:
        peer = await filled(here)
        await world.depose(TOPIC)
        told = await peer.api("CONSUMER.DELETE.S.d")
        assert told["error"]["code"] == 500
        assert here.consumers("S").get("d") is not None
        assert await sequences(peer) == [(seq, 1) for seq in range(1, 7)]


async def test_messages_delivered_during_a_filter_change_are_not_delivered_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lab(world) as here:
        peer, other = await filled(here), await here.peer()

        async def slow(*wanted: Any) -> Any:
            made = await feeds.create_feed(*wanted)
            await other.several(2, other.pull("S", "d", b"2"))
            return made

        with monkeypatch.context() as patched:
            patched.setattr("penstock.delivery.consumers.consumers.create_feed", slow)
            await peer.consumer("S", "d", filter_subject="s.a")
        assert await sequences(peer) == [(seq, 1) for seq in range(3, 7)]
