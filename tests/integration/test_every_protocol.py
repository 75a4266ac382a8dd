"""A message stored over one protocol is read over every other one, byte for byte."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client as NatsClient
from nats.js.api import AckPolicy
from nats.js.errors import APIError, NotFoundError

from penstock import SyncClient
from penstock.model.errors import PenstockError
from tests.integration.process import FREE_PORT, WAIT_SECONDS, Broker

PAYLOADS = [b"plain", b"", bytes(range(256)), "grün".encode()]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker("--data", str(tmp_path_factory.mktemp("protocols")), *FREE_PORT) as made:
        yield made


@pytest.fixture(scope="module")
def http(broker: Broker) -> Iterator[SyncClient]:
    with SyncClient(f"http://{broker.host}:{broker.port}") as client:
        yield client


@pytest_asyncio.fixture
async def nc(broker: Broker) -> AsyncIterator[NatsClient]:
    client = await nats.connect(broker.nats_url)
    yield client
    await client.close()


@pytest.mark.feature("X01")
async def test_what_is_pushed_over_http_is_in_the_stream(http: SyncClient, nc: NatsClient) -> None:
    http.create_topic("pushed")
    http.push("pushed", [{"payload": "one"}, {"payload": "two", "headers": [["A", "b"]]}])
    js = nc.jetstream()
    first, second = await js.get_msg("pushed", 1), await js.get_msg("pushed", 2)
    assert (first.subject, first.data, first.headers) == ("pushed", b"one", None)
    assert (second.subject, second.data, second.headers) == ("pushed", b"two", {"A": "b"})
    subscription = await js.pull_subscribe("pushed", durable="all", stream="pushed")
    messages = await subscription.fetch(2, timeout=5)
    assert [message.data for message in messages] == [b"one", b"two"]
    assert [message.metadata.sequence.stream for message in messages] == [1, 2]


@pytest.mark.feature("X01")
async def test_what_nats_publishes_is_fetched_over_http(http: SyncClient, nc: NatsClient) -> None:
    js = nc.jetstream()
    await js.add_stream(name="published", subjects=["p.>"])
    for number, payload in enumerate(PAYLOADS):
        ack = await js.publish(f"p.{number}", payload, headers={"N": str(number)})
        assert ack.seq == number + 1
    table = http.fetch("published", 0, max_messages=10).table
    assert table.column("offset").to_pylist() == [0, 1, 2, 3]
    assert table.column("payload").to_pylist() == PAYLOADS
    assert table.column("subject").to_pylist() == [b"p.0", b"p.1", b"p.2", b"p.3"]
    assert table.column("headers").to_pylist()[3] == b"NATS/1.0\r\nN: 3\r\n\r\n"


@pytest.mark.feature("X01")
async def test_a_row_is_canonical_json_on_the_nats_server(http: SyncClient, nc: NatsClient) -> None:
    http.create_topic("rows", ["id:int64", "name:string?"])
    http.push("rows", [{"id": 1, "name": "a"}, {"id": 2, "name": None}])
    js = nc.jetstream()
    for sequence in (1, 2):
        message = await js.get_msg("rows", sequence)
        assert message.subject == "rows"
        assert json.loads(message.data or b"") == http.get("rows", sequence - 1).fields
    ack = await js.publish("rows", b'{"id": 3, "name": "c"}')
    assert ack.seq == 3
    assert http.get("rows", 2).fields == {"id": 3, "name": "c"}
    with pytest.raises(APIError):
        await js.publish("rows", b'{"id": "three"}')
    assert http.fetch("rows", 0, min_messages=3).end_offset == 2


@pytest.mark.feature("X01")
async def test_a_partition_is_a_stream_that_is_only_read(http: SyncClient, nc: NatsClient) -> None:
    http.create_topic("parts", ["id:int64", "who:string"], "who")
    http.push("parts", [{"id": 1}], partition="ann")
    http.push("parts", [{"id": 2}], partition="bob")
    js = nc.jetstream()
    message = await js.get_msg("parts--1", 1)
    assert json.loads(message.data or b"") == {"id": 2, "who": "bob"}
    with pytest.raises(NotFoundError):
        await js.get_msg("parts--2", 1)
    with pytest.raises(APIError):
        await js.purge_stream("parts--1")


@pytest.mark.feature("X01")
async def test_limits_of_a_stream_hold_for_every_protocol(http: SyncClient, nc: NatsClient) -> None:
    js = nc.jetstream()
    await js.add_stream(name="few", subjects=["few"], max_msgs=2)
    http.push("few", [{"payload": str(number)} for number in range(5)])
    state = (await js.stream_info("few")).state
    assert (state.messages, state.first_seq, state.last_seq) == (2, 4, 5)


async def test_a_restart_keeps_streams_and_their_configuration(tmp_path: Path) -> None:
    with Broker("--data", str(tmp_path), *FREE_PORT) as broker:
        client = await nats.connect(broker.nats_url)
        js = client.jetstream()
        await js.add_stream(name="kept", subjects=["kept.*"], max_msgs_per_subject=1)
        await js.publish("kept.a", b"1", headers={"Nats-Msg-Id": "one"})
        await js.publish("kept.a", b"2")
        await client.close()
    with Broker("--data", str(tmp_path), *FREE_PORT) as broker:
        client = await nats.connect(broker.nats_url)
        js = client.jetstream()
        info = await js.stream_info("kept")
        assert (info.config.subjects, info.config.max_msgs_per_subject) == (["kept.*"], 1)
        assert (info.state.messages, info.state.bytes, info.state.last_seq) == (1, 37, 2)
        ack = await js.publish("kept.a", b"3")
        assert ack.seq == 3
        assert (await js.stream_info("kept")).state.messages == 1
        await client.close()


@pytest.mark.feature("X01")
async def test_counters_and_batches_are_the_same_behind_every_protocol(
    http: SyncClient, nc: NatsClient
) -> None:
    config = {"name": "sums", "subjects": ["sums.>"], "allow_msg_counter": True}
    config |= {"allow_atomic": True, "allow_direct": True}
    made = await nc.request("$JS.API.STREAM.CREATE.sums", json.dumps(config).encode(), timeout=5)
    assert json.loads(made.data)["did_create"] is True
    for number, headers in enumerate(
        [
            {"Nats-Incr": "5"},
            {"Nats-Incr": "7", "Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"},
        ]
    ):
        told = await nc.request(f"sums.{number}", b"", headers=headers, timeout=5)
        assert told.data in (b'{"stream":"sums","seq":1,"val":"5"}', b"")
    assert http.fetch("sums", 0, max_messages=10).table.num_rows == 1
    last = {"Nats-Incr": "-1", "Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2"}
    last |= {"Nats-Batch-Commit": "1"}
    told = await nc.request("sums.0", b"", headers=last, timeout=5)
    assert told.data == b'{"stream":"sums","seq":3,"batch":"b","count":2}'
    table = http.fetch("sums", 0, max_messages=10).table
    assert table.column("payload").to_pylist() == [
        b'{"val":"5"}',
        b'{"val":"7"}',
        b'{"val":"4"}',
    ]
    direct = await nc.request("$JS.API.DIRECT.GET.sums.sums.0", b"", timeout=5)
    assert direct.data == b'{"val":"4"}'
    with pytest.raises(PenstockError, match="increment is missing"):
        http.push("sums", [{"payload": "x", "subject": "sums.0"}])


@pytest.mark.feature("P07")
@pytest.mark.parametrize(
    ("value", "status"), [("never_wait", "404"), ("wait_for_first", "408"), (None, "404")]
)
async def test_a_pull_that_does_not_wait_follows_its_expiry_only_where_that_is_set(
    tmp_path: Path, value: str | None, status: str
) -> None:
    chosen = () if value is None else ("--set", f"nats.no_wait_with_expires={value}")
    with Broker("--data", str(tmp_path), *FREE_PORT, *chosen) as broker:
        client = await nats.connect(broker.nats_url)
        streams = client.jetstream()
        await streams.add_stream(name="S", subjects=["s"])
        await streams.add_consumer("S", durable_name="d", ack_policy=AckPolicy.EXPLICIT)
        body = b'{"batch":1,"no_wait":true,"expires":100000000}'
        # Sent by hand: the client raises for a status of a request.
        inbox = await client.subscribe(client.new_inbox())
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.d", body, inbox.subject)
        answer = await inbox.next_msg(WAIT_SECONDS)
        assert answer.headers is not None
        assert answer.headers["Status"] == status
        await client.close()
