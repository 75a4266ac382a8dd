import asyncio

import pytest

from penstock.client.nats.client import NatsClient, PullSubscription, Stored
from penstock.client.nats.errors import NatsError, NatsRefused
from tests.unit.client.nats.served import Scripted

NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.d"
INFO = b'{"type":"x","name":"d"}'
MISSING = b'{"error":{"code":404,"err_code":10014,"description":"consumer not found"}}'


def _answer(inbox: bytes, sid: int, payload: bytes) -> bytes:
    return b"MSG %b %d %d\r\n%b\r\n" % (inbox, sid, len(payload), payload)


async def _subscribed(server: Scripted, client: NatsClient) -> PullSubscription:
    subscribing = asyncio.create_task(client.pull_subscribe("S", "d"))
    await server.heard(b"PUB $JS.API.CONSUMER.INFO.S.d _INBOX.u0 0\r\n\r\n")
    server.say(_answer(b"_INBOX.u0", 1, INFO))
    subscription = await subscribing
    await server.heard(b"SUB _INBOX.u1.* 2\r\n")
    return subscription


async def test_a_publish_returns_where_the_message_is_stored() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        publishing = asyncio.create_task(client.publish("s.a", b"hi", {"Nats-Msg-Id": "x"}))
        await server.heard(b"HPUB s.a _INBOX.u0 28 30\r\nNATS/1.0\r\nNats-Msg-Id: x\r\n\r\nhi\r\n")
        server.say(_answer(b"_INBOX.u0", 1, b'{"stream":"S","seq":7,"duplicate": true}'))
        assert await publishing == Stored("S", 7, True)


async def test_send_does_not_wait_for_a_reply() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        await client.send("a", b"hi")
        await client.flush()
        assert b"PUB a 2\r\nhi\r\nPING\r\n" in server.sent


async def test_an_error_reply_of_the_api_is_raised() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        asking = asyncio.create_task(client.api("STREAM.INFO.S", {"a": 1}))
        await server.heard(b'PUB $JS.API.STREAM.INFO.S _INBOX.u0 8\r\n{"a": 1}\r\n')
        server.say(_answer(b"_INBOX.u0", 1, MISSING))
        with pytest.raises(NatsRefused) as raised:
            await asking
        assert (raised.value.status, raised.value.err_code) == (404, 10014)


async def test_a_missing_consumer_is_created() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscribing = asyncio.create_task(client.pull_subscribe("S", "d", "s.a"))
        await server.heard(b"CONSUMER.INFO.S.d _INBOX.u0 0\r\n\r\n")
        server.say(_answer(b"_INBOX.u0", 1, MISSING))
        await server.heard(
            b"PUB $JS.API.CONSUMER.DURABLE.CREATE.S.d _INBOX.u1 104\r\n"
            b'{"stream_name": "S", "config": {"durable_name": "d", "ack_policy": "explicit", '
            b'"filter_subject": "s.a"}}\r\n'
        )
        server.say(_answer(b"_INBOX.u1", 2, INFO))
        await subscribing


async def test_other_errors_of_the_consumer_lookup_are_raised() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscribing = asyncio.create_task(client.pull_subscribe("S", "d"))
        await server.heard(b"CONSUMER.INFO.S.d _INBOX.u0 0\r\n\r\n")
        server.say(_answer(b"_INBOX.u0", 1, MISSING.replace(b"10014", b"10059")))
        with pytest.raises(NatsRefused):
            await subscribing


@pytest.mark.feature("P14")
async def test_a_cancelled_fetch_unsubscribes() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscription = await _subscribed(server, client)
        fetching = asyncio.create_task(subscription.fetch(5, 60))
        await server.heard(b'PUB %b _INBOX.u2 26\r\n{"batch":5,"no_wait":true}\r\n' % NEXT)
        fetching.cancel()
        await asyncio.wait([fetching])
        await server.heard(b"UNSUB 3\r\n")
        assert fetching.cancelled()


@pytest.mark.feature("P14")
async def test_a_single_message_is_pulled_over_the_subscription_s_inbox() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscription = await _subscribed(server, client)
        fetching = asyncio.create_task(subscription.fetch(1, 60))
        await server.heard(b'PUB %b _INBOX.u1.1 26\r\n{"batch":1,"no_wait":true}\r\n' % NEXT)
        server.say(b"MSG s.a 2 $JS.ACK.S.d.1.1.1.1.0 2\r\nhi\r\n")
        (message,) = await fetching
        await message.ack()
        await server.heard(b"PUB $JS.ACK.S.d.1.1.1.1.0 4\r\n+ACK\r\n")
        assert message.payload == b"hi"


async def test_a_message_that_arrives_too_late_is_returned_by_the_next_fetch() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscription = await _subscribed(server, client)
        with pytest.raises(NatsError):
            await subscription.fetch(1, 0.01)
        server.say(b"MSG s.a 2 $JS.ACK.S.d.1.1.1.1.0 4\r\nlate\r\n")
        (message,) = await subscription.fetch(1, 60)
        assert message.payload == b"late"


async def test_closing_a_subscription_unsubscribes() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscription = await _subscribed(server, client)
        await subscription.close()
        await server.heard(b"UNSUB 2\r\n")


async def test_a_batch_has_at_least_one_message() -> None:
    async with Scripted() as server, NatsClient(await server.connect()) as client:
        subscription = await _subscribed(server, client)
        with pytest.raises(NatsError, match=r"^a batch has at least one message, not 0$"):
            await subscription.fetch(0)
