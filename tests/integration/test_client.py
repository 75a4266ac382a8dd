"""The Python clients with a real broker."""

import asyncio
import threading
from collections.abc import Iterator

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from penstock import BrokerRefused, Client, SyncClient
from tests.integration.process import FREE_PORT, Broker


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker("--data", str(tmp_path_factory.mktemp("client")), *FREE_PORT) as broker:
        yield f"http://127.0.0.1:{broker.port}"


@pytest.mark.feature("F24")
def test_rows_tables_and_frames_are_fetched_in_the_order_of_the_push(url: str) -> None:
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    columns = {"id": [3, 4], "name": ["c", "d"]}
    with SyncClient(url) as client:
        client.create_topic("frames", ["id:int64", "name:string?"])
        assert [tuple(p)[:2] for p in client.push("frames", rows)] == [(0, 1)]
        for data in (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
            client.push("frames", data)
        fetched = client.fetch("frames", 1)
        assert (fetched.start_offset, fetched.end_offset, fetched.next_offset) == (1, 7, 8)
        assert fetched.table.column("offset").to_pylist() == list(range(1, 8))
        assert fetched.table.column("id").to_pylist() == [2, 3, 4, 3, 4, 3, 4]
        assert fetched.table.column_names == ["partition", "offset", "timestamp", "id", "name"]
        assert client.topic("frames").fields is not None
        assert "frames" in [topic.name.rpartition("/")[2] for topic in client.topics()]


@pytest.mark.feature("F26")
def test_a_frame_is_divided_by_the_partition_column(url: str) -> None:
    with SyncClient(url) as client:
        client.create_topic("divided", ["id:int64", "place:string"], "place")
        frame = pa.table(
            {"id": list(range(10_000)), "place": [f"p{i % 10}" for i in range(10_000)]}
        )
        pushed = client.push("divided", frame)
        assert sum(p.end_offset - p.start_offset + 1 for p in pushed) == 10_000
        assert len(client.partitions("divided")) == 10
        fetched = client.fetch("divided", 0, "p3")
        assert fetched.table.column("id").to_pylist() == list(range(3, 10_000, 10))
        assert set(fetched.table.column("place").to_pylist()) == {"p3"}


def test_raw_messages(url: str) -> None:
    with SyncClient(url) as client:
        client.create_topic("bytes")
        client.push("bytes", [b"\xff", "text", {"payload": b"x", "subject": "s"}])
        table = client.fetch("bytes", 0).table
        assert table.column("payload").to_pylist() == [b"\xff", b"text", b"x"]
        assert table.column("subject").to_pylist() == [b"bytes", b"bytes", b"s"]
        assert client.get("bytes", last_by_subject="s").fields["payload"] == "x"


def test_a_large_table_is_pushed_in_parts_in_order(url: str) -> None:
    count = 200_000
    with SyncClient(url) as client:
        client.create_topic("large", ["id:int64", "text:string"])
        client.push("large", pa.table({"id": range(count), "text": ["x" * 50] * count}))
        seen: list[int] = []
        while len(seen) < count:
            fetched = client.fetch("large", len(seen), max_messages=100_000)
            seen += fetched.table.column("id").to_pylist()
        assert seen == list(range(count))


def test_errors_have_the_broker_s_message(url: str) -> None:
    with SyncClient(url) as client:
        client.create_topic("strict", ["id:int64"])
        with pytest.raises(BrokerRefused, match="strict"):
            client.create_topic("strict")
        with pytest.raises(BrokerRefused, match="id"):
            client.push("strict", pa.table({"id": pa.array([None], pa.int64())}))
        with pytest.raises(BrokerRefused, match="does not exist"):
            client.fetch("nowhere", 0)
        assert not client.fetch("strict", 0, timeout_ms=5)


@pytest.mark.feature("F10")
async def test_a_tail_returns_messages_that_are_pushed_later(url: str) -> None:
    async with Client(url) as client:
        await client.create_topic("tailed")
        await client.push("tailed", ["before"])
        seen: list[bytes] = []
        parked = asyncio.Event()

        async def follow() -> None:
            async for fetched in client.tail("tailed", "earliest"):
                seen.extend(fetched.table.column("payload").to_pylist())
                parked.set()
                if len(seen) == 3:
                    return

        following = asyncio.create_task(follow())
        await parked.wait()
        for payload in ("one", "two"):
            await client.push("tailed", [payload])
        await asyncio.wait_for(following, 30)
        assert seen == [b"before", b"one", b"two"]


def test_threads_may_share_a_client(url: str) -> None:
    with SyncClient(url) as client:
        client.create_topic("shared")
        threads = [
            threading.Thread(target=client.push, args=("shared", [b"%d" % number]))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        payloads = client.fetch("shared", 0).table.column("payload").to_pylist()
        assert sorted(payloads) == [b"%d" % number for number in range(8)]
