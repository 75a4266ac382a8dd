"""Partitions of a partitioned topic are read-only streams."""

import pytest

from penstock.streams.rows import Rows
from tests.broker.streams import Streaming
from tests.broker.topics import push, region, spec


async def test_each_partition_is_a_stream_of_its_own_sequences(made: Streaming) -> None:
    opened = await made.served.create(spec("regions", partition_column="subject"))
    await push(opened, b"a", value=region("eu"))
    await push(opened, b"b", b"c", value=region("us"))
    streams = made.streams
    first, second = streams.get("regions--0"), streams.get("regions--1")
    assert first is not None
    assert second is not None
    assert streams.get("regions--1") is second
    rows = await second.read(0, 10)
    assert isinstance(rows, Rows)
    assert (list(rows.offsets), rows.payloads) == ([0, 1], [b"b", b"c"])
    assert (first.last_seq, second.last_seq) == (1, 2)
    assert (first.config.sealed, first.config.subjects) == (True, ())


@pytest.mark.parametrize(
    "name", ["regions--2", "regions--01", "regions--", "regions", "regions--" + "9" * 5000]
)
async def test_only_names_of_existing_partitions_are_streams(made: Streaming, name: str) -> None:
    opened = await made.served.create(spec("regions", partition_column="subject"))
    await push(opened, b"a", value=region("eu"))
    await push(opened, b"b", value=region("us"))
    assert made.streams.get(name) is None


async def test_an_observer_of_a_partition_is_notified_of_its_messages_only(made: Streaming) -> None:
    opened = await made.served.create(spec("regions", partition_column="subject"))
    await push(opened, b"a", value=region("eu"))
    await push(opened, b"b", value=region("us"))
    stream = made.streams.get("regions--0")
    assert stream is not None
    heard: list[int] = []
    stream.changed.add(lambda: heard.append(stream.last_seq))
    await push(opened, b"c", value=region("us"))
    assert heard == []
    await push(opened, b"d", value=region("eu"))
    assert heard == [2]


async def test_partition_streams_are_closed_with_their_topic(made: Streaming) -> None:
    opened = await made.served.create(spec("regions", partition_column="subject"))
    await push(opened, b"a", value=region("eu"))
    stream, gone = made.streams.get("regions--0"), list[str]()
    assert stream is not None
    made.streams.watch(closed=lambda stream: gone.append(stream.name))
    await made.served.topics.delete_topic(opened.topic.name)
    assert (gone, made.streams.get("regions--0")) == (["regions--0"], None)
