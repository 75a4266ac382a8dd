import asyncio
import socket

import msgspec
import pytest

from penstock import BrokerRefused, BrokerUnreachable, Client
from tests.unit.client.script import TOPIC
from tests.unit.client.served import serving


async def test_requests_run_at_the_same_time() -> None:
    with serving() as server:
        async with Client(server.url) as client:
            server.body = msgspec.json.encode(TOPIC)
            topics = await asyncio.gather(*(client.topic("orders") for _ in range(5)))
            assert {topic.durability for topic in topics} == {"fsync"}
            assert len(server.seen) == 5


async def test_an_error_has_the_broker_s_message() -> None:
    with serving() as server:
        async with Client(server.url) as client:
            server.status, server.body = 409, b'{"message":"exists"}'
            with pytest.raises(BrokerRefused, match="exists"):
                await client.create_topic("x", ["id:int64"])
            assert server.seen[0].content_type == "application/json"


async def test_a_broker_that_does_not_run_is_an_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    async with Client(url) as client:
        with pytest.raises(BrokerUnreachable, match="does not answer"):
            await client.topics()
