"""The gRPC server of a real broker process, asked by the remote clients."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from penstock.host.clock import Clock
from penstock.metadata import MetadataUnavailable
from penstock.metadata.catalog import Admin, AtOwner, OffsetRegistry, PageQuery, PartitionState
from penstock.metadata.remote import RemoteAdmin, RemoteCalls, RemoteOffsets
from penstock.model import schema
from penstock.model.errors import (
    NameInvalid,
    PartitionInvalid,
    ResourceExists,
    ResourceInUse,
    ResourceUnknown,
    SchemaInvalid,
)
from penstock.model.names import Namespace, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import TopicSpec
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds, Offset, PartitionId
from penstock.topics.pusher import CHILD_BYTES_MIN
from tests.integration.process import FREE_PORT, Broker, refused

SPACE: Final = Namespace("acme", "shop")
COLUMNS: Final = schema.schema([schema.field("place:string"), schema.field("n:int64?")])


def _after(seconds: float) -> Microseconds:
    return Microseconds(Clock().now_us() + int(seconds * 1e6))


def _push(broker: Broker, topic: str, rows: list[object], partition: object = None) -> None:
    batch = {"topic": topic, "partition": partition, "data": rows}
    answer = broker.post("/v1/push", {"namespace": "default/default", "batches": [batch]})
    assert (answer.status, answer.body["batches"][0]["_tag"]) == (200, "success"), answer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker("--data", str(tmp_path_factory.mktemp("grpc")), *FREE_PORT) as made:
        yield made


@pytest_asyncio.fixture
async def calls(broker: Broker) -> AsyncIterator[RemoteCalls]:
    made = RemoteCalls(broker.grpc)
    yield made
    await made.close()


@pytest.fixture
def admin(calls: RemoteCalls) -> Admin:
    return RemoteAdmin(calls)


@pytest.fixture
def offsets(calls: RemoteCalls) -> OffsetRegistry:
    return RemoteOffsets(calls, Clock())


@pytest.mark.feature("F27", "F32")
async def test_resources_are_made_found_listed_and_removed(admin: Admin) -> None:
    tenant = await admin.create_tenant("acme")
    assert await admin.get_tenant("acme") == tenant
    space = await admin.create_namespace(SPACE)
    assert (await admin.list_namespaces("acme", PageQuery())).items == [space]
    spec = TopicSpec(
        TopicName(*SPACE, "Bestellungen-ü"),
        COLUMNS,
        "place",
        retention=TopicRetention(3600, None, 7),
    )
    topic = await admin.create_topic(spec)
    assert topic.spec == spec
    assert await admin.get_topic(spec.name) == topic
    assert (await admin.list_topics(SPACE, PageQuery())).items == [topic]

    with pytest.raises(ResourceExists, match=r"topic .*Bestellungen-ü exists already"):
        await admin.create_topic(spec)
    with pytest.raises(ResourceInUse):
        await admin.delete_namespace(SPACE)
    with pytest.raises(ResourceInUse):
        await admin.delete_tenant("acme")
    await admin.delete_topic(spec.name)
    with pytest.raises(ResourceUnknown, match=r"topic .*Bestellungen-ü does not exist"):
        await admin.get_topic(spec.name)
    await admin.delete_namespace(SPACE)
    await admin.delete_tenant("acme")
    with pytest.raises(ResourceUnknown):
        await admin.get_tenant("acme")


@pytest.mark.feature("F32")
async def test_what_breaks_a_rule_is_refused_by_the_same_error(
    admin: Admin, calls: RemoteCalls
) -> None:
    with pytest.raises(NameInvalid, match="tenant name 'A' is not valid"):
        await admin.create_tenant("A")
    with pytest.raises(ResourceUnknown, match="does not exist"):
        await admin.create_topic(TopicSpec(TopicName("acme", "nowhere", "t")))
    with pytest.raises(SchemaInvalid, match="there is no column 'id'"):
        await calls.call(
            "CreateTopic", parent="default/default", topic_id="t", topic={"partition_column": "id"}
        )


@pytest.mark.feature("F30", "F32")
async def test_an_offset_is_waited_for_and_found_at_the_owner(
    broker: Broker, admin: Admin, offsets: OffsetRegistry
) -> None:
    name = TopicName("default", "default", "waited")
    await admin.create_topic(TopicSpec(name))
    assert await offsets.offset_location(name, None, Offset(0), _after(0.2)) is None
    waiting = asyncio.create_task(offsets.offset_location(name, None, Offset(1), _after(60)))
    await asyncio.to_thread(_push, broker, "waited", [{"payload": "a"}])
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await asyncio.to_thread(_push, broker, "waited", [{"payload": "b"}, {"payload": "c"}])
    address = f"{broker.host}:{broker.port}"
    assert await waiting == AtOwner(PartitionId(0), Offset(1), Offset(3), address)


@pytest.mark.feature("F26", "F32")
async def test_partitions_are_told_by_their_values(
    broker: Broker, admin: Admin, offsets: OffsetRegistry
) -> None:
    name = TopicName("default", "default", "places")
    await admin.create_topic(TopicSpec(name, COLUMNS, "place"))
    values = [PartitionValue("String", text) for text in ("eu", "us", "")]
    for value in values:
        rows: list[object] = [{"n": n} for n in range(2)]
        await asyncio.to_thread(_push, broker, "places", rows, value.to_json())
    states = [
        PartitionState(value, PartitionId(n), Offset(0), Offset(2), 2)
        for n, value in enumerate(values)
    ]
    first = await offsets.list_partitions(name, PageQuery(2))
    rest = await offsets.list_partitions(name, PageQuery(2, first.next_token))
    assert (first.items, rest.items, rest.next_token) == (states[:2], states[2:], "")
    assert [await offsets.get_partition(name, value) for value in values] == states
    unborn = await offsets.get_partition(name, PartitionValue("String", "asia"))
    assert (unborn.partition, unborn.next, unborn.messages) == (-1, 0, 0)
    for wrong in (None, PartitionValue("Int64", 7)):
        with pytest.raises(PartitionInvalid):
            await offsets.offset_location(name, wrong, Offset(0), Microseconds(0))


async def test_a_topic_that_is_deleted_ends_the_wait_for_it(
    admin: Admin, offsets: OffsetRegistry
) -> None:
    name = TopicName("default", "default", "short-lived")
    await admin.create_topic(TopicSpec(name))
    waiting = asyncio.create_task(offsets.offset_location(name, None, Offset(0), _after(60)))
    await asyncio.sleep(0.1)
    await admin.delete_topic(name)
    with pytest.raises(ResourceUnknown):
        await waiting


@pytest.mark.feature("X15")
async def test_a_drain_ends_waits_at_once_and_exits_0(tmp_path: Path) -> None:
    with Broker(
        "--data", str(tmp_path), *FREE_PORT, "--set", "shutdown.drain_seconds=3600"
    ) as broker:
        calls = RemoteCalls(broker.grpc)
        name = TopicName("default", "default", "t")
        await RemoteAdmin(calls).create_topic(TopicSpec(name))
        offsets = RemoteOffsets(calls, Clock())
        waiting = asyncio.create_task(offsets.offset_location(name, None, Offset(0), _after(3600)))
        await asyncio.sleep(0.1)
        broker.signal(signal.SIGTERM)
        with pytest.raises(MetadataUnavailable, match=f"the broker at {broker.grpc}: "):
            await waiting
        assert await asyncio.to_thread(broker.wait) == 0
        await calls.close()


def test_the_child_process_of_a_broker_with_grpc_leaves_no_foreign_line_in_the_log(
    tmp_path: Path,
) -> None:
    with Broker("--data", str(tmp_path), *FREE_PORT) as broker:
        topics = "/v1/tenants/default/namespaces/default/topics"
        assert broker.post(topics, {"topic": "t"}).status == 201
        _push(broker, "t", [{"payload": "x" * 100}] * (CHILD_BYTES_MIN // 100))
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        for line in broker.errors().splitlines():
            json.loads(line)


def test_a_port_in_use_names_the_port_and_the_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        arguments = (
            *("--http", "127.0.0.1:0", "--nats", "127.0.0.1:0"),
            *("--grpc", f"127.0.0.1:{port}"),
        )
        assert refused(*arguments, cwd=tmp_path) == (
            f"cannot listen on 127.0.0.1:{port} (address already in use); "
            "choose another with --grpc HOST:PORT"
        )


def test_listening_beyond_loopback_is_refused(tmp_path: Path) -> None:
    assert refused(*FREE_PORT, "--grpc", "0.0.0.0:0", cwd=tmp_path) == (
        "cannot listen on 0.0.0.0:0: it is reachable from other machines and Penstock has no "
        "authentication yet; choose a loopback address with --grpc, such as 127.0.0.1"
    )
