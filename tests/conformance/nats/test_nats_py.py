"""What programs do with nats-py, unmodified: the same with nats-server and with Penstock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as TooLate
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    RetentionPolicy,
    StreamConfig,
)
from nats.js.errors import (
    BadRequestError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NotFoundError,
)

from tests.conformance.nats.both import server
from tests.eventually import eventually
from tests.servers.nats import NatsServer

__all__ = ["server"]

pytestmark = pytest.mark.feature("P15")
WAIT_SECONDS = 30


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    connected = await nats.connect(server.url)
    yield connected
    await connected.close()


@pytest.fixture
async def streams(client: Client) -> JetStreamContext:
    """With an empty stream S of the subjects `s.>`."""
    context = client.jetstream()
    await context.add_stream(name="S", subjects=["s.>"])
    return context


async def _filled(streams: JetStreamContext, count: int) -> None:
    for number in range(count):
        await streams.publish("s.a", b"%d" % number)


# -- core


async def test_requests_are_answered_by_one_of_a_group(client: Client) -> None:
    async def answer(message: Any) -> None:
        await message.respond(message.data.upper())

    for _ in range(2):
        await client.subscribe("shout", queue="group", cb=answer)
    replies = [await client.request("shout", b"hi", timeout=WAIT_SECONDS) for _ in range(3)]
    assert [reply.data for reply in replies] == [b"HI"] * 3
    with pytest.raises(NoRespondersError):
        await client.request("nobody", b"", timeout=WAIT_SECONDS)


async def test_headers_and_limits_of_a_subscription(client: Client) -> None:
    subscription = await client.subscribe("a.*.c")
    await subscription.unsubscribe(limit=2)
    for number in range(3):
        await client.publish("a.b.c", b"%d" % number, headers={"K": "v"})
    seen = [await subscription.next_msg(timeout=WAIT_SECONDS) for _ in range(2)]
    assert [(message.data, message.headers) for message in seen] == [
        (b"0", {"K": "v"}),
        (b"1", {"K": "v"}),
    ]


async def test_a_drained_client_has_seen_everything(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    seen: list[bytes] = []

    async def note(message: Any) -> None:
        await asyncio.sleep(0.001)
        seen.append(message.data)

    await client.subscribe("drained", cb=note)
    for number in range(50):
        await client.publish("drained", b"%d" % number)
    await client.drain()
    assert seen == [b"%d" % number for number in range(50)]


# -- streams


async def test_a_duplicate_is_kept_once_and_expectations_hold(streams: JetStreamContext) -> None:
    first = await streams.publish("s.a", b"1", headers={"Nats-Msg-Id": "x"})
    again = await streams.publish("s.a", b"1", headers={"Nats-Msg-Id": "x"})
    assert (first.seq, first.duplicate, again.seq, again.duplicate) == (1, None, 1, True)
    with pytest.raises(BadRequestError, match="wrong last sequence: 1"):
        await streams.publish("s.a", b"2", headers={"Nats-Expected-Last-Sequence": "9"})
    with pytest.raises(BadRequestError, match="expected stream does not match"):
        await streams.publish("s.a", b"2", stream="T")


async def test_a_stream_is_found_changed_read_and_purged(streams: JetStreamContext) -> None:
    await _filled(streams, 3)
    assert await streams.find_stream_name_by_subject("s.a") == "S"
    changed = await streams.update_stream(StreamConfig("S", subjects=["s.>", "t"], max_msgs=10))
    assert (changed.config.subjects, changed.state.messages) == (["s.>", "t"], 3)
    message = await streams.get_msg("S", 2)
    assert (message.seq, message.data) == (2, b"1")
    assert (await streams.get_last_msg("S", "s.a")).seq == 3
    assert await streams.delete_msg("S", 2)
    with pytest.raises(NotFoundError, match="no message found"):
        await streams.get_msg("S", 2)
    await streams.purge_stream("S", keep=1)
    state = (await streams.stream_info("S")).state
    assert (state.messages, state.first_seq, state.last_seq) == (1, 3, 3)
    assert [info.config.name for info in await streams.streams_info()] == ["S"]


async def test_a_work_queue_forgets_what_is_done(client: Client) -> None:
    streams = client.jetstream()
    await streams.add_stream(name="W", subjects=["w"], retention=RetentionPolicy.WORK_QUEUE)
    await streams.publish("w", b"1")
    await streams.publish("w", b"2")
    subscription = await streams.pull_subscribe("w", "worker")
    done, _ = await subscription.fetch(2, timeout=WAIT_SECONDS)
    await done.ack_sync()
    assert (await streams.stream_info("W")).state.messages == 1


# -- pull


async def test_batches_are_fetched_and_acknowledged(streams: JetStreamContext) -> None:
    await _filled(streams, 5)
    subscription = await streams.pull_subscribe("s.a", "d")
    first = await subscription.fetch(2, timeout=WAIT_SECONDS)
    rest = await subscription.fetch(10, timeout=WAIT_SECONDS)
    assert [message.data for message in [*first, *rest]] == [b"%d" % n for n in range(5)]
    for message in [*first, *rest]:
        await message.ack_sync()
    info = await streams.consumer_info("S", "d")
    assert (info.num_ack_pending, info.num_pending, info.ack_floor.stream_seq) == (0, 0, 5)
    with pytest.raises(TooLate):
        await subscription.fetch(1, timeout=0.3)

    async def nobody_waits() -> bool:
        return not (await streams.consumer_info("S", "d")).num_waiting

    await eventually(nobody_waits)


async def test_what_is_not_acknowledged_comes_again_and_then_no_more(
    streams: JetStreamContext,
) -> None:
    await _filled(streams, 1)
    config = ConsumerConfig(max_deliver=2)
    subscription = await streams.pull_subscribe("s.a", "d", config=config)
    for deliveries in (1, 2):
        (message,) = await subscription.fetch(1, timeout=WAIT_SECONDS)
        assert message.metadata.num_delivered == deliveries
        await message.nak()
    with pytest.raises(TooLate):
        await subscription.fetch(1, timeout=0.3)


async def test_consumers_begin_where_they_are_told(streams: JetStreamContext) -> None:
    await _filled(streams, 4)
    begun = {
        DeliverPolicy.ALL: 1,
        DeliverPolicy.LAST: 4,
        DeliverPolicy.BY_START_SEQUENCE: 3,
        DeliverPolicy.LAST_PER_SUBJECT: 4,
    }
    for policy, sequence in begun.items():
        config = ConsumerConfig(
            deliver_policy=policy,
            opt_start_seq=3 if policy is DeliverPolicy.BY_START_SEQUENCE else None,
        )
        subscription = await streams.pull_subscribe("s.a", policy.value, config=config)
        (message,) = await subscription.fetch(1, timeout=WAIT_SECONDS)
        assert message.metadata.sequence.stream == sequence, policy


async def test_a_consumer_is_listed_and_deleted(streams: JetStreamContext) -> None:
    config = ConsumerConfig(durable_name="d", ack_policy=AckPolicy.ALL, description="one")
    made = await streams.add_consumer("S", config)
    assert (made.name, made.config.description, made.config.max_ack_pending) == ("d", "one", 1000)
    assert [info.name for info in await streams.consumers_info("S")] == ["d"]
    assert await streams.delete_consumer("S", "d")
    with pytest.raises(NotFoundError, match="consumer not found"):
        await streams.consumer_info("S", "d")


# -- push


@pytest.mark.feature("P16")
async def test_a_push_subscription_gets_what_is_there_and_what_comes(
    streams: JetStreamContext,
) -> None:
    await _filled(streams, 2)
    subscription = await streams.subscribe("s.a", durable="p")
    await streams.publish("s.a", b"2")
    seen = [await subscription.next_msg(timeout=WAIT_SECONDS) for _ in range(3)]
    assert [message.data for message in seen] == [b"0", b"1", b"2"]
    for message in seen:
        await message.ack_sync()
    assert (await streams.consumer_info("S", "p")).num_ack_pending == 0


@pytest.mark.feature("P16")
async def test_an_ordered_subscription_misses_nothing(streams: JetStreamContext) -> None:
    await _filled(streams, 100)
    subscription = await streams.subscribe("s.a", ordered_consumer=True)
    seen: dict[bytes, None] = {}
    # The client begins anew where it takes a slow start for a loss, and repeats the first ones.
    while len(seen) < 100:
        seen[(await subscription.next_msg(timeout=WAIT_SECONDS)).data] = None
    assert list(seen) == [b"%d" % number for number in range(100)]


@pytest.mark.feature("P16")
async def test_a_group_shares_a_push_consumer(streams: JetStreamContext) -> None:
    seen: list[bytes] = []

    async def note(message: Any) -> None:
        seen.append(message.data)

    for _ in range(2):
        await streams.subscribe("s.a", queue="q", cb=note)
    await _filled(streams, 20)
    async with asyncio.timeout(WAIT_SECONDS):
        while len(seen) < 20:
            await asyncio.sleep(0.01)
    assert sorted(seen) == sorted(b"%d" % number for number in range(20))


# -- key-value


@pytest.mark.feature("P17")
async def test_a_bucket_keeps_values_and_their_history(client: Client) -> None:
    bucket = await client.jetstream().create_key_value(bucket="history", history=3)
    revisions = [await bucket.put("k", b"%d" % number) for number in range(4)]
    entry = await bucket.get("k")
    assert (entry.value, entry.revision, revisions) == (b"3", 4, [1, 2, 3, 4])
    assert [one.value for one in await bucket.history("k")] == [b"1", b"2", b"3"]
    await bucket.delete("k")
    for missing in ("k", "other"):
        with pytest.raises(KeyNotFoundError):
            await bucket.get(missing)
    status = await bucket.status()
    assert (status.bucket, status.history, status.values) == ("history", 3, 3)


@pytest.mark.feature("P17")
async def test_a_key_is_made_and_changed_by_one_only(client: Client) -> None:
    bucket = await client.jetstream().create_key_value(bucket="locks")
    revision = await bucket.create("k", b"mine")
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.create("k", b"yours")
    changed = await bucket.update("k", b"still mine", last=revision)
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.update("k", b"yours", last=revision)
    await bucket.purge("k")
    assert await bucket.create("k", b"again") > changed


@pytest.mark.feature("P17")
async def test_keys_are_watched_and_listed(client: Client) -> None:
    bucket = await client.jetstream().create_key_value(bucket="watched")
    await bucket.put("a.x", b"1")
    await bucket.put("b.x", b"2")
    watcher: Any = await bucket.watch("a.*")
    first = await watcher.updates(timeout=WAIT_SECONDS)
    assert (first.key, first.value) == ("a.x", b"1")
    assert await watcher.updates(timeout=WAIT_SECONDS) is None
    await bucket.put("b.x", b"3")
    await bucket.delete("a.x")
    gone = await watcher.updates(timeout=WAIT_SECONDS)
    assert (gone.key, gone.operation) == ("a.x", "DEL")
    await watcher.stop()
    assert await bucket.keys() == ["b.x"]


@pytest.mark.feature("P17")
async def test_values_end_when_their_time_is_over(client: Client) -> None:
    bucket = await client.jetstream().create_key_value(bucket="short", ttl=1)
    await bucket.put("k", b"soon gone")
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await bucket.get("k")
            except KeyNotFoundError:
                break
            await asyncio.sleep(0.1)
    assert timedelta(seconds=(await bucket.status()).ttl or 0) == timedelta(seconds=1)


@pytest.mark.feature("P17")
async def test_an_object_store_is_sealed(client: Client) -> None:
    store = await client.jetstream().create_object_store("sealed")
    await store.put("a", b"first")
    await store.seal()  # type: ignore[no-untyped-call]
    assert (await store.status()).sealed
    assert (await store.get("a")).data == b"first"
    with pytest.raises(BadRequestError, match="invalid operation on sealed stream"):
        await store.put("a", b"second")
