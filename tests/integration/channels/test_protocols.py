"""A channel is a topic: messages published over one protocol are read over the others."""

import asyncio
import base64
from collections.abc import Iterator

import nats
import pytest

from tests.integration.channels.api import Api, Channel, eventually, serving
from tests.integration.process import Broker

pytestmark = pytest.mark.feature("C23", "X01")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture
def channel(broker: Broker, request: pytest.FixtureRequest) -> Channel:
    return Channel(Api(broker.host, broker.port), f"d{abs(hash(request.node.name))}")


def fetched(broker: Broker, topic: str) -> list[dict[str, object]]:
    request = {"namespace": "default/default", "topics": [{"topic": topic, "offset": 0}]}
    answer = broker.post("/v1/fetch", request)
    assert answer.status == 200
    messages: list[dict[str, object]] = answer.body["topics"][0]["messages"]
    return messages


def test_a_broadcast_is_a_message_of_the_topic(broker: Broker, channel: Channel) -> None:
    channel.sent("text", X_Broker_Message_Priority="2", Content_Type="text/plain")
    channel.sent(b"\xff\x00", X_Broker_Message_ID="M 1", X_Broker_Metadata_Headers="A", A="b")
    first, second = fetched(broker, channel.id)
    assert first["subject"] == channel.id
    assert first["payload"] == "text"
    assert first["headers"] == [
        ["X-Broker-Producer-ID", f"{channel.id}-p"],
        ["X-Broker-Message-Priority", "2"],
        ["Content-Type", "text/plain"],
    ]
    assert second["subject"] == f"{channel.id}.%4d%201"
    assert base64.b64decode(str(second["payload_b64"])) == b"\xff\x00"
    assert second["headers"] == [
        ["X-Broker-Message-ID", "M 1"],
        ["X-Broker-Producer-ID", f"{channel.id}-p"],
        ["Content-Type", "application/octet-stream"],
        ["X-Broker-Metadata-Headers", "A"],
        ["A", "b"],
    ]
    path = f"/v1/topics/default/default/{channel.id}/messages?offset=0"
    assert broker.get(path).body["payload"] == "text"


def test_a_push_over_http_makes_jobs(broker: Broker, channel: Channel) -> None:
    consumer = channel.consumer("one")
    rows = [
        {"payload": "plain"},
        {
            "payload": "urgent",
            "headers": [
                ["X-Broker-Message-Priority", "5"],
                ["Content-Type", "text/plain"],
                ["X-Mine", "1"],
            ],
        },
    ]
    pushed = {"namespace": "default/default", "batches": [{"topic": channel.id, "data": rows}]}
    assert broker.post("/v1/push", pushed).status == 200
    urgent, plain = consumer.queued()
    assert (urgent["Priority"], urgent["Message"]["Payload"]) == (5, "urgent")
    assert urgent["Message"]["Headers"] == {"X-Mine": "1"}
    assert urgent["Message"]["ContentType"] == "text/plain"
    assert plain["Message"]["ContentType"] == "application/octet-stream"
    location = f"{channel.path}/message/{plain['Message']['MessageID']}"
    shown = channel.api.get(location).json
    assert (shown["Payload"], shown["ProducedBy"]) == ("plain", "")


def test_a_publish_over_nats_makes_jobs_and_a_broadcast_is_read_there(
    broker: Broker, channel: Channel
) -> None:
    consumer = channel.consumer("one")
    channel.sent("by broadcast")

    async def talk() -> list[bytes | None]:
        client = await nats.connect(broker.nats_url)
        stream = client.jetstream()
        await stream.publish(channel.id, b"by nats", headers={"X-Mine": "2"})
        direct = await stream.get_msg(channel.id, 1)
        pulled = await stream.pull_subscribe("", "puller", stream=channel.id)
        messages = await pulled.fetch(2, timeout=20)
        for message in messages:
            await message.ack_sync()
        await client.close()
        return [direct.data, *(message.data for message in messages)]

    assert asyncio.run(talk()) == [b"by broadcast", b"by broadcast", b"by nats"]
    eventually(lambda: consumer.payloads() == ["by broadcast", "by nats"])
    assert consumer.queued()[1]["Message"]["Headers"] == {"X-Mine": "2"}


def test_the_job_of_a_deleted_message_is_removed_over_every_protocol(
    broker: Broker, channel: Channel
) -> None:
    consumer = channel.consumer("one")
    for number in range(3):
        channel.sent(str(number))

    async def delete() -> None:
        client = await nats.connect(broker.nats_url)
        await client.jetstream().delete_msg(channel.id, 2)
        await client.close()

    asyncio.run(delete())
    assert consumer.payloads() == ["0", "2"]
    assert len(consumer.queued()) == 2


@pytest.mark.feature("C13")
def test_jobs_of_deleted_messages_are_neither_listed_nor_counted(
    broker: Broker, channel: Channel
) -> None:
    consumer = channel.consumer("one")
    for number in range(40):
        channel.sent(str(number))

    async def delete() -> None:
        client = await nats.connect(broker.nats_url)
        stream = client.jetstream()
        await stream.purge_stream(channel.id, seq=31)
        await stream.delete_msg(channel.id, 33)
        await client.close()

    asyncio.run(delete())
    status = broker.get("/job-status").body[channel.id]["one"]
    assert [(row["status"], row["count"]) for row in status] == [(1001, 9)]
    left = ["30", "31", *map(str, range(33, 40))]
    assert consumer.payloads() == left


def test_a_topic_with_columns_cannot_be_a_channel(broker: Broker) -> None:
    topics = "/v1/tenants/default/namespaces/default/topics"
    assert broker.post(topics, {"topic": "typed", "fields": ["id:int64"]}).status == 201
    api = Api(broker.host, broker.port)
    answer = api.form("PUT", "/channel/typed", {})
    assert answer.status == 409
    assert "raw messages" in answer.text


def test_a_deleted_topic_is_created_again_when_its_channel_is_used(
    broker: Broker, channel: Channel
) -> None:
    consumer = channel.consumer("one")
    channel.sent("old")
    topic = f"/v1/tenants/default/namespaces/default/topics/{channel.id}"
    assert broker.get(topic, "DELETE").status == 204
    channel.sent("new")
    assert consumer.payloads() == ["new"]
