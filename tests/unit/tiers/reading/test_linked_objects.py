"""Rows that another engine put into the bucket and that got their offsets by a link."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from penstock.formats.bodies import ONCE_SECONDS, LinkBody, LinkPart, ObjectRef, Transaction
from penstock.log import InObjects, LinkFrame
from penstock.metadata import MetadataUnavailable
from penstock.model.columns import Columns
from penstock.model.errors import DataDamaged, LogReadOnly
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.model.units import Microseconds, Offset, PartitionId, PartitionRange
from penstock.objects import ObjectMissing, open_store
from penstock.objects.fs import FileStore
from penstock.tiers.manifest.entries import ObjectEntry, Transactions
from penstock.tiers.manifest.stored_manifest import ManifestLimits
from penstock.tiers.reading import linked_objects as linked
from penstock.tiers.topic_tier import TopicTier
from tests.broker.storage import (
    KEYS,
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
    read_batches,
    spans,
    stage,
    stage_fill,
    started,
    verify,
)
from tests.servers.s3 import S3Server

P1 = PartitionId(1)


@pytest_asyncio.fixture(params=["fs", "memory", "seaweedfs", "rclone"])
async def stored(
    request: pytest.FixtureRequest, world: World, tmp_path: Path
) -> AsyncIterator[World]:
    """A world with each kind of bucket."""
    if request.param == "fs":
        world.bucket = FileStore(tmp_path / "bucket")
    elif request.param != "memory":
        server: S3Server = request.getfixturevalue(request.param)
        world.bucket = open_store(server.cloud(), tmp_path)
    yield world
    await world.bucket.close()


async def mixed(world: World) -> tuple[Broker, TopicTier, dict[int, range]]:
    """Two partitions of appended and linked messages in turn, and their live offsets."""
    broker, tier = await started(world)
    await link_fill(world, tier, 1, {0: [3, 9], 1: [5]})
    await fill(tier.log, 10)
    await fill(tier.log, 7, partition=1)
    await link_fill(world, tier, 2, {1: [1, 0, 6]})
    await fill(tier.log, 4, partition=1)
    await link_fill(world, tier, 3, {0: [2]})
    return broker, tier, {0: range(24), 1: range(23)}


# -- from links to entries and batches, without a bucket


def test_a_link_defines_which_object_covers_which_offsets() -> None:
    refs = [ObjectRef("a", 2, 100, 7, "v"), ObjectRef("b", 0, 1, 1), ObjectRef("c", 3, 50, 8)]
    link = LinkBody("app", 1, [LinkPart(4, 10, refs), LinkPart(5, 0, refs[:1])])
    made = linked.entries_of([LinkFrame(99, link)], epoch=6, first_frame=3, next_frame=4)
    told = [(e.object_id, e.ranges, e.rows, e.size, e.crc32c, e.etag) for e in made]
    assert told == [
        ("a", [PartitionRange(4, 10, 12)], 2, 100, 7, "v"),
        ("c", [PartitionRange(4, 12, 15)], 3, 50, 8, None),
        ("a", [PartitionRange(5, 0, 2)], 2, 100, 7, "v"),
    ]
    common = [(e.linked, e.epoch, e.first_frame, e.next_frame, e.last_timestamp) for e in made]
    assert common == [(True, 6, 3, 4, 99)] * 3
    assert spans(made) == [(10, 12), (12, 15), (0, 2)]


def test_the_object_of_a_link_in_the_wal_is_found_by_offset() -> None:
    refs = (ObjectRef("a", 2, 100, 7), ObjectRef("b", 0, 1, 1), ObjectRef("c", 3, 50, 8))
    where = InObjects(P1, Offset(10), Offset(15), refs, 99)
    names = []
    for offset in range(10, 15):
        found = linked.find(where, Offset(offset))
        assert found is not None
        assert found[0].first_timestamp == 99
        names.append((found[0].object_id, found[1].first))
    assert names == [("a", 10)] * 2 + [("c", 12)] * 3
    assert linked.find(where, Offset(15)) is None
    assert linked.find(InObjects(P1, Offset(10), Offset(15), ()), Offset(10)) is None


def test_row_groups_are_chosen_by_row_number() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": list(range(10))}), sink, row_group_size=4)
    metadata = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    chosen = [linked.row_groups(metadata, row) for row in (0, 3, 4, 7, 8, 9, 10)]
    rest: list[tuple[list[int], int]] = [([1, 2], 4), ([1, 2], 4), ([2], 8), ([2], 8), ([], 10)]
    assert chosen == [([0, 1, 2], 0), ([0, 1, 2], 0), *rest]


def test_the_manifest_drops_one_time_applications_with_the_log() -> None:
    before: Transactions = {name: (3, {0: (0, 9)}) for name in ("app", "once-a", "once-b")}
    frames = [
        LinkFrame(5, LinkBody(name, 4, [LinkPart(1, 8, [REF])])) for name in ("app", "once-c")
    ]
    known = {name: Transaction(4, {1: (8, 9)}) for name in ("once-b", "once-c")}
    told = linked.updated_transactions(before, frames, known)
    made = (4, {1: (8, 8 + REF.rows)})
    assert told == {"app": made, "once-b": (3, {0: (0, 9)}), "once-c": made}
    assert list(told) == ["once-b", "app", "once-c"], "the newest are the last"


def test_the_manifest_drops_offsets_of_links_with_the_log() -> None:
    before: Transactions = {name: (3, {0: (0, 9)}) for name in ("app", "other", "unknown")}
    known = {"app": Transaction(3, {}), "other": Transaction(3, {0: (0, 9)})}
    told = linked.updated_transactions(before, [], known)
    assert told == {"app": (3, {}), "other": (3, {0: (0, 9)}), "unknown": (3, {0: (0, 9)})}


@pytest.mark.parametrize(
    ("columns", "raw"),
    [
        ({"payload": pa.array([b"x", None], pa.binary())}, True),
        ({"payload": pa.array(["x", ""])}, True),
        ({"payload": pa.array([b"x", b""], pa.large_binary()), "offset": [7, 7]}, True),
        ({"payload": [b"x", b""], "subject": ["s", None], "timestamp": [1, 2]}, True),
        ({"payload": [1.5, 2.5]}, False),
        ({"payload": [b"x", b""], "amount": [1, 2]}, False),
        ({"amount": [1, 2], "offset": [7, 7], "partition": [0, 0]}, False),
    ],
)
def test_rows_are_raw_messages_or_typed_by_their_columns(
    columns: dict[str, object], raw: bool
) -> None:
    [entry] = linked.entries_of([LinkFrame(5, LinkBody("a", 1, [LinkPart(1, 8, [REF])]))])
    batch = linked.decode(entry, pa.table(columns), b"topic", Offset(8))
    assert batch is not None
    assert (batch.partition, batch.first_offset, batch.count, batch.first_timestamp) == (1, 8, 2, 5)
    if raw:
        subjects = pa.array([b"s", b"topic"], pa.binary()) if "subject" in columns else b"topic"
        assert batch.content == Columns(subjects, pa.array([b"x", b""], pa.binary()))
    else:
        assert isinstance(batch.content, pa.RecordBatch)
        own = [name for name in columns if name not in ("partition", "offset", "timestamp")]
        assert batch.content.schema.names == own
    assert linked.decode(entry, pa.table(columns).slice(2), b"topic", Offset(8)) is None


REF = ObjectRef("key", 2, 100, 0)


# -- with a broker and a bucket


@pytest.mark.feature("T09", "T19")
async def test_linked_rows_are_read_before_their_upload_after_it_and_after_pruning(
    stored: World,
) -> None:
    _, tier, live = await mixed(stored)
    for partition, offsets in live.items():
        assert await read_all(tier, partition=partition) == filled(offsets, partition)
    puts = set(await stored.keys("staging/"))
    await flush(tier)
    await verify(stored, tier, live)
    _, entries = await stored.manifest()
    assert {e.object_id for e in entries if e.linked} < puts, "no copy, and none for no rows"
    assert set(await stored.keys("staging/")) == puts
    await drop_wal(tier)
    await verify(stored, tier, live)
    for partition, offsets in live.items():
        for start in offsets:
            wanted = filled(offsets[start:], partition)
            assert await read_all(tier, start, partition) == wanted


@pytest.mark.feature("T19")
async def test_typed_rows_of_another_writer_are_read_in_their_types(world: World) -> None:
    _, tier = await started(world)
    when = datetime.datetime(2024, 5, 6, 7, 8, 9, 123456)  # noqa: DTZ001 - as INT96 has it
    table = pa.table({"n": [1, 2, None], "name": ["a", None, "c"], "at": [when] * 3})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=True)
    data = sink.getvalue().to_pybytes()
    await world.bucket.put("staging/x", [data])
    world.clock.us += 1000
    await tier.link("app", 1, {P0: [ObjectRef("staging/x", 3, len(data), 0)]})
    for _ in range(2):
        [batch] = await read_batches(tier, start=1)
        assert isinstance(batch.content, pa.RecordBatch)
        assert batch.content.to_pylist() == table.slice(1).to_pylist()
        assert batch.first_timestamp == world.clock.us
        await flush(tier)
        await drop_wal(tier)


@pytest.mark.feature("T35")
async def test_linked_rows_are_deleted_purged_and_found_by_time_like_others(world: World) -> None:
    broker, tier = await started(world)
    begin = world.clock.us
    for n in range(6):
        world.clock.us = begin + n * 10
        await link_fill(world, tier, n, {0: [3, 2]})
        await fill(tier.log, 5)
    await tier.log.delete(P0, [1, 3, 30])
    for _ in range(2):
        live = [n for n in range(60) if n not in (1, 3, 30)]
        assert await read_all(tier) == filled(live)
        for n in range(6):
            found = await tier.offset_at(P0, Microseconds(begin + n * 10 - 5))
            assert found == tier.log.state.next_live(P0, Offset(n * 10))
        await flush(tier)
        await drop_wal(tier)
    await tier.log.purge(P0, Offset(24))
    staged = set(await world.keys("staging/"))
    await broker.tiers.upkeep(TOPIC)
    world.clock.us += 61_000_000
    await broker.tiers.upkeep(TOPIC)
    _, entries = await world.manifest()
    left = {e.object_id for e in entries if e.linked}
    assert len(left) == 7, "the second of 20 to 25, and two for each link from 30 on"
    assert set(await world.keys("staging/")) == left < staged
    await verify(world, tier, {0: [n for n in live if n >= 24]})


async def test_an_object_that_was_linked_twice_is_deleted_when_no_entry_names_it(
    world: World,
) -> None:
    broker, tier = await started(world)
    ref = await stage_fill(world, 0, 4)
    await tier.link("one", 1, {P0: [ref]})
    await tier.link("two", 1, {P0: [ref]})
    await flush(tier)
    for start, left in ((4, True), (8, False)):
        await tier.log.purge(P0, Offset(start))
        await broker.tiers.upkeep(TOPIC)
        world.clock.us += 61_000_000
        await broker.tiers.upkeep(TOPIC)
        assert (ref.key in await world.keys("staging/")) == left


@pytest.mark.feature("T12")
async def test_linked_objects_are_not_merged_nor_are_objects_on_both_sides_of_them(
    world: World,
) -> None:
    broker, tier = await started(world, merge_objects_min=2)
    for n in range(3):
        for _ in range(3):
            await fill(tier.log, 5)
            await fill(tier.log, 5, partition=1)
            await flush(tier)
        await link_fill(world, tier, n, {1: [4]})
    await flush(tier)
    for _ in range(3):
        await broker.tiers.upkeep(TOPIC)
    _, entries = await world.manifest()
    assert [e.linked for e in entries] == [False, True] * 3
    await drop_wal(tier)
    await verify(world, tier, {0: range(45), 1: range(57)})


@pytest.mark.feature("T16")
@pytest.mark.parametrize("hot", [True, False], ids=["in the WAL", "in the manifest"])
@pytest.mark.parametrize(
    "damage", ["missing", "other size", "other version", "page", "footer", "no parquet", "rows"]
)
async def test_a_changed_linked_object_is_reported_as_damage_with_its_offsets(
    world: World, damage: str, hot: bool
) -> None:
    _, tier = await started(world)
    await fill(tier.log, 5)
    refs = [await stage_fill(world, first, 6) for first in (5, 11, 17)]
    data = bytearray(await world.bucket.get(refs[1].key))
    bad = refs[1]
    if damage == "rows":
        bad = msgspec.structs.replace(bad, rows=5)
    if damage == "other version":
        bad = msgspec.structs.replace(bad, etag='"other"')
    await world.bucket.delete(bad.key)
    if damage == "other size":
        data += b"x"
    elif damage == "page":
        data[20] ^= 1
    elif damage == "footer":
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        data[start : start + 4] = b"\xff" * 4
    elif damage == "no parquet":
        data[-4:] = b"nope"
    if damage != "missing":
        await world.bucket.put(bad.key, [bytes(data)])
    await tier.log.link("app", 1, {P0: [refs[0], bad, refs[2]]})
    await fill(tier.log, 5)
    if not hot:
        await flush(tier)
        await drop_wal(tier)
    with pytest.raises(DataDamaged) as caught:
        await read_all(tier)
    assert (caught.value.partition, caught.value.first) == (0, 11)
    assert caught.value.next == 11 + bad.rows
    behind = range(caught.value.next, tier.log.next_offset(P0))
    assert [n for n, _ in await read_all(tier, behind[0])] == [*behind]


async def test_a_linked_object_that_was_missing_at_upload_is_read_once_it_exists(
    world: World,
) -> None:
    _, tier = await started(world)
    ref = await stage_fill(world, 0, 4)
    data = await world.bucket.get(ref.key)
    await world.bucket.delete(ref.key)
    await tier.link("app", 1, {P0: [ref]})
    await flush(tier)
    _, [entry] = await world.manifest()
    assert entry.footer_bytes == 0
    await world.bucket.put(ref.key, [data])
    assert await read_all(tier) == filled(range(4))


async def test_a_linked_object_that_was_replaced_later_is_reported_as_damage(world: World) -> None:
    _, tier = await started(world)
    ref = msgspec.structs.replace(await stage_fill(world, 0, 4), etag=None)
    await tier.link("app", 1, {P0: [ref]})
    await flush(tier)
    _, [entry] = await world.manifest()
    assert entry.etag is not None
    await drop_wal(tier)
    other = await stage(world, pa.table({"payload": [b"0/0:" + b"?" * 40] * 4}))
    data = await world.bucket.get(other.key)
    await world.bucket.delete(ref.key)
    await world.bucket.put(ref.key, [data.ljust(ref.size_bytes, b"x")[: ref.size_bytes]])
    with pytest.raises(DataDamaged, match="not the object the manifest names"):
        await read_all(tier)


# -- links and offsets, failures, other brokers


@pytest.mark.feature("T26")
async def test_links_assign_only_reserved_offsets(world: World) -> None:
    broker, tier = await started(world, reserve_offsets=20)
    refs = [ObjectRef("key", 21, 1, 1)]
    with pytest.raises(LogReadOnly, match="reserved"):
        tier.log.link("app", 1, {P0: refs})
    assert tier.log.writer.next_offset(P0) == 0
    assert await tier.link("app", 1, {P0: refs, P1: refs}) == {0: (0, 21), 1: (0, 21)}
    head, _ = await world.manifest()
    assert head.reserved >= 41
    broker.metadata.steps.fail = lambda name, key: MetadataUnavailable("away")
    with pytest.raises(MetadataUnavailable):
        await tier.link("app", 2, {P0: [ObjectRef("key", 1000, 1, 1)]})
    assert tier.log.writer.next_offset(P0) == 21


@pytest.mark.feature("T17")
async def test_many_objects_of_one_link_become_valid_together(
    world: World,
) -> None:
    broker, tier = await started(world, manifest=ManifestLimits(added_max=4))
    await fill(tier.log, 5)
    await flush(tier)
    await link_fill(world, tier, 1, {0: [1] * 9, 1: [2] * 5})
    steps = broker.use_steps()
    # The third transaction of the link is lost: eight of fourteen entries lie there.
    puts: list[str] = []

    def fail(name: str, key: str) -> Exception | None:
        puts.extend([key] * (name == "transaction"))
        return MetadataUnavailable("away") if len(puts) == 3 and puts[-1] == key else None

    steps.fail = fail
    with pytest.raises(MetadataUnavailable):
        await tier.upload_round()
    lying = await world.metadata.range(KEYS.objects(TOPIC))
    assert len(lying.entries) == 9
    head, _ = await world.manifest()
    assert (head.next_sequence, head.transactions) == (1, {})
    successor = await world.broker(name="b2")
    await world.depose()
    taken = await successor.tier()
    assert spans(taken.manifest.index) == [(0, 5)]
    assert taken.log.start_offset(P1) == taken.log.next_offset(P1) == head.reserved
    first = await link_fill(world, taken, 1, {0: [3]})
    assert first == {0: (head.reserved, head.reserved + 3)}, "it is not taken for done"
    await flush(taken)
    assert len(taken.manifest.index) == 2
    await verify(world, taken, {0: [*range(5), *range(*first[0])]})


@pytest.mark.feature("T17")
async def test_a_broker_continues_after_a_partly_written_link(
    world: World,
) -> None:
    limits = ManifestLimits(added_max=4)
    for lost in range(6):
        topic = TOPIC._replace(topic=f"t{lost}")
        broker = await world.broker(name=f"n{lost}", manifest=limits)
        tier = await broker.tier(topic)
        await link_fill(world, tier, 1, {0: [1] * 9, 1: [2] * 5})
        await fill(tier.log, 5)
        broker.metadata.steps.lose = {len(broker.metadata.steps.names) + lost: lost % 2 == 0}
        for _ in range(3):
            try:
                await flush(tier)
            except MetadataUnavailable:
                continue
        await verify(world, tier, {0: range(14), 1: range(10)})
        assert len(tier.manifest.index) == 15
        await broker.stop()


@pytest.mark.feature("T17", "T26")
async def test_a_successor_knows_a_link_once_the_manifest_has_its_objects(
    world: World,
) -> None:
    broker, tier = await started(world)
    await link_fill(world, tier, 1, {0: [4]})
    await flush(tier)
    await link_fill(world, tier, 2, {0: [4]})
    await tier.reserve(10_000)
    head, _ = await world.manifest()
    assert head.transactions == {"app": (1, {0: (0, 4)})}
    await broker.drop()
    await world.depose()
    taken = await (await world.broker(name="b2")).tier()
    assert await taken.link("app", 1, {P0: [REF]}) == {0: (0, 4)}
    assert await link_fill(world, taken, 2, {0: [4]}) == {0: (head.reserved, head.reserved + 4)}
    await flush(taken)
    await verify(world, taken, {0: [*range(4), *range(head.reserved, head.reserved + 4)]})


@pytest.mark.feature("T05")
async def test_a_link_in_a_cloud_topic_waits_for_the_manifest(world: World) -> None:
    broker = await world.broker()
    tier = await broker.tier(durability=Durability.CLOUD)
    ref = await stage_fill(world, 0, 4)
    waiting = tier.log.link("app", 1, {P0: [ref]})
    await tier.log.writer.flush()
    assert not waiting.done()
    await flush(tier)
    assert await waiting == {0: (0, 4)}
    assert spans(tier.manifest.index) == [(0, 4)]


async def test_linked_objects_count_for_a_limit_of_bytes(world: World) -> None:
    broker = await world.broker()
    tier = await broker.tier(limits=TopicRetention(max_bytes=1))
    await link_fill(world, tier, 1, {0: [4, 4]})
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    assert tier.log.start_offset(P0) == 8
    assert _objects(tier) == []


def _objects(tier: TopicTier) -> list[ObjectEntry]:
    return list(tier.manifest.index)


@pytest.mark.feature("S03")
async def test_links_without_an_application_do_not_pile_up(world: World) -> None:
    broker, tier = await started(world)
    count = 0
    for n in range(6):
        world.clock.us += ONCE_SECONDS * 1_000_000 // 2
        for app in ("app", f"once-{n}"):
            await tier.link(app, n, {P0: [await stage_fill(world, count, 1)]})
            count += 1
        await flush(tier)
    kept = {"app", "once-3", "once-4", "once-5"}
    assert tier.log.state.transactions.keys() == kept
    assert tier.manifest.head.transactions.keys() == kept
    again = await world.broker(await broker.crash(), name=broker.name)
    tier = await again.tier()
    assert tier.log.state.transactions.keys() == kept
    for app, first in (("app", 10), ("once-5", 11)):
        given = await tier.link(app, 0, {P0: [await stage_fill(world, count, 1)]})
        assert given == {0: (first, first + 1)}


@pytest.mark.feature("S03", "T17")
async def test_many_links_into_many_partitions_are_uploaded_like_few(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.metadata.requests.REQUEST_BYTES_MAX", 64 << 10)
    monkeypatch.setattr("penstock.metadata.requests.CHUNK_BYTES_MAX", 32 << 10)
    broker, tier = await started(world)
    ref = await stage_fill(world, 0, 1)
    for app in (*(f"once-{n}" for n in range(10)), *(f"query-{n}" for n in range(10))):
        objects = {PartitionId(partition): [ref] for partition in range(500)}
        assert len(await tier.link(app, 0, objects)) == 500
        await flush(tier)
    assert len(_objects(tier)) == 10_000
    assert not tier.manifest.doubtful
    told = tier.manifest.head.transactions
    assert told == {
        app: (done.epoch, done.ranges) for app, done in tier.log.state.transactions.items()
    }
    assert sum(len(ranges) for _, ranges in told.values()) == 10_000
    await broker.drop()
    await world.depose()
    taken = await (await world.broker(name="b2")).tier()
    assert taken.manifest.head.transactions == told
    assert (await taken.link("query-3", 0, {}))[PartitionId(7)] == (13, 14)


async def linked_once(world: World) -> tuple[Broker, TopicTier, ObjectRef]:
    """An object of eight rows in the manifest."""
    broker, tier = await started(world, trash_seconds=60)
    ref = await stage_fill(world, 0, 8)
    await tier.link("one", 1, {P0: [ref]})
    await flush(tier)
    return broker, tier, ref


@pytest.mark.parametrize("again", ["in the trash", "before it was dropped"])
async def test_an_object_that_is_linked_again_is_not_removed(world: World, again: str) -> None:
    broker, tier, ref = await linked_once(world)
    await tier.log.purge(P0, Offset(8))
    if again == "in the trash":
        await broker.tiers.upkeep(TOPIC)
        assert [item.object_id for item in await tier.manifest.trash()] == [ref.key]
        async with tier.claimed({ref.key}):
            await tier.link("two", 1, {P0: [ref]})
    else:
        async with tier.claimed({ref.key}):
            await tier.link("two", 1, {P0: [ref]})
        await broker.tiers.upkeep(TOPIC)
    await flush(tier)
    world.clock.pass_seconds(61)
    await broker.tiers.upkeep(TOPIC)
    assert await world.bucket.head(ref.key)
    assert await tier.manifest.trash() == []
    assert [offset for batch in await read_batches(tier, 8) for offset in batch.offsets()] == [
        *range(8, 16)
    ]


@pytest.mark.feature("T17")
@pytest.mark.parametrize("life", ["the same", "a restart"])
async def test_an_object_that_is_linked_again_stays_until_that_is_in_the_manifest(
    world: World, life: str
) -> None:
    broker, tier, ref = await linked_once(world)
    async with tier.claimed({ref.key}):
        await tier.link("two", 1, {P0: [ref]})
    await tier.log.purge(P0, Offset(8))
    await broker.tiers.upkeep(TOPIC)
    assert [item.object_id for item in await tier.manifest.trash()] == [ref.key]
    if life == "a restart":
        tier.log.rotate()
        await fill(tier.log, 1)
        broker = await world.broker(await broker.crash(), trash_seconds=60)
        tier = await broker.tier()
    world.clock.pass_seconds(61)
    for _ in range(2):
        await broker.tiers.upkeep(TOPIC)
        assert await world.bucket.head(ref.key)
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    assert await world.bucket.head(ref.key)
    assert await tier.manifest.trash() == []
    offsets = [offset for batch in await read_batches(tier, 8) for offset in batch.offsets()]
    assert offsets[:8] == [*range(8, 16)]


@pytest.mark.feature("T17")
async def test_an_object_does_not_go_to_the_trash_while_it_is_linked_again(world: World) -> None:
    broker, tier, ref = await linked_once(world)
    async with tier.claimed({ref.key}), tier.claimed({ref.key, "other"}):
        await tier.log.purge(P0, Offset(8))
        await broker.tiers.upkeep(TOPIC)
        assert _objects(tier) == []
        assert await tier.manifest.trash() == []
        await tier.link("two", 1, {P0: [ref]})
    assert not tier.manifest.claimed
    await flush(tier)
    await tier.log.purge(P0, Offset(16))
    await broker.tiers.upkeep(TOPIC)
    assert [item.object_id for item in await tier.manifest.trash()] == [ref.key]


@pytest.mark.feature("T17")
async def test_a_claim_waits_for_a_removal_in_progress(world: World) -> None:
    broker, tier, ref = await linked_once(world)
    await tier.log.purge(P0, Offset(8))
    dropping, go_on = asyncio.Event(), asyncio.Event()

    async def stop(name: str, key: str) -> None:
        if name == "transaction":
            dropping.set()
            await go_on.wait()

    broker.metadata.steps.wait = stop
    upkeep = asyncio.create_task(broker.tiers.upkeep(TOPIC))
    await dropping.wait()

    async def claim() -> None:
        async with tier.claimed({ref.key}):
            assert await tier.manifest.trash() == []

    claiming = asyncio.create_task(claim())
    await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(claiming, upkeep)
    assert _objects(tier) == []


@pytest.mark.feature("T17", "T26")
async def test_an_object_that_is_about_to_be_deleted_is_not_linked_again(
    world: World,
) -> None:
    """For example by an owner that was suspended while it emptied the trash."""
    broker, tier, ref = await linked_once(world)
    await tier.log.purge(P0, Offset(8))
    await broker.tiers.upkeep(TOPIC)
    stopped, go_on = asyncio.Event(), asyncio.Event()

    async def stop(name: str, key: str) -> None:
        if name == "delete":
            stopped.set()
            await go_on.wait()

    broker.store.steps.wait = stop
    world.clock.pass_seconds(61)
    upkeep = asyncio.create_task(broker.tiers.upkeep(TOPIC))
    await stopped.wait()
    await world.depose()
    taken = await (await world.broker(name="b2", trash_seconds=60)).tier()
    with pytest.raises(ObjectMissing):
        async with taken.claimed({ref.key}):
            raise AssertionError("it is not to be linked")
    go_on.set()
    await asyncio.gather(upkeep, return_exceptions=True)
    assert ref.key not in await world.keys("staging/")


@pytest.mark.feature("T17", "T26")
async def test_objects_that_become_due_while_the_trash_is_read_remain(world: World) -> None:
    broker, tier, ref = await linked_once(world)
    await tier.log.purge(P0, Offset(8))
    await broker.tiers.upkeep(TOPIC)

    async def stop(name: str, key: str) -> None:
        if name == "range" and key == KEYS.trash(TOPIC):
            world.clock.pass_seconds(61)

    broker.metadata.steps.wait = stop
    await broker.tiers.upkeep(TOPIC)
    assert await world.bucket.head(ref.key)
