"""Objects that another engine made from several of the broker's."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock.formats import objects as form
from penstock.formats.bodies import ObjectRef
from penstock.formats.objects import ObjectFacts
from penstock.host.entropy import unique_name
from penstock.model.errors import RunInvalid
from penstock.model.units import Offset, PartitionRange
from penstock.tiers.external.compaction import CompactionStale, replace_by_compacted
from penstock.tiers.manifest.entries import ObjectEntry, joined_ranges
from penstock.tiers.topic_tier import TopicTier
from tests.broker.storage import (
    P0,
    TOPIC,
    Broker,
    World,
    drop_wal,
    fill,
    filled,
    flush,
    link_fill,
    read_all,
    started,
    verify,
)


async def entries_of(tier: TopicTier) -> list[ObjectEntry]:
    return sorted(tier.manifest.index, key=lambda entry: entry.sequence)


async def several(world: World) -> tuple[Broker, TopicTier, list[ObjectEntry]]:
    """A topic of four objects with ten messages each."""
    broker, tier = await started(world)
    for _ in range(4):
        await fill(tier.log, 10)
        await flush(tier)
    return broker, tier, await entries_of(tier)


async def made_of(world: World, run: list[ObjectEntry], **changes: Any) -> ObjectRef:
    """Put one object with the rows of others, as another engine does."""
    tables = []
    for entry in run:
        data = await world.bucket.get(entry.object_id)
        table = pq.read_table(pa.BufferReader(data))
        if entry.linked:
            count, first = table.num_rows, entry.start_offset
            stamps = pa.array([entry.first_timestamp] * count, pa.timestamp("us", tz="UTC"))
            columns = {
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(first, first + count), pa.int64()),
                "timestamp": stamps,
                "subject": pa.array(["t"] * count),
                "headers": pa.nulls(count, pa.binary()),
                "payload": table.column("payload"),
            }
            table = pa.table(columns)
        tables.append(table)
    facts = ObjectFacts(
        version=1,
        topic=str(TOPIC),
        ranges=joined_ranges([span for entry in run for span in entry.ranges]),
        rows=sum(entry.rows for entry in run),
        first_timestamp=run[0].first_timestamp,
        last_timestamp=run[-1].last_timestamp,
        epoch=run[-1].epoch,
        first_frame=run[0].first_frame,
        next_frame=run[-1].next_frame,
        typed=False,
    )
    stored = form.stored_schema(facts)
    rows = pa.concat_tables([pa.table([t.column(f.name) for f in stored], stored) for t in tables])
    rows = changes.pop("table", rows)
    facts = msgspec.structs.replace(facts, **changes)
    data = form.encode_table(rows, facts)
    key = form.object_key(TOPIC, world.clock.now_us(), facts.ranges, unique_name())
    info = await world.bucket.put(key, [data])
    return ObjectRef(key, 0, len(data), crc32c(data), info.etag)


def keys(run: list[ObjectEntry]) -> list[str]:
    return [entry.object_id for entry in run]


@pytest.mark.feature("S05")
async def test_a_compacted_object_replaces_its_inputs(world: World) -> None:
    broker, tier, entries = await several(world)
    ref = await made_of(world, entries[1:3])
    for _ in range(2):
        await replace_by_compacted(tier, keys(entries[1:3]), ref, broker.threads)
    now = await entries_of(tier)
    assert keys(now) == [entries[0].object_id, ref.key, entries[3].object_id]
    await drop_wal(tier)
    await verify(world, tier, {0: range(40)})
    trash = await tier.manifest.trash()
    assert sorted(item.object_id for item in trash) == sorted(keys(entries[1:3]))


@pytest.mark.feature("S05")
async def test_linked_objects_become_ordinary_ones(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    await link_fill(world, tier, 1, {0: [5, 5]})
    await flush(tier)
    entries = await entries_of(tier)
    assert [entry.linked for entry in entries] == [False, True, True]
    await replace_by_compacted(tier, keys(entries), await made_of(world, entries), broker.threads)
    (entry,) = await entries_of(tier)
    assert not entry.linked
    await drop_wal(tier)
    assert await read_all(tier) == filled(range(20))


@pytest.mark.feature("S05")
async def test_one_of_two_compactions_of_the_same_objects_is_refused(world: World) -> None:
    broker, tier, entries = await several(world)
    first, second = await made_of(world, entries[:2]), await made_of(world, entries[1:3])
    await replace_by_compacted(tier, keys(entries[:2]), first, broker.threads)
    with pytest.raises(CompactionStale, match="does not count any more"):
        await replace_by_compacted(tier, keys(entries[1:3]), second, broker.threads)
    apart = [entries[2], (await entries_of(tier))[0]]
    with pytest.raises(CompactionStale, match="side by side"):
        await replace_by_compacted(tier, [apart[0].object_id] * 2, second, broker.threads)
    await verify(world, tier, {0: range(40)})


async def test_objects_that_are_not_adjacent_are_refused(world: World) -> None:
    broker, tier, entries = await several(world)
    ref = await made_of(world, [entries[0], entries[2]])
    with pytest.raises(CompactionStale, match="side by side"):
        await replace_by_compacted(tier, keys([entries[0], entries[2]]), ref, broker.threads)


@pytest.mark.feature("S05")
async def test_a_compacted_object_may_leave_out_only_deleted_messages(world: World) -> None:
    broker, tier, entries = await several(world)
    await tier.log.delete(P0, [3, 4])
    data = await world.bucket.get(entries[0].object_id)
    rows = pq.read_table(pa.BufferReader(data))
    second = pq.read_table(pa.BufferReader(await world.bucket.get(entries[1].object_id)))
    both = pa.concat_tables([rows, second])
    offsets = both.column("offset").to_pylist()
    for gone, fine in (({3, 4, 5}, False), ({3, 4}, True)):
        kept = both.filter(pa.array([offset not in gone for offset in offsets]))
        ref = await made_of(world, entries[:2], table=kept, rows=kept.num_rows)
        if fine:
            await replace_by_compacted(tier, keys(entries[:2]), ref, broker.threads)
            continue
        with pytest.raises(RunInvalid, match="17 rows where 18 to 20 are due"):
            await replace_by_compacted(tier, keys(entries[:2]), ref, broker.threads)
    await drop_wal(tier)
    assert await read_all(tier) == filled([n for n in range(40) if n not in (3, 4)])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": "a/b/c"}, "of topic a/b/c"),
        ({"ranges": [PartitionRange(0, 0, 19)]}, "not hold the offsets"),
        ({"first_frame": 99}, "not hold the frames"),
        ({"rows": 7}, "has 20 rows and says 7"),
        ({"typed": True, "schema": b"x"}, "columns are not those"),
    ],
)
async def test_an_object_with_other_content_than_its_inputs_is_refused(
    world: World, changes: dict[str, Any], words: str
) -> None:
    broker, tier, entries = await several(world)
    ref = await made_of(world, entries[:2], **changes)
    with pytest.raises(RunInvalid, match=words):
        await replace_by_compacted(tier, keys(entries[:2]), ref, broker.threads)
    assert await entries_of(tier) == entries


async def test_files_that_are_missing_foreign_or_misnamed_are_refused(world: World) -> None:
    broker, tier, entries = await several(world)
    good = await made_of(world, entries[:2])
    sizes = msgspec.structs.replace(good, size_bytes=good.size_bytes - 1)
    named = msgspec.structs.replace(good, key="topics/x/data-1.parquet")
    missing = msgspec.structs.replace(good, key=f"{good.key}x")
    for ref, words in ((sizes, "not the one"), (named, "must be named"), (missing, "no such")):
        with pytest.raises(RunInvalid, match=words):
            await replace_by_compacted(tier, keys(entries[:2]), ref, broker.threads)
    old = msgspec.structs.replace(
        good, key=form.object_key(TOPIC, 1, [PartitionRange(0, 0, 20)], "x")
    )
    with pytest.raises(RunInvalid, match="more than a day old"):
        await replace_by_compacted(tier, keys(entries[:2]), old, broker.threads)
    key = form.object_key(TOPIC, world.clock.now_us(), [PartitionRange(0, 0, 20)], unique_name())
    await world.bucket.put(key, [b"y" * 100])
    with pytest.raises(RunInvalid, match="not a Parquet file"):
        await replace_by_compacted(
            tier, keys(entries[:2]), ObjectRef(key, 0, 100, 0), broker.threads
        )
    many = [f"k{n}" for n in range(100)]
    with pytest.raises(RunInvalid, match="too many"):
        await replace_by_compacted(tier, many, good, broker.threads)
    assert tier.log.next_offset(P0) == Offset(40)
