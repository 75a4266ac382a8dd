import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from penstock.formats import arrow_stream
from penstock.log import WhenFull
from penstock.model import names, schema
from penstock.model.batch import AtHead
from penstock.model.errors import (
    AppendQueueFull,
    FormatError,
    PartitionInvalid,
    PenstockError,
    ResourceUnknown,
    RunInvalid,
)
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Topic
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset, OffsetRange
from penstock.topics import Pusher, PushItem, TopicPartition
from penstock.topics.pusher import CHILD_BYTES_MIN, THREAD_BYTES_MIN
from tests.broker.storage import World
from tests.broker.topics import Served, region, serve, spec

RAW = spec("raw")
TYPED = spec("typed", schema=schema.schema(map(schema.field, ["n:int64", "s:string?"])))
REGIONS = spec(
    "regions",
    schema=schema.schema(map(schema.field, ["n:int64", "region:string"])),
    partition_column="region",
)


@pytest_asyncio.fixture
async def served(world: World) -> Served:
    served = await serve(world)
    for one in (RAW, TYPED, REGIONS):
        await served.create(one)
    return served


@pytest_asyncio.fixture
async def pusher(served: Served, world: World) -> AsyncIterator[Pusher]:
    pusher = Pusher(served.topics, world.log_settings)
    yield pusher
    await pusher.close()


def _json(rows: object) -> bytes:
    return json.dumps(rows).encode()


def _stream(columns: dict[str, Any]) -> bytes:
    table = pa.table(columns)
    return arrow_stream.write(table.schema, table.to_batches(), b"")


async def _stored(
    served: Served, name: str, value: PartitionValue | None = None
) -> list[dict[str, Any]]:
    topic: Topic = served.topics.get(names.topic(name)).topic
    rows: list[dict[str, Any]] = []
    offset = Offset(0)
    while True:
        answer = await served.source.read(TopicPartition(topic, value), offset, 1 << 30)
        if isinstance(answer, AtHead):
            return rows
        assert isinstance(answer, list)
        for batch in answer:
            rows += batch.to_arrow().to_pylist()
            offset = batch.next_offset


@pytest.mark.feature("F23", "F26")
async def test_stored_rows_have_the_partition_column_though_pushed_ones_have_not(
    pusher: Pusher, served: Served
) -> None:
    item = await pusher.from_json(REGIONS.name, region("eu"), _json([{"n": 1}, {"n": 2}]))
    assert await pusher.push([item]) == [OffsetRange(Offset(0), Offset(2))]
    rows = await _stored(served, "regions", region("eu"))
    assert [(row["n"], row["region"], row["partition"]) for row in rows] == [
        (1, "eu", 0),
        (2, "eu", 0),
    ]


async def test_few_messages_are_lists_that_the_log_joins(pusher: Pusher) -> None:
    item = await pusher.from_json(RAW.name, None, _json([{"payload": "a"}]))
    assert item.run == Run(b"raw", [b"a"])


@pytest.mark.parametrize("name", ["raw", "typed"])
async def test_much_json_is_read_in_the_child_process(
    pusher: Pusher, served: Served, name: str
) -> None:
    count = CHILD_BYTES_MIN // 20
    key = "payload" if name == "raw" else "s"
    rows = [{key: "x" * 20, **({} if name == "raw" else {"n": n})} for n in range(count)]
    small = await pusher.from_json(names.topic(name), None, _json(rows[:1]))
    pids = [pusher._child.pid]
    item = await pusher.from_json(names.topic(name), None, _json(rows))
    pids.append(pusher._child.pid)
    assert [pid is None for pid in pids] == [True, False]
    assert isinstance(item.run, ColumnRun)
    answers = [*await pusher.push([small]), *await pusher.push([item])]
    assert answers == [
        OffsetRange(Offset(0), Offset(1)),
        OffsetRange(Offset(1), Offset(1 + count)),
    ]
    stored = await _stored(served, name)
    assert [row[key] for row in stored[1:]] == (
        [b"x" * 20] * count if name == "raw" else ["x" * 20] * count
    )
    with pytest.raises(FormatError, match=rf"data\[{count}\]: Expected `object`, got `int`"):
        await pusher.from_json(names.topic(name), None, _json([*rows, 1]))


@pytest.mark.feature("F03", "F25")
@pytest.mark.parametrize(
    ("name", "value", "rows", "error"),
    [
        ("nowhere", None, [{}], ResourceUnknown),
        ("regions", None, [{"n": 1}], PartitionInvalid),
        ("regions", PartitionValue("Int8", 1), [{"n": 1}], PartitionInvalid),
        ("raw", region("eu"), [{"payload": ""}], PartitionInvalid),
        ("typed", None, [{"n": "x"}], FormatError),
        ("raw", None, [{"payload": 1}], FormatError),
    ],
)
async def test_rows_that_do_not_fit_their_topic_are_refused(
    pusher: Pusher,
    name: str,
    value: PartitionValue | None,
    rows: object,
    error: type[PenstockError],
) -> None:
    with pytest.raises(error):
        await pusher.from_json(names.topic(name), value, _json(rows))


@pytest.mark.feature("F24", "F26")
@pytest.mark.parametrize("repeated", [1, 40_000])
async def test_a_table_is_divided_by_the_partition_column(
    pusher: Pusher, served: Served, repeated: int
) -> None:
    """Few rows are divided on the loop, many in a thread."""
    regions = ["eu", "us", "eu"] * repeated
    numbers = list(range(3 * repeated))
    items = await pusher.from_arrow(
        REGIONS.name, None, _stream({"region": regions, "n": pa.array(numbers, pa.int32())})
    )
    assert [item.value for item in items] == [region("eu"), region("us")]
    answers = await pusher.push(items)
    assert answers == [
        OffsetRange(Offset(0), Offset(2 * repeated)),
        OffsetRange(Offset(0), Offset(repeated)),
    ]
    stored = await _stored(served, "regions", region("us"))
    assert [row["n"] for row in stored] == numbers[1::3]
    assert {row["region"] for row in stored} == {"us"}


async def test_a_table_of_one_partition_may_leave_its_column_out(
    pusher: Pusher, served: Served
) -> None:
    items = await pusher.from_arrow(REGIONS.name, region("eu"), _stream({"n": [1]}))
    await pusher.push(items)
    assert [row["region"] for row in await _stored(served, "regions", region("eu"))] == ["eu"]
    with pytest.raises(PartitionInvalid):
        await pusher.from_arrow(RAW.name, region("eu"), _stream({"payload": ["a"]}))


@pytest.mark.parametrize("count", [3, THREAD_BYTES_MIN // 16])
async def test_a_stream_of_one_batch_is_stored_byte_for_byte(
    pusher: Pusher, served: Served, count: int
) -> None:
    """Few rows are checked on the loop, many in a thread."""
    numbers = list(range(count))
    stream = _stream({"n": numbers, "s": [f"name {n}" for n in numbers]})
    (item,) = await pusher.from_arrow(TYPED.name, None, stream)
    assert isinstance(item.run, ColumnRun)
    assert item.run.encoded is not None
    assert await pusher.push([item]) == [OffsetRange(Offset(0), Offset(count))]
    log = served.topics.get(TYPED.name).log
    (batch,) = item.run.encoded.pieces[1:]
    (file,) = log.files.all()
    assert file.path.read_bytes().count(batch) == 1
    log._tail.clear()
    rows = await _stored(served, "typed")
    assert [(row["n"], row["s"]) for row in rows] == [(n, f"name {n}") for n in numbers]


@pytest.mark.parametrize("sizes", [(2, 1), (0, 3), (3, 0)])
async def test_a_stream_of_several_batches_is_stored_as_one(
    pusher: Pusher, served: Served, sizes: tuple[int, ...]
) -> None:
    table = pa.table({"n": [1, 2, 3], "s": ["a", "b", "c"]})
    (whole,) = table.to_batches()
    parts = [whole[: sizes[0]], whole[sizes[0] :]]
    stream = arrow_stream.write(table.schema, parts, b"")
    (item,) = await pusher.from_arrow(TYPED.name, None, stream)
    assert isinstance(item.run, ColumnRun)
    assert item.run.encoded is None
    assert await pusher.push([item]) == [OffsetRange(Offset(0), Offset(3))]
    served.topics.get(TYPED.name).log._tail.clear()
    assert [row["n"] for row in await _stored(served, "typed")] == [1, 2, 3]


async def test_a_partition_value_beside_its_column_leaves_the_stream_as_it_came(
    pusher: Pusher, served: Served
) -> None:
    stream = _stream({"n": [1, 2], "region": ["eu", "eu"]})
    (item,) = await pusher.from_arrow(REGIONS.name, region("eu"), stream)
    (left_out,) = await pusher.from_arrow(REGIONS.name, region("eu"), _stream({"n": [3]}))
    assert [isinstance(i.run, ColumnRun) and i.run.encoded is None for i in (item, left_out)] == [
        False,
        True,
    ]
    await pusher.push([item])
    await pusher.push([left_out])
    served.topics.get(REGIONS.name).log._tail.clear()
    rows = await _stored(served, "regions", region("eu"))
    assert [(row["n"], row["region"]) for row in rows] == [(1, "eu"), (2, "eu"), (3, "eu")]


async def test_rows_pushed_one_by_one_in_a_turn_are_one_frame(
    pusher: Pusher, served: Served
) -> None:
    log = served.topics.get(TYPED.name).log
    before = log.writer.durable_number
    items = [await pusher.from_json(TYPED.name, None, _json([{"n": n}])) for n in range(20)]
    answers = await asyncio.gather(*(pusher.push([item]) for item in items))
    assert answers == [[OffsetRange(Offset(n), Offset(n + 1))] for n in range(20)]
    assert log.writer.durable_number == before + 1
    log._tail.clear()
    assert [row["n"] for row in await _stored(served, "typed")] == list(range(20))


async def test_no_rows_are_no_items(pusher: Pusher) -> None:
    stream = _stream({"n": pa.array([], pa.int64())})
    assert await pusher.from_arrow(TYPED.name, None, stream) == []


@pytest.mark.feature("F23")
async def test_answers_are_in_order_whatever_topics_the_items_are_of(pusher: Pusher) -> None:
    async def item(name: str, value: PartitionValue | None, count: int) -> PushItem:
        row = {"payload": "a"} if name == "raw" else {"n": 1}
        return await pusher.from_json(names.topic(name), value, _json([row] * count))

    items = [
        await item("raw", None, 1),
        await item("regions", region("eu"), 2),
        await item("typed", None, 3),
        await item("regions", region("us"), 4),
    ]
    answers = await pusher.push(items)
    assert [a.messages for a in answers if isinstance(a, OffsetRange)] == [1, 2, 3, 4]


async def test_one_that_fails_does_not_fail_the_others(pusher: Pusher, served: Served) -> None:
    served.topics.get(RAW.name).log.refusal = "a test says so"
    items = [
        await pusher.from_json(RAW.name, None, _json([{"payload": "a"}])),
        await pusher.from_json(TYPED.name, None, _json([{"n": 1}])),
    ]
    refused, fine = await pusher.push(items)
    assert isinstance(refused, PenstockError)
    assert fine == OffsetRange(Offset(0), Offset(1))


async def test_a_large_push_is_several_frames_and_one_range(world: World) -> None:
    world.log_settings = settings = replace(world.log_settings, frame_bytes_max=1024)
    served = await serve(world)
    await served.create(TYPED)
    pusher = Pusher(served.topics, settings)
    (item,) = await pusher.from_arrow(TYPED.name, None, _stream({"n": list(range(1000))}))
    (other,) = await pusher.from_arrow(TYPED.name, None, _stream({"n": [-1]}))
    first = asyncio.create_task(pusher.push([item]))
    second = asyncio.create_task(pusher.push([other]))
    (whole,), (single,) = await first, await second
    assert isinstance(whole, OffsetRange)
    assert isinstance(single, OffsetRange)
    assert whole.messages == 1000
    rows = await _stored(served, "typed")
    numbers = [row["n"] for row in rows]
    assert numbers[whole.first : whole.next] == list(range(1000))
    assert numbers[single.first] == -1
    assert served.topics.get(TYPED.name).log.writer.durable_number > 5
    await pusher.close()


async def test_a_push_larger_than_the_queue_is_one_frame(served: Served, world: World) -> None:
    settings = replace(world.log_settings, frame_bytes_max=1024, pending_bytes_max=2048)
    pusher = Pusher(served.topics, settings)
    (item,) = await pusher.from_arrow(TYPED.name, None, _stream({"n": list(range(1000))}))
    assert list(pusher._pieces(item.run)) == [item.run]
    assert await pusher.push([item]) == [OffsetRange(Offset(0), Offset(1000))]
    await pusher.close()


@pytest.mark.parametrize("when_full", WhenFull)
async def test_a_large_push_waits_or_is_refused_when_the_queue_is_full(
    world: World, when_full: WhenFull
) -> None:
    settings = replace(
        world.log_settings, frame_bytes_max=1024, pending_bytes_max=15_000, when_full=when_full
    )
    world.log_settings = settings
    served = await serve(world)
    opened = await served.create(TYPED)
    assert opened.tier is not None
    await opened.tier.reserve(10_000)
    pusher = Pusher(served.topics, settings)
    (item,) = await pusher.from_arrow(TYPED.name, None, _stream({"n": list(range(1000))}))
    assert len(list(pusher._pieces(item.run))) > 1
    opened.log.append(ColumnRun(pa.record_batch({"n": [1], "s": ["x" * 5000]})))
    (answer,) = await pusher.push([item])
    if when_full is WhenFull.WAIT:
        assert answer == OffsetRange(Offset(1), Offset(1001))
    else:
        assert isinstance(answer, AppendQueueFull)
    await pusher.close()


async def test_more_rows_than_are_reserved_ahead_get_their_offsets(
    pusher: Pusher, served: Served
) -> None:
    tier = served.topics.get(TYPED.name).tier
    assert tier is not None
    count = 3 * tier.manifest.head.reserved
    (item,) = await pusher.from_arrow(TYPED.name, None, _stream({"n": list(range(count))}))
    assert await pusher.push([item]) == [OffsetRange(Offset(0), Offset(count))]
    assert tier.manifest.head.reserved >= count


async def test_a_run_beyond_the_limits_is_refused(pusher: Pusher) -> None:
    (item,) = await pusher.from_arrow(TYPED.name, None, _stream({"n": [1]}))
    item.run = ColumnRun(pa.record_batch({"n": pa.array([], pa.int64())}))
    (answer,) = await pusher.push([item])
    assert isinstance(answer, RunInvalid)
