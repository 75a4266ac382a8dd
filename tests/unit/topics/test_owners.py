"""Requests to an owner, and the errors if it does not reply."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from penstock.formats import api
from penstock.model.names import TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic, TopicSpec
from penstock.model.units import Microseconds, Offset
from penstock.topics import TopicPartition
from penstock.topics.remote import Owners, OwnerUnavailable
from tests.unit.formats.contents import raw
from tests.unit.topics.owner_server import owner

NAME = TopicName("acme", "shop", "orders")
TOPIC = Topic(TopicSpec(NAME, partition_column="subject"), "u", Microseconds(0))
PLACE = TopicPartition(TOPIC, PartitionValue("String", "eu"))


@pytest_asyncio.fixture
async def owners() -> AsyncIterator[Owners]:
    made = Owners()
    yield made
    await made.close()


async def test_a_fetch_requests_one_partition_in_arrow(owners: Owners) -> None:
    async with owner() as server:
        server.batches = [raw(0, [b"a", b"b"]), raw(2, [b"c", b"d"])]
        found = await owners.fetch(server.address, PLACE, Offset(1), 2)
    assert [batch.offsets().tolist() for batch in found] == [[1], [2]]
    (request,) = server.requests
    assert request.namespace == "tenants/acme/namespaces/shop"
    assert request.topics == [api.FetchTopic("orders", 1, {"String": "eu"})]
    assert (request.max_messages, request.timeout_ms) == (2, 200)
    assert server.accepts == [api.ARROW_STREAM]


async def test_a_fetch_without_a_partition_column_has_no_value(owners: Owners) -> None:
    plain = TopicPartition(Topic(TopicSpec(NAME), "u", Microseconds(0)), None)
    async with owner() as server:
        assert await owners.fetch(server.address, plain, Offset(0), 1) == []
    assert server.requests[0].topics == [api.FetchTopic("orders", 0, None)]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (web.Response(status=429, text='{"message":"too many"}'), "too many"),
        (web.Response(status=502, text="<html>"), "HTTP status 502"),
        (web.Response(body=b"nonsense"), "not the answer to a fetch"),
    ],
)
async def test_an_unexpected_reply_is_reported_with_the_address(
    owners: Owners, reply: web.Response, reason: str
) -> None:
    async with owner() as server:
        server.reply = reply
        with pytest.raises(OwnerUnavailable, match=reason) as caught:
            await owners.fetch(server.address, PLACE, Offset(0), 1)
    assert str(caught.value).startswith(f"topic {NAME.full}: its owner at {server.address}: ")


async def test_an_error_of_the_topic_is_reported(owners: Owners) -> None:
    async with owner() as server:
        server.error = "offset 0 is gone"
        with pytest.raises(OwnerUnavailable, match="offset 0 is gone; retry later"):
            await owners.fetch(server.address, PLACE, Offset(0), 1)


async def test_an_owner_that_does_not_listen_is_reported(owners: Owners) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
    with pytest.raises(OwnerUnavailable, match="Cannot connect"):
        await owners.fetch(address, PLACE, Offset(0), 1)


async def test_an_owner_that_does_not_reply_in_time_is_reported(owners: Owners) -> None:
    owners._session._timeout = aiohttp.ClientTimeout(total=0.1)
    async with owner() as server:
        server.silent = True
        with pytest.raises(OwnerUnavailable, match="no answer in"):
            await owners.fetch(server.address, PLACE, Offset(0), 1)
