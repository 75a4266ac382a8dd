from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.metadata import MetadataUnavailable
from penstock.model.errors import OffsetGone
from penstock.model.resources import Durability
from penstock.model.retention import TopicRetention
from penstock.model.run import Run
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.objects import StoreUnavailable
from penstock.tiers.manifest import snapshot
from penstock.tiers.manifest.manifest import REMOVED_MAX
from penstock.tiers.manifest.stored_manifest import ManifestLimits
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
    indexed,
    payload,
    read_all,
    spans,
    started,
    verify,
)
from tests.log_reader import LogReader

P1 = PartitionId(1)


async def upkeep(broker: Broker, topic: Any = TOPIC) -> None:
    await indexed(broker.tiers[topic].log)
    await broker.tiers.upkeep(topic)


def on(name: str, part: str, error: Exception) -> Callable[[str, str], Exception | None]:
    """Calls of this name fail on keys that have this part."""
    return lambda called, key: error if called == name and part in key else None


# -- merging


@pytest.mark.feature("T12")
async def test_merged_objects_remain_readable_during_their_grace_time(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3, trash_seconds=60)
    await fill(tier.log, 60)
    await flush(tier)
    _, old = await world.manifest()
    assert len(old) > 3
    await upkeep(broker)
    _, [merged] = await world.manifest()
    assert (merged.sequence, merged.ranges, merged.rows) == (0, [PartitionRange(0, 0, 60)], 60)
    assert (merged.first_frame, merged.next_frame) == (old[0].first_frame, old[-1].next_frame)
    assert broker.counters.merges == 1
    await verify(world, tier, {0: range(60)})

    names = {entry.object_id for entry in old}
    assert names < set(await world.keys())
    world.clock.us += 59_999_999
    await upkeep(broker)
    assert names < set(await world.keys())
    world.clock.us += 1
    await upkeep(broker)
    assert not names & set(await world.keys())
    assert await tier.manifest.trash() == []
    await drop_wal(tier)
    await verify(world, tier, {0: range(60)})


@pytest.mark.feature("T12")
async def test_partitions_are_sorted_in_a_merged_object(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3)
    for partition in (2, 0, 2, 1, 0):
        await fill(tier.log, 20, partition)
    await flush(tier)
    await upkeep(broker)
    _, [merged] = await world.manifest()
    rows = [(row["partition"], row["offset"]) for row in await world.rows(merged)]
    assert rows == [(p, n) for p, count in ((0, 40), (1, 20), (2, 40)) for n in range(count)]
    await drop_wal(tier)
    await verify(world, tier, {0: range(40), 1: range(20), 2: range(40)})


@pytest.mark.feature("T12", "T35")
async def test_merging_leaves_out_what_was_deleted_or_purged(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3)
    await fill(tier.log, 40)
    await flush(tier)
    await tier.log.delete(P0, [7, 30])
    await tier.log.purge(P0, Offset(5))
    await upkeep(broker)
    _, [merged] = await world.manifest()
    live = [n for n in range(5, 40) if n not in (7, 30)]
    assert [row["offset"] for row in await world.rows(merged)] == live
    assert merged.ranges == [PartitionRange(0, 0, 40)]
    await drop_wal(tier)
    await verify(world, tier, {0: live})


@pytest.mark.feature("T12")
async def test_objects_are_merged_across_a_recorded_gap(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3)
    await fill(tier.log, 20)
    await tier.log.skip(P0, Offset(50), "mirror")
    await fill(tier.log, 20)
    await flush(tier)
    await upkeep(broker)
    _, [merged] = await world.manifest()
    assert (merged.ranges, merged.rows) == ([PartitionRange(0, 0, 70)], 40)
    await drop_wal(tier)
    await verify(world, tier, {0: [*range(20), *range(50, 70)]})


@pytest.mark.feature("T12", "T16")
@pytest.mark.parametrize("how", ["missing", "damaged", "damaged footer"])
async def test_a_damaged_object_is_never_merged_and_does_not_block_upkeep(
    world: World, how: str
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=2, trash_seconds=0)
    await fill(tier.log, 70)
    await flush(tier)
    _, old = await world.manifest()
    bad = old[2]
    if how == "missing":
        await world.bucket.delete(bad.object_id)
    elif how == "damaged":
        await broker.store.damage(bad.object_id, lambda d: d[:300] + b"?" + d[301:])
    else:
        await broker.store.damage(bad.object_id, lambda d: d[:-30] + b"?" + d[-29:])
    for _ in range(3):
        await upkeep(broker)
    _, entries = await world.manifest()
    assert spans(entries) == [(0, 20), spans([bad])[0], (30, 70)]
    assert await snapshot.newest(world.bucket, TOPIC) is not None
    assert tier.log.files.start(P0) == 0, "one file, which is the last"
    assert await read_all(tier) == filled(range(70))


@pytest.mark.feature("T12", "T16")
async def test_nothing_is_merged_across_a_damaged_object(world: World) -> None:
    broker, tier = await started(world, object_seconds_max=0)
    for partitions in ([0], [1], [0, 1]):
        for partition in partitions:
            await fill(tier.log, 10, partition)
        await flush(tier)
    _, entries = await world.manifest()
    await drop_wal(tier)
    await broker.store.damage(entries[1].object_id, lambda d: d[:100] + b"?" + d[101:])
    world.clock.pass_seconds(10)
    for _ in range(3):
        await upkeep(broker)
    assert await read_all(tier, 10, 1) == filled(range(10, 20), 1)
    assert await read_all(tier) == filled(range(20))
    after = await (await world.broker(await broker.crash())).tier()
    assert await read_all(after, 10, 1) == filled(range(10, 20), 1)


@pytest.mark.feature("T12")
async def test_a_failed_merge_is_repeated(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3)
    await fill(tier.log, 50)
    await flush(tier)
    _, old = await world.manifest()
    out = StoreUnavailable("k", "out")
    broker.store.steps.fail = lambda name, key: out if name == "put" else None
    with pytest.raises(StoreUnavailable):
        await upkeep(broker)
    assert (await world.manifest())[1] == old
    broker.store.steps.fail = lambda name, key: None
    await upkeep(broker)
    assert spans((await world.manifest())[1]) == [(0, 50)]
    await verify(world, tier, {0: range(50)})


@pytest.mark.feature("T12")
async def test_any_number_of_adjacent_objects_is_merged(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1, merge_objects_min=3)
    await fill(tier.log, 150, run=1)
    await flush(tier)
    assert len((await world.manifest())[1]) == 150 > 2 * REMOVED_MAX
    for _ in range(4):
        await upkeep(broker)
    assert len((await world.manifest())[1]) <= 2
    await verify(world, tier, {0: range(150)})


@pytest.mark.feature("T12")
async def test_a_long_run_of_small_uploads_is_rewritten_a_few_times_and_leaves_few_objects(
    world: World,
) -> None:
    broker, tier = await started(world, merge_objects_min=4, object_bytes_max=1 << 20)
    uploaded = most = 0
    for _ in range(150):
        await fill(tier.log, 20, run=20)
        before = broker.counters.upload_bytes
        await flush(tier)
        uploaded += broker.counters.upload_bytes - before
        await upkeep(broker)
        most = max(most, len(tier.manifest.index))
    assert broker.counters.upload_bytes - uploaded <= 4 * uploaded
    assert 4 <= most <= 16
    await verify(world, tier, {0: range(3000)})


# -- WAL files


@pytest.mark.feature("T16", "T20")
async def test_nothing_is_pruned_before_its_object_was_read_back_and_committed(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 500)
    files = sorted(tier.log.directory.glob("*.log"))
    assert len(files) > 3
    for failing in ("put", "get"):
        broker.store.steps.fail = on(failing, "/data-", StoreUnavailable("k", "out"))
        with pytest.raises(StoreUnavailable):
            await tier.upload_round()
        await upkeep(broker)
        assert sorted(tier.log.directory.glob("*.log")) == files
    broker.store.steps.fail = lambda name, key: None
    broker.metadata.steps.fail = on("transaction", "/objects/cur", MetadataUnavailable("out"))
    with pytest.raises(MetadataUnavailable):
        await tier.upload_round()
    await upkeep(broker)
    assert sorted(tier.log.directory.glob("*.log")) == files
    broker.metadata.steps.fail = lambda name, key: None
    while True:
        uploaded = await tier.upload_round()
        await upkeep(broker)
        kept = sorted(tier.log.directory.glob("*.log"))
        first = tier.log.files.all()[0].header.first_frame
        assert first <= tier.uploaded_frame
        await verify(world, tier, {0: range(500)})
        if not uploaded:
            break
    assert len(kept) < len(files)


@pytest.mark.feature("T20")
async def test_uploaded_files_are_retained_for_a_time_and_up_to_a_size(world: World) -> None:
    size = 8 << 10
    broker, tier = await started(world, wal_seconds_min=100, wal_bytes_min=2 * size)
    for _ in range(5):
        await fill(tier.log, 100)
        world.clock.us += 30_000_000
    await flush(tier)
    kept = []
    for _ in range(4):
        await upkeep(broker)
        kept.append(len(tier.log.files.all()))
        world.clock.us += 60_000_000
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[-1]
    assert sum(file.end for file in tier.log.files.all()) >= 2 * size
    await verify(world, tier, {0: range(500)})


@pytest.mark.feature("T20")
async def test_files_with_needed_settlements_are_retained_up_to_a_size(
    world: World,
) -> None:
    broker, tier = await started(world, wal_bytes_max=16 << 10)
    await fill(tier.log, 50)
    await tier.log.settle(b"settled", 1)
    floor = tier.log.state.settle_floor
    assert floor is not None
    await fill(tier.log, 150)
    await flush(tier)
    await upkeep(broker)
    assert tier.log.files.all()[0].header.first_frame <= floor
    await fill(tier.log, 500)
    await flush(tier)
    await upkeep(broker)
    assert tier.log.files.all()[0].header.first_frame > floor
    assert sum(file.end for file in tier.log.files.all()) <= 16 << 10
    await verify(world, tier, {0: range(700)})


# -- the limits of a topic


async def limited(world: World, limits: TopicRetention, **more: Any) -> tuple[Broker, TopicTier]:
    broker = await world.broker(batch_bytes_max=1000, trash_seconds=0, **more)
    return broker, await broker.tier(limits=limits)


@pytest.mark.feature("T20", "T35")
async def test_a_message_limit_applies_to_each_partition_in_every_tier(
    world: World,
) -> None:
    broker, tier = await limited(world, TopicRetention(max_messages=25))
    await fill(tier.log, 300)
    await fill(tier.log, 10, partition=1)
    await tier.log.delete(P0, [299, 290])
    await flush(tier)
    await upkeep(broker)
    await flush(tier)
    live = [n for n in range(273, 299) if n != 290]
    await verify(world, tier, {0: live, 1: range(10)})
    _, entries = await world.manifest()
    assert min(e.end_offset for e in entries if e.ranges[0].partition == 0) >= 273
    assert tier.log.files.start(P0) > 0
    await upkeep(broker)
    data = [key for key in await world.keys() if "/data-" in key]
    assert data == sorted(e.object_id for e in entries)
    reader = LogReader(tier.log, P0, Offset(0), objects=tier.read)
    with pytest.raises(OffsetGone) as caught:
        await anext(reader)
    assert caught.value.earliest == 273


@pytest.mark.feature("T20")
async def test_a_takeover_gap_does_not_count_for_a_message_limit(world: World) -> None:
    broker, tier = await limited(world, TopicRetention(max_messages=25))
    await fill(tier.log, 20)
    await flush(tier)
    await broker.drop()
    await world.depose()
    broker, tier = await limited(world, TopicRetention(max_messages=25))
    first = tier.log.next_offset(P0)
    await fill(tier.log, 3)
    await upkeep(broker)
    await verify(world, tier, {0: [*range(20), *range(first, first + 3)]})


@pytest.mark.feature("T20", "T35")
async def test_a_topic_keeps_messages_up_to_an_age_in_every_tier(world: World) -> None:
    broker, tier = await limited(world, TopicRetention(max_age_seconds=100))
    for _ in range(20):
        await fill(tier.log, 20)
        await fill(tier.log, 1, partition=1)
        world.clock.us += 10_000_000
    await flush(tier)
    await upkeep(broker)
    # 200 seconds have passed, ten of twenty steps are not older than 100.
    await verify(world, tier, {0: range(200, 400), 1: range(10, 20)})
    _, entries = await world.manifest()
    assert min(e.end_offset for e in entries) >= 10
    world.clock.us += 1_000_000_000
    await upkeep(broker)
    await verify(world, tier, {0: [], 1: []})
    assert (await world.manifest())[1] == []
    await fill(tier.log, 5)
    await flush(tier)
    await verify(world, tier, {0: range(400, 405), 1: []})


@pytest.mark.feature("T20", "T35")
@pytest.mark.parametrize("seconds", [float("inf"), 1e308])
async def test_an_age_limit_of_any_size_is_accepted(world: World, seconds: float) -> None:
    broker, tier = await limited(world, TopicRetention(max_age_seconds=seconds))
    await fill(tier.log, 20)
    await flush(tier)
    world.clock.us += 10_000_000_000
    await upkeep(broker)
    await verify(world, tier, {0: range(20)})


@pytest.mark.feature("T20", "T35")
async def test_a_damaged_object_does_not_stop_the_age_limit(world: World) -> None:
    broker = await world.broker()
    tier = await broker.tier(limits=TopicRetention(max_age_seconds=100))
    await fill(tier.log, 10)
    await flush(tier)
    await fill(tier.log, 10)
    world.clock.pass_seconds(50)
    await fill(tier.log, 10)
    await flush(tier)
    await drop_wal(tier)
    _, [_, straddling] = await world.manifest()
    await broker.store.damage(straddling.object_id, lambda d: d[:60] + bytes(40) + d[100:])
    tier.objects._footers.clear()
    world.clock.pass_seconds(70)
    await upkeep(broker)
    assert tier.log.start_offset(P0) == 10
    assert spans((await world.manifest())[1]) == [(10, 30)]
    assert await snapshot.newest(world.bucket, TOPIC) is not None


@pytest.mark.feature("T20", "T35")
async def test_a_bytes_limit_removes_the_oldest_objects(world: World) -> None:
    broker, tier = await limited(world, TopicRetention(max_bytes=20_000))
    await fill(tier.log, 400)
    await flush(tier)
    _, before = await world.manifest()
    await upkeep(broker)
    _, entries = await world.manifest()
    assert entries == before[-len(entries) :]
    assert sum(e.size for e in entries) <= 20_000 < sum(e.size for e in before[-len(entries) - 1 :])
    await verify(world, tier, {0: range(entries[0].start_offset, 400)})


@pytest.mark.feature("T20")
async def test_any_number_of_objects_is_removed_at_once(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1, trash_seconds=0)
    await fill(tier.log, 150, run=1)
    await flush(tier)
    assert len((await world.manifest())[1]) == 150 > 2 * REMOVED_MAX
    await tier.log.purge(P0, Offset(149))
    for _ in range(2):
        await upkeep(broker)
    assert spans((await world.manifest())[1]) == [(149, 150)]
    assert len([key for key in await world.keys() if "/data-" in key]) == 1
    await verify(world, tier, {0: [149]})


@pytest.mark.feature("T03", "T20")
async def test_retention_limits_apply_to_cloud_topics(world: World) -> None:
    broker = await world.broker(batch_bytes_max=1000)
    tier = await broker.tier(limits=TopicRetention(max_messages=5), durability=Durability.CLOUD)
    task = asyncio.gather(*(tier.log.append(Run(b"s", [payload(n)])) for n in range(20)))
    await tier.log.writer.flush()
    await flush(tier)
    await task
    await asyncio.wait_for(upkeep(broker), 30)
    await verify(world, tier, {0: range(15, 20)})
    assert (await world.manifest())[0].starts == {0: 15}


# -- snapshots and trash


@pytest.mark.feature("T18")
async def test_a_snapshot_is_written_when_the_manifest_has_changed(
    world: World,
) -> None:
    broker, tier = await started(world)
    for count in (0, 10, 10):
        await fill(tier.log, count)
        await flush(tier)
        world.clock.us += 1
        await upkeep(broker)
        content = await snapshot.newest(world.bucket, TOPIC)
        assert content is not None
        assert (content.head, content.entries) == await world.manifest()
    before = await world.keys()
    world.clock.us += 1
    await upkeep(broker)
    assert await world.keys() == before


@pytest.mark.feature("T18")
async def test_the_snapshot_after_a_crash_has_the_changes_before_it(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    assert await snapshot.newest(world.bucket, TOPIC) is None
    broker = await world.broker(await broker.crash())
    await broker.tier()
    await upkeep(broker)
    content = await snapshot.newest(world.bucket, TOPIC)
    assert content is not None
    assert (content.head, content.entries) == await world.manifest()


@pytest.mark.feature("T18")
async def test_objects_in_the_newest_snapshot_are_not_deleted(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1000, merge_objects_min=3, trash_seconds=0)
    checked = 0

    async def check(name: str, key: str) -> None:
        nonlocal checked
        if name == "delete" and "/data-" in key:
            content = await snapshot.newest(world.bucket, TOPIC)
            assert content is not None
            assert key not in {entry.object_id for entry in content.entries}
            checked += 1

    broker.store.steps.wait = check
    for _ in range(3):
        await fill(tier.log, 40)
        await flush(tier)
        world.clock.us += 1
        await upkeep(broker)
    assert checked > 8
    await verify(world, tier, {0: range(120)})


@pytest.mark.feature("T35")
async def test_a_snapshot_has_the_deletions_that_are_too_large_for_the_head(
    world: World,
) -> None:
    broker, tier = await started(world, manifest=ManifestLimits(inline_bytes_max=8))
    await fill(tier.log, 30)
    await tier.log.delete(P0, [3, 9])
    await flush(tier)
    await upkeep(broker)
    content = await snapshot.newest(world.bucket, TOPIC)
    assert content is not None
    assert (await world.manifest())[0].deletes_object is not None
    assert (content.head.deletes, content.head.deletes_object) == (tier.log.state.deleted(), None)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(["_apply_limits", "_remove_expired", "_merge", "_prune", "_write_snapshot"]))
def test_the_parts_of_upkeep_may_come_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, light: None, order: list[str]
) -> None:
    async def run() -> None:
        world = World(tmp_path_factory.mktemp("order"))
        await world.open()
        broker, tier = await limited(world, TopicRetention(max_messages=50), merge_objects_min=3)
        await fill(tier.log, 200)
        await flush(tier)
        await indexed(tier.log)
        for name in order:
            await getattr(broker.tiers.maintenance(TOPIC).upkeep, name)()
            start = tier.log.start_offset(P0)
            await verify(world, tier, {0: range(start, 200)})
        assert tier.log.start_offset(P0) == 150
        await world.close()

    asyncio.run(run())


@pytest.mark.feature("T12")
async def test_the_trash_of_an_idle_topic_is_emptied_after_a_restart(world: World) -> None:
    broker, tier = await started(world, trash_seconds=60)
    await fill(tier.log, 10)
    await flush(tier)
    [old] = tier.manifest.index
    await tier.log.purge(P0, Offset(10))
    await broker.tiers.upkeep(TOPIC)
    assert [item.object_id for item in await tier.manifest.trash()] == [old.object_id]
    await broker.stop()
    world.clock.pass_seconds(61)
    again = await world.broker(broker.directory, trash_seconds=60)
    await again.tier()
    await again.tiers.start()
    async with asyncio.timeout(10):
        while old.object_id in await world.keys():
            await asyncio.sleep(0.01)
