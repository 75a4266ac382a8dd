"""A node that only fetches, as a real process beside a real broker: the same messages, no more."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from penstock import SyncClient
from penstock.formats.rpc import METHODS
from tests.integration.process import FREE_PORT, WAIT_SECONDS, Answer, Broker
from tests.servers.etcd import EtcdServer

SPACE: Final = "default/default"
PATIENT_MS: Final = 20_000
TOPICS: Final = "/v1/tenants/default/namespaces/default/topics"
EAGER: Final = (
    "storage.mode=wal_cloud",
    "storage.uploader.interval_seconds=1",
    "storage.uploader.max_batch_bytes=65536",
    "storage.uploader.trash_seconds=0",
    "storage.uploader.rotation.max_object_seconds=1",
    "storage.wal.retention.min_minutes=0",
    "storage.wal.retention.min_bytes=0",
    "storage.wal.max_file_bytes=4096",
    "storage.wal.cache.max_bytes=0",
)
"""Small files that go to the bucket at once and leave the disk then, and objects that are merged
and removed at once.
"""


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 2 * WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _sets(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@contextlib.contextmanager
def _broker(root: Path, grpc: str = "127.0.0.1:0") -> Iterator[Broker]:
    """A broker with its bucket beside its data."""
    cloud = f"storage.cloud.root={root / 'bucket'}"
    protocols = ("--http", "127.0.0.1:0", "--grpc", grpc, "--nats", "127.0.0.1:0")
    with Broker("--data", str(root / "data"), *protocols, *_sets(*EAGER, cloud)) as broker:
        yield broker


@contextlib.contextmanager
def _node(root: Path, metadata: str) -> Iterator[Broker]:
    """A node that knows the bucket and the broker's address, and has no data directory."""
    sets = _sets("storage.mode=wal_cloud", f"storage.cloud.root={root / 'bucket'}")
    role = ("--role", "fetch", "--metadata", metadata, "--http", "127.0.0.1:0")
    with Broker("--data", str(root / "none"), *role, *sets) as node:
        yield node
    assert not (root / "none").exists()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def broker(root: Path) -> Iterator[Broker]:
    with _broker(root) as made:
        yield made


@pytest.fixture(scope="module")
def node(root: Path, broker: Broker) -> Iterator[Broker]:
    with _node(root, broker.grpc) as made:
        _eventually(lambda: made.get("/readyz").status == 200)
        yield made


def _create(broker: Broker, topic: str, **wishes: object) -> None:
    answer = broker.post(TOPICS, {"topic": topic, **wishes})
    assert answer.status == 201, answer


def _push(broker: Broker, topic: str, rows: list[Any], partition: object = None) -> list[int]:
    """First and last offset."""
    batch = {"topic": topic, "partition": partition, "data": rows}
    answer = broker.post("/v1/push", {"namespace": SPACE, "batches": [batch]})
    (result,) = answer.body["batches"]
    return [result["start_offset"], result["end_offset"]]


def _fetch(where: Broker, topic: str, offset: int, **more: Any) -> Answer:
    value = more.pop("partition_value", None)
    topics = [{"topic": topic, "offset": offset, "partition_value": value}]
    wanted = {"namespace": SPACE, "topics": topics, "timeout_ms": PATIENT_MS, **more}
    return where.post("/v1/fetch", wanted)


def _in_object(broker: Broker, topic: str, offset: int, value: str | None = None) -> bool:
    """Whether the broker sends whoever wants this offset to the bucket."""
    method = METHODS["OffsetLocation"]
    fields: dict[str, Any] = {"topic": topic, "offset": offset}
    if value is not None:
        fields["partition_value"] = {"string_value": value}
    with grpc.insecure_channel(broker.grpc) as channel:
        call = channel.unary_unary(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        return bool(call(method.request(**fields)).WhichOneof("location") == "in_object")


def _long(text: str) -> dict[str, str]:
    return {"payload": text + "." * 3000}


@pytest.mark.feature("F32")
def test_raw_messages_cold_and_hot_are_those_of_the_broker(broker: Broker, node: Broker) -> None:
    _create(broker, "raw")
    for n in range(20):
        _push(broker, "raw", [_long(f"{n}/{i}") for i in range(3)])
    _push(broker, "raw", [{"payload": "h", "subject": "s", "headers": [["k", "v"], ["k", "w"]]}])
    _push(broker, "raw", [{"payload_b64": "/w=="}, {"payload": ""}])
    _eventually(lambda: _in_object(broker, "raw", 59))
    _push(broker, "raw", [{"payload": "hot"}])
    assert not _in_object(broker, "raw", 63)
    for offset in (0, 1, 31, 59, 60, 61, 63):
        answer = _fetch(node, "raw", offset)
        assert answer == _fetch(broker, "raw", offset)
        assert answer.body["topics"][0]["end_offset"] == 63
        path = f"/v1/topics/default/default/raw/messages?offset={offset}"
        assert node.get(path) == broker.get(path)
    limited = _fetch(node, "raw", 5, max_messages=7)
    assert limited == _fetch(broker, "raw", 5, max_messages=7)
    assert len(limited.body["topics"][0]["messages"]) == 7
    with SyncClient(_url(node)) as one, SyncClient(_url(broker)) as other:
        assert one.fetch("raw", 0).table.to_pylist() == other.fetch("raw", 0).table.to_pylist()


@pytest.mark.feature("F26", "F32")
def test_typed_rows_of_partitions_are_those_of_the_broker(broker: Broker, node: Broker) -> None:
    _create(
        broker,
        "typed",
        fields=["place:string", "id:uint64", "share:float64?", "data:binary", "good:bool"],
        partition_column="place",
    )
    top = (1 << 64) - 1
    for n in range(10):
        for place in ("eu", "us", ""):
            rows = [
                {"id": top - n, "share": None, "data": "AAAA" * 500, "good": True},
                {"id": n, "share": n / 3, "data": "", "good": False},
            ]
            _push(broker, "typed", rows, {"String": place})
    _eventually(lambda: _in_object(broker, "typed", 17, "us"))
    _push(broker, "typed", [{"id": 1, "data": "", "good": True}], {"String": "eu"})
    for place, last in (("eu", 20), ("us", 19), ("", 19)):
        for offset in (0, 7, last):
            answer = _fetch(node, "typed", offset, partition_value={"String": place})
            assert answer == _fetch(broker, "typed", offset, partition_value={"String": place})
            assert answer.body["topics"][0]["end_offset"] == last
    with SyncClient(_url(node)) as one, SyncClient(_url(broker)) as other:
        mine, theirs = (client.fetch("typed", 0, "eu").table for client in (one, other))
        assert mine.schema.equals(theirs.schema)
        assert mine.to_pylist() == theirs.to_pylist()


@pytest.mark.feature("F03", "F21")
def test_errors_are_those_of_the_broker(broker: Broker, node: Broker) -> None:
    _create(broker, "plain")
    _create(broker, "divided", partition_column="subject")
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("unknown", {}),
        ("plain", {"partition_value": {"Int64": 7}}),
        ("divided", {}),
        ("divided", {"partition_value": {"Int64": 7}}),
        ("divided", {"partition_value": {"Int64": "x"}}),
        ("plain", {"timeout_ms": 1}),
        ("a b", {}),
    ]
    for topic, more in wanted:
        answer = _fetch(node, topic, 0, **more)
        assert answer == _fetch(broker, topic, 0, **more)


@pytest.mark.feature("F22")
def test_an_offset_that_is_gone_names_the_earliest(broker: Broker, node: Broker) -> None:
    _create(broker, "short", retention={"max_messages": 5})
    for n in range(20):
        _push(broker, "short", [_long(str(n))])
    _eventually(lambda: "the earliest is 15" in str(_fetch(broker, "short", 3).body))
    answer = _fetch(node, "short", 3)
    assert answer == _fetch(broker, "short", 3)
    assert answer.body["topics"][0]["_tag"] == "error"
    assert _fetch(node, "short", 15) == _fetch(broker, "short", 15)


@pytest.mark.feature("F10", "F32")
def test_a_long_poll_through_the_node_wakes_on_a_push_to_the_broker(
    broker: Broker, node: Broker
) -> None:
    _create(broker, "polled")
    with ThreadPoolExecutor() as threads:
        for offset in range(3):
            polls = [
                threads.submit(_fetch, node, "polled", offset, timeout_ms=60_000) for _ in range(4)
            ]
            _eventually(lambda: node.figure("penstock_fetches_parked") == 4)
            _push(broker, "polled", [{"payload": str(offset)}])
            # Without being woken, three rounds take longer than a test may.
            for poll in polls:
                (topic,) = poll.result().body["topics"]
                assert [row["payload"] for row in topic["messages"]] == [str(offset)]
    assert node.figure("penstock_fetches_parked") == 0


@pytest.mark.feature("F13")
def test_nothing_by_the_deadline_is_an_empty_success(broker: Broker, node: Broker) -> None:
    _create(broker, "empty")
    (topic,) = _fetch(node, "empty", 0, timeout_ms=200).body["topics"]
    assert (topic["_tag"], topic["start_offset"], topic["messages"]) == ("success", 0, [])


@pytest.mark.feature("F32")
def test_a_reader_over_the_node_sees_each_offset_once_while_all_moves(
    broker: Broker, node: Broker
) -> None:
    _create(broker, "moving")
    total = 600

    def produce() -> None:
        for n in range(0, total, 2):
            _push(broker, "moving", [_long(str(n)), _long(str(n + 1))])
            if n == total // 2:
                # So that there is more than one object to merge.
                _eventually(lambda: _in_object(broker, "moving", total // 2 - 10))

    seen: list[str] = []
    with ThreadPoolExecutor() as threads:
        producer = threads.submit(produce)
        while len(seen) < total:
            answer = _fetch(node, "moving", len(seen), timeout_ms=5000, max_messages=7)
            (topic,) = answer.body["topics"]
            assert topic["_tag"] == "success", topic
            seen += [row["payload"].rstrip(".") for row in topic["messages"]]
            if topic["messages"]:
                assert topic["end_offset"] == len(seen) - 1
        producer.result()
    assert seen == [str(n) for n in range(total)]
    _eventually(lambda: _in_object(broker, "moving", total - 10))
    _eventually(lambda: broker.figure("penstock_manifest_merges_total") > 0)
    (topic,) = _fetch(node, "moving", 0).body["topics"]
    assert [row["payload"].rstrip(".") for row in topic["messages"]] == seen


def test_a_deleted_topic_is_unknown_at_once_and_one_of_the_same_name_is_another(
    broker: Broker, node: Broker
) -> None:
    _create(broker, "again")
    _push(broker, "again", [{"payload": "old"}])
    assert len(_fetch(node, "again", 0).body["topics"][0]["messages"]) == 1
    assert broker.get(f"{TOPICS}/again", "DELETE").status == 204
    (topic,) = _fetch(node, "again", 0).body["topics"]
    assert topic["message"] == f"topic {topic['topic']} does not exist"
    _create(broker, "again", fields=["id:int64"])
    _push(broker, "again", [{"id": 1}])
    assert _fetch(node, "again", 0).body["topics"][0]["messages"] == [{"id": 1}]


def test_the_node_refuses_a_push_and_says_where_to(node: Broker) -> None:
    answer = node.post("/v1/push", {"namespace": SPACE, "batches": []})
    assert answer == Answer(
        421,
        {
            "message": "this node only fetches; push to a broker",
            "code": "fetch_only",
        },
    )


def test_a_node_beside_a_local_broker_reads_its_data_directory(tmp_path: Path) -> None:
    with Broker("--data", str(tmp_path), *FREE_PORT, *_sets(*EAGER[1:])) as broker:
        _create(broker, "t")
        for n in range(20):
            _push(broker, "t", [_long(str(n))])
        _eventually(lambda: _in_object(broker, "t", 17))
        role = ("--role", "fetch", "--metadata", broker.grpc, "--http", "127.0.0.1:0")
        with Broker("--data", str(tmp_path), *role) as node:
            assert _fetch(node, "t", 0) == _fetch(broker, "t", 0)
            node.signal(signal.SIGTERM)
            assert node.wait() == 0


@pytest.mark.feature("F35")
def test_a_namespace_may_keep_its_objects_in_another_store(tmp_path: Path) -> None:
    archive = ("--set", f"storage.stores.archive.root={tmp_path / 'archive'}")
    with Broker("--data", str(tmp_path), *FREE_PORT, *_sets(*EAGER[1:]), *archive) as broker:
        spaces = "/v1/tenants/default/namespaces"
        unknown = broker.post(spaces, {"namespace": "cold", "store": "attic"})
        assert unknown == Answer(
            404,
            {
                "message": "object store attic does not exist",
                "code": "object_store_not_found",
            },
        )
        assert broker.post(spaces, {"namespace": "cold", "store": "archive"}).status == 201
        assert broker.post(f"{spaces}/cold/topics", {"topic": "t"}).status == 201
        batch = {"topic": "t", "data": [_long(str(n)) for n in range(20)]}
        for _ in range(3):
            broker.post("/v1/push", {"namespace": "default/cold", "batches": [batch]})
        _eventually(lambda: _in_object(broker, "default/cold/t", 19))
        assert list((tmp_path / "archive").rglob("*.parquet"))
        assert not list((tmp_path / "objects").rglob("*.parquet"))
        role = ("--role", "fetch", "--metadata", broker.grpc, "--http", "127.0.0.1:0")
        with Broker("--data", str(tmp_path), *role, *archive) as node:
            topics = [{"topic": "t", "offset": 0}]
            wanted = {"namespace": "default/cold", "topics": topics, "timeout_ms": PATIENT_MS}
            answer = node.post("/v1/fetch", wanted)
            assert answer == broker.post("/v1/fetch", wanted)
            assert len(answer.body["topics"][0]["messages"]) == 60


def test_a_node_recovers_when_its_broker_comes_back(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_broker(tmp_path))
        address = first.grpc
        node = stack.enter_context(_node(tmp_path, address))
        _create(first, "t")
        _push(first, "t", [{"payload": "a"}])
        _eventually(lambda: node.get("/readyz").status == 200)
        assert _fetch(node, "t", 0).status == 200

        first.signal(signal.SIGKILL)
        first.wait()
        _eventually(lambda: node.get("/readyz").status == 503)
        assert node.get("/readyz").body["message"] == f"the broker at {address} does not answer"
        failed = _fetch(node, "t", 0)
        assert failed.status == 503
        assert failed.body["message"].startswith(f"the broker at {address}: ")
        assert node.get("/healthz").status == 200

        second = stack.enter_context(_broker(tmp_path, address))
        _eventually(lambda: node.get("/readyz").status == 200)
        _push(second, "t", [{"payload": "b"}])
        answer = _fetch(node, "t", 0, min_messages=2)
        assert answer == _fetch(second, "t", 0)
        assert len(answer.body["topics"][0]["messages"]) == 2


def test_a_topic_of_another_broker_is_fetched_from_that_one(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    server.start()
    shared = (
        *EAGER,
        f"storage.etcd.endpoints={server.endpoint}",
        f"storage.cloud.root={tmp_path / 'bucket'}",
    )
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        first, second = (
            stack.enter_context(Broker("--data", str(tmp_path / name), *FREE_PORT, *_sets(*shared)))
            for name in ("first", "second")
        )
        node = stack.enter_context(_node(tmp_path, first.grpc))
        _create(second, "t")
        for n in range(20):
            _push(second, "t", [_long(str(n))])
        assert "another broker owns it" in str(_fetch(first, "t", 0).body)
        for offset in (0, 19):
            assert _fetch(node, "t", offset) == _fetch(second, "t", offset)
        with ThreadPoolExecutor() as threads:
            poll = threads.submit(_fetch, node, "t", 20, timeout_ms=60_000)
            _eventually(lambda: second.figure("penstock_fetches_parked") == 1)
            _push(second, "t", [{"payload": "new"}])
            (topic,) = poll.result().body["topics"]
        assert [row["payload"] for row in topic["messages"]] == ["new"]


def test_a_node_whose_broker_is_not_there_starts_and_says_so(tmp_path: Path) -> None:
    with _node(tmp_path, "127.0.0.1:9") as node:
        assert node.get("/healthz").status == 200
        assert node.get("/readyz") == Answer(
            503,
            {"status": "not ready", "message": "the broker at 127.0.0.1:9 does not answer"},
        )
        node.signal(signal.SIGTERM)
        assert node.wait() == 0


def _url(broker: Broker) -> str:
    return f"http://{broker.host}:{broker.port}"
