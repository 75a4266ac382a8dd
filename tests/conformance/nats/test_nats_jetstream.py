"""What programs do with nats-core, nats-jetstream and nats-key-value, unmodified.

They need Python 3.13; with an older one these tests are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conformance.nats.both import server
from tests.servers.nats import NatsServer

__all__ = ["server"]

core = pytest.importorskip("nats.client", reason="nats-core needs Python 3.13")
jetstream = pytest.importorskip("nats.jetstream")
key_value = pytest.importorskip("nats.key_value")

pytestmark = pytest.mark.feature("P15")
WAIT_SECONDS = 30


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Any]:
    connected = await core.connect(server.url)
    yield connected
    await connected.close()


@pytest.fixture
async def streams(client: Any) -> Any:
    """With an empty stream S of the subjects `s.>`; strict: no field of an answer is unknown."""
    context = jetstream.new(client, strict=True)
    await context.create_stream(name="S", subjects=["s.>"], allow_direct=True)
    return context


async def _filled(streams: Any, count: int) -> None:
    for number in range(count):
        await streams.publish("s.a", b"%d" % number)


async def test_requests_are_answered(client: Any) -> None:
    async with await client.subscribe("echo") as subscription:

        async def answer() -> None:
            message = await subscription.next(timeout=WAIT_SECONDS)
            await client.publish(message.reply, message.data)

        answering = asyncio.create_task(answer())
        reply = await client.request("echo", b"hi", timeout=WAIT_SECONDS)
        await answering
    assert reply.data == b"hi"


async def test_messages_are_stored_read_and_deleted(streams: Any) -> None:
    await _filled(streams, 3)
    stream = await streams.get_stream("S")
    assert (await stream.get_message(2)).data == b"1"
    assert (await stream.get_last_message_for_subject("s.a")).sequence == 3
    await stream.delete_message(2)
    info = await stream.get_info(deleted_details=True)
    assert (info.state.messages, info.state.deleted) == (2, [2])
    await stream.purge()
    assert (await stream.get_info()).state.messages == 0


async def test_a_consumer_is_pulled(streams: Any) -> None:
    await _filled(streams, 5)
    consumer = await streams.create_consumer("S", name="d", durable_name="d", ack_policy="explicit")
    batch = await consumer.fetch(max_messages=3, max_wait=WAIT_SECONDS)
    seen = []
    async for message in batch:
        seen.append(message.data)
        await message.ack()
    assert seen == [b"0", b"1", b"2"]
    nothing_waits = await consumer.fetch_nowait(max_messages=10)
    assert [message.data async for message in nothing_waits] == [b"3", b"4"]


async def test_an_ordered_consumer_misses_nothing(streams: Any) -> None:
    await _filled(streams, 20)
    stream = await streams.get_stream("S")
    consumer = await stream.ordered_consumer()
    seen = []
    async for message in await consumer.messages():
        seen.append(message.data)
        if len(seen) == 20:
            break
    await consumer.close()
    assert seen == [b"%d" % number for number in range(20)]


@pytest.mark.feature("P17")
async def test_a_bucket_is_used(client: Any) -> None:
    context = jetstream.new(client, strict=True)
    config = key_value.KeyValueConfig(bucket="b", history=3)
    bucket = await key_value.create_key_value(context, config)
    assert [await bucket.put("k", value) for value in (b"1", b"2")] == [1, 2]
    assert (await bucket.get("k")).value == b"2"
    assert [entry.value async for entry in await bucket.history("k")] == [b"1", b"2"]
    await bucket.delete("k")
    assert [key async for key in await bucket.keys()] == []
