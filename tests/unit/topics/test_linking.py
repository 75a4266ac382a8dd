from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock.formats.bodies import ObjectRef
from penstock.formats.objects import staged_prefix
from penstock.host.entropy import unique_name
from penstock.model import names, schema
from penstock.model.columns import Columns
from penstock.model.errors import PartitionInvalid, PenstockError, RunInvalid
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import Durability, TopicSpec
from penstock.model.subjects import Filter
from penstock.topics import LinkItem, OpenTopic, link, linking
from tests.broker.storage import World, flush
from tests.broker.topics import P0, memory, payloads, push, read, serve, spec
from tests.unit.log.messages import eventually

ORDERS = TopicSpec(
    names.topic("orders"),
    schema.schema([schema.field("id:uint32"), schema.field("name:string?")]),
    "id",
)


async def stage(
    world: World, opened: OpenTopic, table: pa.Table, value: Any = None, **other: Any
) -> LinkItem:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    key = f"{staged_prefix(opened.topic.name)}{unique_name()}.parquet"
    await world.bucket.put(key, [data])
    ref = ObjectRef(key, table.num_rows, len(data), crc32c(data))
    tagged = None if value is None else PartitionValue("UInt32", value)
    facts = {name: other.get(name, getattr(ref, name)) for name in ref.__struct_fields__}
    return LinkItem(ObjectRef(**facts), tagged)


def raw(*bodies: bytes) -> pa.Table:
    return pa.table({"payload": pa.array(bodies, pa.binary())})


def rows(ids: list[int], **changes: Any) -> pa.Table:
    fields = [pa.field("id", pa.uint32(), nullable=False), pa.field("name", pa.string())]
    return pa.table([pa.array(ids, pa.uint32()), pa.array(["x"] * len(ids))], pa.schema(fields))


async def test_staged_rows_get_the_next_offsets_and_are_read_at_once(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    await push(opened, b"a")
    staged = [await stage(world, opened, raw(b"b", b"c")), await stage(world, opened, raw(b"d"))]
    done = await link(opened, "app", 0, staged)
    assert (done.ranges, done.repeated) == ({0: (1, 4)}, False)
    expected = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    assert await payloads(served.source, opened.topic) == expected
    assert opened.tier is not None
    await flush(opened.tier)
    assert await payloads(served.source, opened.topic) == expected


async def test_the_same_epoch_again_changes_nothing_whatever_became_of_the_objects(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create()
    item = await stage(world, opened, raw(b"b", b"c"))
    first = await link(opened, "app", 5, [item])
    await world.bucket.delete(item.ref.key)
    for epoch in (5, 4):
        again = await link(opened, "app", epoch, [item])
        assert (again.ranges, again.repeated) == (first.ranges, True)
    assert opened.log.next_offset(opened.log.partitions()[0]) == 2
    other = await link(opened, "other", 0, [await stage(world, opened, raw(b"d"))])
    assert (other.ranges, other.repeated) == ({0: (2, 3)}, False)


async def test_the_same_epoch_again_waits_for_the_upload_where_the_first_one_does(
    world: World,
) -> None:
    served = await serve(world)
    opened = await served.create(TopicSpec(names.topic("c"), durability=Durability.CLOUD))
    assert opened.tier is not None
    item = await stage(world, opened, raw(b"b", b"c"))
    tasks = [asyncio.create_task(link(opened, "app", 5, [item]))]
    await eventually(lambda: "app" in opened.log.state.transactions)
    tasks.append(asyncio.create_task(link(opened, "app", 5, [item])))
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in tasks)
    await flush(opened.tier)
    assert [(await task).ranges for task in tasks] == [{0: (0, 2)}] * 2


async def test_an_old_link_is_known_to_exist_without_its_offsets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.state.LINK_RANGES_MAX", 1)
    opened = await (await serve(world)).create()
    for app in ("old", "new"):
        await link(opened, app, 5, [await stage(world, opened, raw(b"x"))])
    assert await link(opened, "old", 5, []) == ({}, True)
    assert await link(opened, "new", 5, []) == ({0: (1, 2)}, True)
    assert opened.log.next_offset(P0) == 2


async def test_one_application_too_many_is_refused_by_name_and_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linking, "LINK_APPS_MAX", 2)
    opened = await (await serve(world)).create()
    for app in ("a", "once-b"):
        await link(opened, app, 1, [await stage(world, opened, raw(b"x"))])
    item = await stage(world, opened, raw(b"y"))
    with pytest.raises(RunInvalid, match="the limit LINK_APPS_MAX is 2: write again as one"):
        await link(opened, "c", 1, [item])
    assert (await link(opened, "a", 1, [item])).repeated
    assert (await link(opened, "a", 2, [item])).ranges == {0: (2, 3)}
    assert opened.log.state.transactions.keys() == {"a", "once-b"}


async def test_an_object_that_is_linked_again_leaves_the_trash(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert opened.tier is not None
    item = await stage(world, opened, raw(b"b", b"c"))
    await link(opened, "app", 0, [item])
    await flush(opened.tier)
    [entry] = opened.tier.manifest.index
    await opened.tier.remove_entries([entry])
    assert [old.object_id for old in await opened.tier.manifest.trash()] == [item.ref.key]
    done = await link(opened, "other", 0, [item])
    assert done.ranges == {0: (2, 4)}
    assert await opened.tier.manifest.trash() == []


async def test_an_object_that_is_about_to_be_removed_is_refused_by_name(world: World) -> None:
    opened = await (await serve(world)).create()
    assert opened.tier is not None
    item = await stage(world, opened, raw(b"b", b"c"))
    await link(opened, "app", 0, [item])
    await flush(opened.tier)
    await opened.tier.remove_entries(list(opened.tier.manifest.index))
    world.clock.pass_seconds(60)
    with pytest.raises(RunInvalid, match=f"object {item.ref.key} is missing, or about to be"):
        await link(opened, "other", 0, [item])
    assert opened.log.next_offset(P0) == 2
    assert len(await opened.tier.manifest.trash()) == 1


async def test_an_epoch_without_rows_is_recorded(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    assert (await link(opened, "app", 1, [])).repeated is False
    assert (await link(opened, "app", 1, [])).repeated is True


async def test_rows_of_a_partitioned_topic_go_to_the_partition_of_their_value(world: World) -> None:
    served = await serve(world)
    opened = await served.create(ORDERS)
    staged = [
        await stage(world, opened, rows([7, 7]), 7),
        await stage(world, opened, rows([4_000_000_000]), 4_000_000_000),
        await stage(world, opened, rows([7]), 7),
    ]
    done = await link(opened, "app", 0, staged)
    assert done.ranges == {0: (0, 3), 1: (0, 1)}
    assert list(opened.partitions) == [
        PartitionValue("UInt32", 7),
        PartitionValue("UInt32", 4_000_000_000),
    ]


@pytest.mark.parametrize(
    ("table", "value", "other", "error", "words"),
    [
        (rows([7]), 8, {}, PartitionInvalid, "other values than 8"),
        (rows([7, 8]), 7, {}, PartitionInvalid, "other values than 7"),
        (rows([7]), None, {}, PartitionInvalid, "specifies a partition key"),
        (rows([7]), 7, {"rows": 2}, RunInvalid, "1 rows, not 2"),
        (rows([7]), 7, {"size_bytes": 5}, RunInvalid, "not the one that was staged"),
        (rows([7]), 7, {"key": "topics/x/staged-1.parquet"}, RunInvalid, "must be named"),
        (rows([7]).drop_columns("name"), 7, {}, RunInvalid, "'name' is missing"),
        (rows([7]).select(["name", "id"]), 7, {}, RunInvalid, "another order"),
        (rows([7]).append_column("z", [[1]]), 7, {}, RunInvalid, "no column 'z'"),
        (pa.table({"id": [7], "name": ["x"]}), 7, {}, RunInvalid, "int64, not uint32"),
        (
            pa.table({"id": pa.array([7], pa.uint32()), "name": ["x"]}),
            7,
            {},
            RunInvalid,
            "may be null",
        ),
    ],
)
async def test_objects_that_do_not_match_their_description_are_refused(
    world: World,
    table: pa.Table,
    value: int | None,
    other: dict[str, Any],
    error: type[PenstockError],
    words: str,
) -> None:
    served = await serve(world)
    opened = await served.create(ORDERS)
    good = await stage(world, opened, rows([7]), 7)
    with pytest.raises(error, match=words):
        await link(opened, "app", 0, [good, await stage(world, opened, table, value, **other)])
    assert not opened.log.partitions()
    assert not opened.log.state.transactions


async def test_a_file_that_is_missing_or_no_parquet_is_refused(world: World) -> None:
    served = await serve(world)
    opened = await served.create()
    item = await stage(world, opened, raw(b"a"))
    with pytest.raises(RunInvalid, match="twice"):
        await link(opened, "app", 0, [item, item])
    await world.bucket.delete(item.ref.key)
    with pytest.raises(RunInvalid, match="no such object"):
        await link(opened, "app", 0, [item])
    await world.bucket.put(item.ref.key, [b"x" * item.ref.size_bytes])
    with pytest.raises(RunInvalid, match="not a Parquet file"):
        await link(opened, "app", 0, [item])
    for table, words in (
        (pa.table({"a": [1]}), "no column payload"),
        (raw(b"a").append_column("subject", [[1]]), "'subject' of type int64 is none"),
        (raw(b"a").append_column("subject", [["a b"]]), "'a b' is not a subject"),
        (raw(b"a").append_column("more", [["s"]]), "'more' of type string is none"),
    ):
        with pytest.raises(RunInvalid, match=words):
            await link(opened, "app", 0, [await stage(world, opened, table)])


@pytest.mark.feature("S03")
async def test_messages_keep_subjects_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = await serve(world)
    opened = await served.create()
    told = raw(b"b", b"c").append_column("subject", [["x.1", None]])
    items = [await stage(world, opened, told), await stage(world, opened, raw(b"d"))]
    await link(opened, "app", 0, items)
    topic = opened.topic.name.topic.encode()
    assert opened.tier is not None
    for _ in range(2):
        found = await read(served.source, opened.topic)
        assert isinstance(found, list)
        subjects = [
            subject
            for batch in found
            if isinstance(batch.content, Columns)
            for subject in batch.content.subjects().to_pylist()
        ]
        assert subjects == [b"x.1", topic, topic][: len(subjects)]
        for text, offset in ((b"x.1", 0), (b"x.>", 0), (topic, 2)):
            assert await opened.log.index.last(P0, Filter.parse(text)) == offset
        await flush(opened.tier)
    monkeypatch.setattr(linking, "SUBJECTS_BYTES_MAX", 10)
    with pytest.raises(RunInvalid, match="more than SUBJECTS_BYTES_MAX, 10 bytes"):
        await link(opened, "app", 1, [await stage(world, opened, told)])


async def test_topics_that_cannot_take_links_say_so(world: World) -> None:
    served = await serve(world)
    with pytest.raises(RunInvalid, match="lives in memory"):
        await link(await served.create(memory("m")), "app", 0, [])
    by_subject = await served.create(spec("s", partition_column="subject"))
    with pytest.raises(RunInvalid, match="partitioned by subject"):
        await link(by_subject, "app", 0, [])
