from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.formats import objects as form
from penstock.metadata import Compare, CompareTarget
from penstock.model.errors import VersionUnknown
from penstock.model.units import Offset, PartitionRange
from penstock.objects import StoreUnavailable
from penstock.tiers.manifest import rebuild
from penstock.tiers.manifest.entries import Head, ObjectEntry, Snapshot
from penstock.tiers.manifest.manifest import Manifest
from penstock.tiers.manifest.rebuild import ManifestExists
from penstock.tiers.reading import object_check
from penstock.tiers.reading.object_check import ObjectReport
from tests.broker.storage import (
    KEYS,
    P0,
    TOPIC,
    Broker,
    World,
    entry,
    fill,
    flush,
    link_fill,
    spans,
    started,
    verify,
)
from tests.faults import Crashed, FaultyMetadata, FaultyStore

MANY = 250


def plain(entries: list[ObjectEntry]) -> list[ObjectEntry]:
    """Entries without the fields that a rebuild changes: sequence number and size in memory."""
    return [msgspec.structs.replace(e, sequence=0, raw_size=0) for e in entries]


async def rebuilt(world: World) -> Snapshot:
    return await rebuild.rebuild_manifest(FaultyStore(world.bucket), TOPIC)


async def install(world: World, content: Snapshot, replace: bool) -> None:
    await rebuild.install_manifest(world.metadata, KEYS, world.bucket, TOPIC, content, replace)


async def installed(world: World) -> Snapshot:
    """The stored records, without the unique names that an installation creates."""
    guard = Compare(KEYS.owner(TOPIC), CompareTarget.CREATE_REVISION, 0)
    manifest = Manifest(world.metadata, KEYS, TOPIC, world.bucket, guard)
    await manifest.load()
    head = msgspec.structs.replace(manifest.head, change="", next_link=0, deletes_object=None)
    return Snapshot(head, list(manifest.index), 0)


async def lose_metadata(world: World, broker: Broker) -> None:
    """Delete all records of the topic."""
    for key in await world.raw_metadata():
        await world.metadata.delete(key)
    await world.depose()


# -- the manifest from the bucket


@pytest.mark.feature("T18")
async def test_snapshot_and_later_objects_are_the_manifest(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 50)
    await tier.log.delete(P0, [3, 4])
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    await fill(tier.log, 30, partition=2)
    await fill(tier.log, 30)
    await flush(tier)
    head, entries = await world.manifest()
    found = await rebuilt(world)
    assert plain(found.entries) == plain(entries)
    assert [e.sequence for e in found.entries] == list(range(len(entries)))
    assert (found.head.uploaded_frame, found.head.deletes, found.head.reserved) == (
        *(head.uploaded_frame, head.deletes),
        head.reserved,
    )
    assert (found.head.lineage, found.head.durability) == (head.lineage, head.durability)


@pytest.mark.feature("T18")
async def test_without_a_snapshot_the_objects_are_the_manifest(world: World) -> None:
    _, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 50)
    await flush(tier)
    await tier.log.delete(P0, [3])
    await flush(tier)
    await fill(tier.log, 50)
    await flush(tier)
    _, entries = await world.manifest()
    found = await rebuilt(world)
    assert plain(found.entries) == plain(entries)
    assert found.head.uploaded_frame == entries[-1].next_frame


@pytest.mark.feature("T18")
async def test_failed_uploads_and_merged_objects_in_the_bucket_change_nothing(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3)
    for _ in range(3):
        await fill(tier.log, 50)
        steps = broker.use_steps()
        steps.fail = lambda name, key: (
            StoreUnavailable(key, "cannot be read back") if name == "get" else None
        )
        with pytest.raises(StoreUnavailable):
            await tier.upload_round()
        assert "put" in steps.names
        broker.use_steps()
        world.clock.us += 1
        await flush(tier)
        await broker.tiers.upkeep(TOPIC)
    await fill(tier.log, 20)
    await flush(tier)
    _, entries = await world.manifest()
    objects = [info async for info in rebuild.data_objects(world.bucket, TOPIC)]
    assert len(objects) > 3 * len(entries)
    assert plain((await rebuilt(world)).entries) == plain(entries)


@pytest.mark.feature("T18", "T26")
async def test_uncommitted_uploads_of_a_deposed_owner_are_ignored(
    world: World,
) -> None:
    old, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 30)
    await flush(tier)
    await old.tiers.upkeep(TOPIC)
    await fill(tier.log, 60)
    await world.depose()
    new = await world.broker(name="b2", batch_bytes_max=1000)
    after = await new.tier()
    old.metadata.steps.fail = lambda name, key: (
        Crashed("deposed, and does not know") if key == KEYS.manifest(TOPIC) else None
    )
    guard = tier.manifest._guard
    tier.manifest._guard = after.manifest._guard
    with pytest.raises(Crashed):
        await tier.upload_round()
    tier.manifest._guard = guard
    for session in await after.manifest.sessions():
        assert await after.manifest.abandon_session(session, 1 << 62)
    for count in (0, 30, 30):
        await fill(after.log, count)
        await flush(after)
        _, entries = await world.manifest()
        assert len(old.store.puts) > len(entries) // 2
        if count:
            assert plain((await rebuilt(world)).entries) == plain(entries)
        await new.tiers.upkeep(TOPIC)
        _, entries = await world.manifest()
        assert plain((await rebuilt(world)).entries) == plain(entries)


@pytest.mark.feature("T18", "T35")
async def test_a_broker_continues_with_a_rebuilt_manifest(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=4)
    await fill(tier.log, 60)
    await tier.log.delete(P0, [5, 55])
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    await fill(tier.log, 20)
    await flush(tier)
    await fill(tier.log, 10)
    copy = await broker.crash()
    await lose_metadata(world, broker)
    content = await rebuilt(world)
    await install(world, content, replace=False)
    found = await installed(world)
    assert (found.head.deletes, found.entries) == (content.head.deletes, content.entries)
    live = [n for n in range(90) if n not in (5, 55)]
    tier = await (await world.broker(copy)).tier()
    await verify(world, tier, {0: live})
    await flush(tier)
    await verify(world, tier, {0: live})


@pytest.mark.feature("T18")
async def test_a_manifest_of_any_size_is_installed(world: World) -> None:
    many = [entry(PartitionRange(0, n * 10, n * 10 + 10), sequence=n) for n in range(MANY)]
    large = [PartitionRange(p, MANY * 10, 1 << 40) for p in range(10_000)]
    many += [entry(*large, sequence=MANY + n) for n in range(3)]
    head = Head(
        topic=str(TOPIC),
        next_sequence=len(many),
        deletes={p: bytes(200) for p in range(5000)},
        starts=dict.fromkeys(range(10000), 1 << 40),
        transactions={f"app-{n}": (n, dict.fromkeys(range(n), (0, 1 << 40))) for n in range(500)},
    )
    content = Snapshot(head, many, 0)
    await install(world, content, replace=False)
    assert await installed(world) == content


@pytest.mark.feature("T18")
async def test_a_manifest_is_replaced_only_on_request_and_without_a_running_broker(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    before = await world.raw_metadata()
    content = Snapshot(Head(topic=str(TOPIC), next_sequence=1), [entry(PartitionRange(0, 0, 5))], 0)
    with pytest.raises(ManifestExists, match="say --replace"):
        await install(world, content, replace=False)
    with pytest.raises(ManifestExists, match="in use by a broker"):
        await install(world, content, replace=True)
    assert await world.raw_metadata() == before
    await broker.stop()
    await install(world, content, replace=True)
    assert await installed(world) == content


@pytest.mark.feature("T18")
async def test_an_installation_clears_trash_and_upload_records(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3)
    await fill(tier.log, 50)
    await flush(tier)
    old = await rebuilt(world)
    await broker.tiers.upkeep(TOPIC)
    assert [t.object_id for t in await tier.manifest.trash()] != []
    await fill(tier.log, 10)
    broker.use_steps().crash_before = 3
    with pytest.raises(Crashed):
        await tier.upload_round()
    copy = await broker.crash()
    await world.depose()
    await install(world, old, replace=True)
    assert sorted(await world.raw_metadata()) == [
        KEYS.manifest(TOPIC),
        *(KEYS.object(TOPIC, n) for n in range(len(old.entries))),
    ]
    broker = await world.broker(copy)
    tier = await broker.tier()
    world.clock.us += 1 << 50
    await broker.tiers.flush(TOPIC)
    await broker.tiers.upkeep(TOPIC)
    await verify(world, tier, {0: range(60)})


@pytest.mark.feature("T18")
async def test_an_interrupted_installation_leaves_no_manifest_and_can_be_repeated(
    world: World,
) -> None:
    many = [entry(PartitionRange(0, n * 10, n * 10 + 10), sequence=n) for n in range(MANY)]
    content = Snapshot(Head(topic=str(TOPIC), next_sequence=MANY), many, 0)
    other = Snapshot(Head(topic=str(TOPIC), change="old"), many[:3], 0)
    await install(world, other, replace=False)
    for number in range(2, 5):
        metadata = FaultyMetadata(world.metadata)
        metadata.steps.crash_before = number
        with pytest.raises(Crashed):
            await rebuild.install_manifest(
                metadata, KEYS, world.bucket, TOPIC, content, replace=True
            )
        assert await world.metadata.get(KEYS.manifest(TOPIC)) is None
    await install(world, content, replace=False)
    assert await installed(world) == content


async def test_an_object_of_a_later_version_stops_a_rebuild(world: World) -> None:
    _, tier = await started(world)
    await fill(tier.log, 5)
    await flush(tier)
    _, [one] = await world.manifest()
    table = pq.read_table(pa.BufferReader(await world.bucket.get(one.object_id)))
    facts = form.facts_of(pq.read_metadata(pa.BufferReader(await world.bucket.get(one.object_id))))
    later = form.encode_table(table, msgspec.structs.replace(facts, version=2))
    key = one.object_id.replace(".parquet", "2.parquet")
    await world.bucket.put(key, [memoryview(later)])
    with pytest.raises(VersionUnknown):
        await rebuilt(world)


async def test_a_topic_without_a_manifest_has_none(world: World) -> None:
    assert await rebuild.load_manifest(world.metadata, KEYS, TOPIC) == (None, [])
    assert (await rebuilt(world)).entries == []


# -- objects


@pytest.mark.feature("T16", "T33")
async def test_an_object_is_compared_with_its_own_facts_and_its_entry(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 20)
    await flush(tier)
    _, [one] = await world.manifest()
    data = await world.bucket.get(one.object_id)
    facts = form.facts_of(pq.read_metadata(pa.BufferReader(data)))
    good = ObjectReport(one.object_id, len(data), facts, ())
    assert await object_check.check_object(world.bucket, one.object_id) == good
    assert await object_check.check_object(world.bucket, one.object_id, one) == good
    other = msgspec.structs.replace(one, crc32c=one.crc32c ^ 1)
    report = await object_check.check_object(world.bucket, one.object_id, other)
    assert report.problems == ("its bytes are not those the manifest names",)
    await broker.store.damage(one.object_id, lambda d: d[:200] + bytes(60) + d[260:])
    report = await object_check.check_object(world.bucket, one.object_id)
    assert len(report.problems) == 1
    assert report.problems[0].startswith("it cannot be read: ")
    await world.bucket.delete(one.object_id)
    assert await object_check.check_object(world.bucket, one.object_id) == ObjectReport(
        one.object_id, 0, None, ("it is missing",)
    )


@pytest.mark.feature("T33")
@pytest.mark.parametrize(
    ("rows", "ranges", "problems"),
    [
        ([(0, 1), (0, 2)], [PartitionRange(0, 1, 3)], ()),
        (
            [(0, 1), (0, 2)],
            [PartitionRange(0, 1, 2)],
            ("partition 0 has offsets outside its range",),
        ),
        (
            [(0, 1), (3, 2)],
            [PartitionRange(0, 1, 2)],
            ("partition 3 has offsets outside its range",),
        ),
        (
            [(0, 2), (0, 1)],
            [PartitionRange(0, 0, 9)],
            ("partition 0 has offsets out of order or twice",),
        ),
        (
            [(0, 1), (0, 1)],
            [PartitionRange(0, 0, 9)],
            ("partition 0 has offsets out of order or twice",),
        ),
        (
            [(1, 1), (0, 1)],
            [PartitionRange(0, 0, 9), PartitionRange(1, 0, 9)],
            ("its partitions are out of order",),
        ),
        ([(0, 1)], [PartitionRange(0, 1, 2)], ("it has 1 rows and should have 2",)),
    ],
)
async def test_rows_that_contradict_the_facts_of_an_object_are_reported(
    world: World,
    rows: list[tuple[int, int]],
    ranges: list[PartitionRange],
    problems: tuple[str, ...],
) -> None:
    facts = form.ObjectFacts(1, "t", ranges, 2, 0, 0, 1, 0, 1, False)
    columns = list(zip(*rows, strict=True))
    table = pa.table(
        {
            "partition": pa.array(columns[0], pa.int32()),
            "offset": pa.array(columns[1], pa.int64()),
            "timestamp": pa.array([0] * len(rows), pa.timestamp("us", tz="UTC")),
        }
    )
    await world.bucket.put("k", [form.encode_table(table, facts)])
    report = await object_check.check_object(world.bucket, "k")
    assert report.problems == problems


@pytest.mark.feature("T33")
async def test_linked_objects_are_compared_with_their_link(world: World) -> None:
    broker, tier = await started(world)
    await link_fill(world, tier, 1, {0: [6]})
    await flush(tier)
    _, [one] = await world.manifest()
    good = ObjectReport(one.object_id, one.size, None, ())
    assert await object_check.check_object(world.bucket, one.object_id, one) == good
    fewer = msgspec.structs.replace(one, rows=5)
    report = await object_check.check_object(world.bucket, one.object_id, fewer)
    assert report.problems == ("it has 6 rows and should have 5",)
    await broker.store.damage(one.object_id, lambda d: d[:20] + bytes(4) + d[24:])
    report = await object_check.check_object(world.bucket, one.object_id, one)
    assert report.problems[0] == "its bytes are not those the manifest names"


@pytest.mark.feature("T18")
async def test_a_rebuilt_manifest_has_the_links_of_its_snapshot(world: World) -> None:
    broker, tier = await started(world)
    await link_fill(world, tier, 1, {0: [6], 1: [2]})
    await fill(tier.log, 5)
    await flush(tier)
    await broker.tiers.upkeep(TOPIC)
    await fill(tier.log, 5)
    await flush(tier)
    _, entries = await world.manifest()
    found = await rebuild.rebuild_manifest(world.bucket, TOPIC)
    assert [e.ranges for e in found.entries] == [e.ranges for e in entries]
    assert [e.linked for e in found.entries] == [True, True, False, False]
    assert found.head.transactions == {"app": (1, {0: (0, 6), 1: (0, 2)})}


async def test_the_objects_of_a_topic_are_listed_in_the_order_they_were_made(
    world: World,
) -> None:
    broker, tier = await started(world)
    for _ in range(3):
        await fill(tier.log, 5)
        await flush(tier)
        world.clock.us += 10
    await broker.tiers.upkeep(TOPIC)
    await tier.log.purge(P0, Offset(1))
    _, entries = await world.manifest()
    found = [info.key async for info in rebuild.data_objects(world.bucket, TOPIC)]
    assert found == [e.object_id for e in entries]
    assert len(await world.keys()) > len(found)
    assert spans(entries) == [(0, 5), (5, 10), (10, 15)]
