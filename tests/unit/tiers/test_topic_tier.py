from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from penstock.metadata import Compare, DeleteKeys, MetadataUnavailable, Put, TransactionResult
from penstock.model.errors import DataDamaged, LogReadOnly
from penstock.model.resources import Durability
from penstock.model.run import ColumnRun, Run
from penstock.model.units import Offset, PartitionId, PartitionRange
from penstock.objects import StoreUnavailable
from penstock.objects.fs import FileStore
from penstock.tiers.manifest.manifest import Deposed
from penstock.tiers.manifest.stored_manifest import ManifestLimits
from penstock.tiers.reading.object_reader import ObjectRowsDamaged
from penstock.tiers.topic_tier import OBJECTS_PER_ROUND, TopicTier
from penstock.tiers.upload.object_builder import ObjectBuilder
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
    indexed,
    payload,
    read_all,
    read_batches,
    spans,
    started,
    verify,
)
from tests.log_reader import LogReader
from tests.unit.formats.contents import HIGH, LOW, NULLABLE
from tests.unit.log.messages import eventually

P1 = PartitionId(1)


# -- objects


@pytest.mark.feature("T12", "T19")
async def test_every_upload_is_a_complete_object_that_other_tools_read(
    world: World, tmp_path: Path
) -> None:
    bucket = world.bucket = FileStore(tmp_path / "bucket")
    _, tier = await started(world)
    for partition in (0, 3, 0, 3):
        await fill(tier.log, 60, partition)
    await flush(tier)
    wanted = [(p, n, payload(n, p)) for p in (0, 3) for n in range(120)]
    _, entries = await world.manifest()
    found = []
    for entry in entries:
        rows = pq.read_table(tmp_path / "bucket" / entry.object_id).to_pylist()
        places = [(row["partition"], row["offset"]) for row in rows]
        assert places == sorted(places)
        found += [(row["partition"], row["offset"], row["payload"]) for row in rows]
    assert sorted(found) == wanted
    with duckdb.connect() as connection:
        everything = f"{tmp_path}/bucket/**/*.parquet"
        asked = 'SELECT partition, "offset", payload FROM read_parquet(?) ORDER BY ALL'
        assert connection.execute(asked, [everything]).fetchall() == wanted
    await verify(world, tier, {0: range(120), 3: range(120)})
    await bucket.close()


@pytest.mark.feature("T19")
async def test_rows_of_a_typed_topic_are_uploaded_and_read_back_in_their_types(
    world: World,
) -> None:
    _, tier = await started(world)
    rows = [LOW, HIGH, (None,) * len(LOW)]
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), NULLABLE, strict=True)]
    batch = pa.record_batch(columns, schema=NULLABLE)
    for _ in range(20):
        await tier.log.append(ColumnRun(batch))
    other = pa.record_batch({"text": pa.array(["a", "b"])})
    await tier.log.append(ColumnRun(other))
    await flush(tier)
    _, entries = await world.manifest()
    assert spans(entries)[-1] == (60, 62), "rows of another schema are in another object"
    assert len({entry.schema_crc32c for entry in entries}) == 2
    await drop_wal(tier)
    found = await read_batches(tier)
    content = [b.content for b in found if isinstance(b.content, pa.RecordBatch)]
    assert pa.Table.from_batches(content[:-1]).equals(pa.Table.from_batches([batch] * 20))
    assert content[-1].equals(other)


@pytest.mark.feature("T12")
async def test_a_round_makes_a_few_objects_of_bounded_size_and_the_next_goes_on(
    world: World,
) -> None:
    _, tier = await started(world, batch_bytes_max=2000)
    await fill(tier.log, 400)
    sizes = []
    while size := await tier.upload_round():
        sizes.append(size)
    _, entries = await world.manifest()
    assert len(entries) == len(sizes) * OBJECTS_PER_ROUND - (-len(entries) % OBJECTS_PER_ROUND)
    assert len(sizes) > 2
    assert max(sizes) <= OBJECTS_PER_ROUND * 2000
    wal_bytes = tier.log.stored_bytes
    assert sum(sizes) == wal_bytes
    assert [e.sequence for e in entries] == list(range(len(entries)))
    await verify(world, tier, {0: range(400)})


@pytest.mark.feature("T12")
async def test_a_frame_larger_than_an_object_may_be_is_an_object_of_its_own(world: World) -> None:
    _, tier = await started(world, batch_bytes_max=500)
    await fill(tier.log, 4, run=2)
    await tier.log.append(Run(b"big", [b"x" * 3000]))
    await fill(tier.log, 2, run=2)
    await flush(tier)
    _, entries = await world.manifest()
    assert (4, 5) in spans(entries)
    assert [row[0] for row in await read_all(tier)] == list(range(7))


@pytest.mark.feature("T12")
async def test_repeated_uploads_never_reuse_an_object_name(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 100)
    for _ in range(5):
        broker.store.steps.fail = lambda name, key: (
            StoreUnavailable(key, "out") if name == "get" else None
        )
        with pytest.raises(StoreUnavailable):
            await tier.upload_round()
    broker.store.steps.fail = lambda name, key: None
    await flush(tier)
    assert len(set(broker.store.puts)) == len(broker.store.puts) > 5
    await verify(world, tier, {0: range(100)})


async def test_a_round_without_new_frames_changes_nothing(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    before, puts = await world.raw_metadata(), list(broker.store.puts)
    assert await tier.upload_round() == 0
    assert (await world.raw_metadata(), broker.store.puts) == (before, puts)


@pytest.mark.feature("T17")
async def test_an_entry_has_the_facts_of_its_stored_object(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    head, [entry] = await world.manifest()
    data = await world.bucket.get(entry.object_id)
    info = await broker.store.head(entry.object_id)
    assert (entry.size, entry.crc32c, entry.etag) == (len(data), crc32c(data), info.etag)
    assert (entry.backend, entry.completed, entry.upload_id) == ("memory", True, None)
    assert (entry.start_offset, entry.end_offset, entry.ranges) == (
        0,
        9,
        [PartitionRange(0, 0, 10)],
    )
    assert (entry.created_at, entry.epoch) == (world.clock.us, head.epoch)
    assert entry.next_frame == head.uploaded_frame == tier.uploaded_frame
    assert entry.next_frame <= tier.collected_frame <= tier.log.writer.durable_number


# -- the steps of an upload


async def test_an_object_is_recorded_put_read_back_and_committed_in_this_order(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    await tier.log.writer.flush()
    steps = broker.use_steps()
    await tier.upload_round()
    assert steps.names == ["transaction", "put", "get", "transaction"]
    assert await tier.manifest.sessions() == []


@pytest.mark.feature("T07", "T12")
async def test_objects_of_a_round_are_put_at_once_and_committed_in_the_order_of_their_frames(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 60)
    gates: dict[str, asyncio.Event] = {}
    seen: list[tuple[str, str]] = []

    async def wait(name: str, key: str) -> None:
        seen.append((name, key))
        if name == "put":
            await gates.setdefault(key, asyncio.Event()).wait()

    broker.use_steps().wait = wait
    before = await world.manifest()
    task = asyncio.create_task(tier.upload_round())
    await eventually(lambda: len(gates) == OBJECTS_PER_ROUND)
    for key in sorted(gates, reverse=True)[:-1]:
        gates[key].set()
    await eventually(lambda: sum(name == "get" for name, _ in seen) == OBJECTS_PER_ROUND - 1)
    assert await world.manifest() == before
    gates[min(gates)].set()
    await task
    _, entries = await world.manifest()
    assert [entry.object_id for entry in entries] == sorted(gates)
    assert [key for name, key in seen if name == "transaction"][-4:] == [KEYS.manifest(TOPIC)] * 4


@pytest.mark.feature("T12")
async def test_a_backlog_becomes_few_large_objects(world: World) -> None:
    _, tier = await started(world, batch_bytes_max=1000, backlog_bytes_max=10_000)
    await fill(tier.log, 600)
    await tier.log.delete(P0, [5, 599])
    await tier.upload_round()
    entries = sorted(tier.manifest.index, key=lambda entry: entry.sequence)
    assert len(entries) == OBJECTS_PER_ROUND
    assert all(one.end_offset + 1 == two.start_offset for one, two in pairwise(entries))
    assert all(one.next_frame == two.first_frame for one, two in pairwise(entries))
    sizes = [entry.end_offset - entry.start_offset for entry in entries]
    assert max(sizes) < 2 * min(sizes)
    await flush(tier)
    assert tier.uploaded_frame == tier.log.writer.durable_number
    await drop_wal(tier)
    assert await read_all(tier) == filled(n for n in range(600) if n not in (5, 599))


@pytest.mark.feature("T12")
async def test_an_unfinished_object_leaves_nothing_and_is_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tier = await started(world, batch_bytes_max=1000, backlog_bytes_max=1 << 20)
    await fill(tier.log, 100)
    add, calls = ObjectBuilder.add, 0

    def third_fails(self: ObjectBuilder, *collected: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("out of reach")
        add(self, *collected)

    monkeypatch.setattr(ObjectBuilder, "add", third_fails)
    with pytest.raises(OSError, match="out of reach"):
        await tier.upload_round()
    assert (len(tier.manifest.index), tier.uploaded_frame, tier.collected_frame) == (0, 0, 0)
    await flush(tier)
    assert len(tier.manifest.index) == 1
    await drop_wal(tier)
    assert await read_all(tier) == filled(range(100))


@pytest.mark.feature("T12")
async def test_objects_of_cloud_topics_remain_small(world: World) -> None:
    broker = await world.broker(batch_bytes_max=1000, backlog_bytes_max=1 << 20)
    tier = await broker.tier(durability=Durability.CLOUD)
    for n in range(60):
        tier.log.append(Run(b"s", [payload(n)]))
        await tier.log.writer.flush()
    await tier.upload_round()
    assert len(tier.manifest.index) == OBJECTS_PER_ROUND


@pytest.mark.feature("T07", "T15")
async def test_a_failed_round_keeps_committed_objects_and_repeats_the_others(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 60)

    def third(name: str, key: str) -> Exception | None:
        keys = sorted(set(broker.store.puts))
        failing = name == "put" and len(keys) == 3 and key == keys[2]
        return StoreUnavailable(key, "out") if failing else None

    broker.store.steps.fail = third
    with pytest.raises(StoreUnavailable):
        await tier.upload_round()
    _, entries = await world.manifest()
    assert len(entries) == 2
    broker.store.steps.fail = lambda name, key: None
    await flush(tier)
    _, more = await world.manifest()
    assert more[:2] == entries
    assert spans(more)[-1][1] == 60
    await verify(world, tier, {0: range(60)})


@pytest.mark.feature("T15")
async def test_errors_of_several_failed_puts_are_all_retrieved(
    world: World,
) -> None:
    broker, tier = await started(world, batch_bytes_max=1000)
    await fill(tier.log, 60)
    here, together = 0, asyncio.Event()

    async def fail(name: str, key: str) -> None:
        nonlocal here
        if name == "put":
            here += 1
            if here == OBJECTS_PER_ROUND:
                together.set()
            await together.wait()
            raise StoreUnavailable(key, "out")

    broker.store.steps.wait = fail
    with pytest.raises(StoreUnavailable):
        await tier.upload_round()
    broker.store.steps.wait = None
    await flush(tier)
    await verify(world, tier, {0: range(60)})


@pytest.mark.feature("T16")
async def test_an_object_that_reads_back_wrong_is_not_committed_but_made_anew(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)

    async def spoil(name: str, key: str) -> None:
        if name == "get":
            broker.store.steps.wait = None
            await broker.store.damage(key, lambda data: data[:-1] + b"?")

    broker.store.steps.wait = spoil
    with pytest.raises(ObjectRowsDamaged, match=r"offsets 0 to 9: it reads back wrong"):
        await tier.upload_round()
    assert (await world.manifest())[1] == []
    assert tier.uploaded_frame == 0
    await flush(tier)
    assert len(set(broker.store.puts)) == 2
    await verify(world, tier, {0: range(10)})


@pytest.mark.feature("T07", "T15", "T17")
async def test_a_commit_that_takes_effect_late_is_not_repeated(world: World) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    late: list[Any] = []

    async def on_its_way(
        compares: Sequence[Compare], changes: Sequence[Put | DeleteKeys]
    ) -> TransactionResult:
        if changes[0].key != KEYS.manifest(TOPIC):
            return await world.metadata.transaction(compares, changes)
        late.append((compares, changes))
        raise MetadataUnavailable("on its way")

    broker.metadata.transaction = on_its_way  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await tier.upload_round()
    del broker.metadata.transaction
    putting, go = asyncio.Event(), asyncio.Event()

    async def wait(name: str, key: str) -> None:
        if name == "put":
            putting.set()
            await go.wait()

    broker.store.steps.wait = wait
    again = asyncio.create_task(tier.upload_round())
    await putting.wait()
    assert (await world.metadata.transaction(*late[0])).succeeded
    with pytest.raises(MetadataUnavailable):
        await tier.reserve(10_000)
    go.set()
    with pytest.raises(MetadataUnavailable):
        await again
    await fill(tier.log, 10)
    await flush(tier)
    assert spans((await world.manifest())[1]) == [(0, 10), (10, 20)]
    await broker.tiers.upkeep(TOPIC)
    await verify(world, tier, {0: range(20)})
    _, entries = await world.manifest()
    kept = {entry.object_id for entry in entries}
    kept |= {item.object_id for item in await tier.manifest.trash()}
    assert {key for key in await world.keys() if "/data-" in key} <= kept


@pytest.mark.feature("T07", "T15")
@pytest.mark.parametrize("carried_out", [False, True], ids=["lost on the way", "answer lost"])
async def test_a_round_with_an_unanswered_commit_is_neither_lost_nor_repeated(
    world: World, carried_out: bool
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 10)
    steps = broker.metadata.steps
    steps.lose = {len(steps.names) + 1: carried_out}
    with pytest.raises(MetadataUnavailable):
        await tier.upload_round()
    assert spans((await world.manifest())[1]) == ([(0, 10)] if carried_out else [])
    await fill(tier.log, 10)
    await flush(tier)
    assert spans((await world.manifest())[1]) == ([(0, 10), (10, 20)] if carried_out else [(0, 20)])
    await verify(world, tier, {0: range(20)})


@pytest.mark.feature("T26")
async def test_a_deposed_owner_commits_nothing_more(world: World) -> None:
    _, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    await fill(tier.log, 10)
    await world.depose()
    before = await world.raw_metadata()
    for _ in range(2):
        with pytest.raises(Deposed):
            await tier.upload_round()
    with pytest.raises(Deposed):
        await tier.remove_entries(list(tier.manifest.index))
    assert await world.raw_metadata() == before


# -- deletions


@pytest.mark.feature("T35")
@pytest.mark.parametrize("inline_bytes_max", [1 << 18, 8], ids=["inline", "in an object"])
async def test_deletions_reach_the_manifest_and_every_reader_of_objects(
    world: World, inline_bytes_max: int
) -> None:
    limits = ManifestLimits(inline_bytes_max=inline_bytes_max)
    broker, tier = await started(world, manifest=limits)
    await fill(tier.log, 50)
    await flush(tier)
    await tier.log.delete(P0, [0, 7, 8, 49])
    await tier.log.purge(P0, Offset(5))
    await flush(tier)
    head = tier.manifest.head
    assert (head.starts, head.deletes) == ({0: 5}, tier.log.state.deleted())
    assert (head.deletes_object is None) == (inline_bytes_max > 8)
    live = [n for n in range(5, 49) if n not in (7, 8)]
    await verify(world, tier, {0: live})
    # Without the WAL, from the manifest alone.
    await broker.drop()
    await world.depose()
    tier = await (await world.broker()).tier()
    await verify(world, tier, {0: live})


@pytest.mark.feature("T35")
async def test_messages_deleted_before_their_upload_are_not_uploaded(world: World) -> None:
    _, tier = await started(world)
    await fill(tier.log, 20)
    await tier.log.delete(P0, [3, 4])
    await tier.log.purge(P0, Offset(2))
    await flush(tier)
    _, [entry] = await world.manifest()
    rows = [row["offset"] for row in await world.rows(entry)]
    assert rows == [2, *range(5, 20)]
    assert entry.ranges == [PartitionRange(0, 0, 20)]


@pytest.mark.feature("T35")
async def test_a_round_with_deletions_alone_changes_the_head_once(world: World) -> None:
    _, tier = await started(world)
    await fill(tier.log, 10)
    await flush(tier)
    await tier.log.delete(P0, [1])
    before = tier.manifest.head
    await tier.upload_round()
    assert tier.manifest.head.deletes == tier.log.state.deleted()
    assert tier.uploaded_frame > before.uploaded_frame
    change = tier.manifest.head.change
    await tier.upload_round()
    assert tier.manifest.head.change == change


# -- reservation


@pytest.mark.feature("T26")
async def test_appends_assign_only_reserved_offsets(world: World) -> None:
    _, tier = await started(world, reserve_offsets=100)
    assert (await world.manifest())[0].reserved == 100
    await fill(tier.log, 100, run=50)
    with pytest.raises(LogReadOnly, match="offsets could not be reserved in the metadata"):
        tier.log.append(Run(b"s", [b"x"]))
    with pytest.raises(LogReadOnly):
        tier.log.append(Run(b"s", [b"x"] * 101, partition=P1))
    await fill(tier.log, 100, partition=1, run=50)
    await tier.reserve()
    assert (await world.manifest())[0].reserved == 200
    await fill(tier.log, 1)
    await verify(world, tier, {0: range(101), 1: range(100)})


@pytest.mark.feature("T26")
async def test_offsets_are_reserved_again_when_half_of_them_are_assigned(world: World) -> None:
    _, tier = await started(world, reserve_offsets=100)
    needs, reserved = [], []
    for _ in range(6):
        needs.append(tier.needs_reservation)
        await tier.reserve()
        reserved.append((await world.manifest())[0].reserved)
        await fill(tier.log, 30, run=30)
    assert needs == [False, False, True, False, True, False]
    assert reserved == [100, 100, 160, 160, 220, 220]


@pytest.mark.feature("T26")
async def test_a_failed_reservation_assigns_no_offsets(world: World) -> None:
    broker, tier = await started(world, reserve_offsets=100)
    await fill(tier.log, 90, run=30)
    broker.metadata.steps.fail = lambda name, key: MetadataUnavailable("out")
    with pytest.raises(MetadataUnavailable):
        await tier.reserve()
    with pytest.raises(LogReadOnly):
        tier.log.append(Run(b"s", [b"x"] * 11))
    broker.metadata.steps.fail = lambda name, key: None
    await tier.reserve()
    await fill(tier.log, 20, run=20)
    assert (await world.manifest())[0].reserved == 190


@pytest.mark.feature("T26")
async def test_a_reservation_and_an_upload_at_the_same_time_do_not_depose_each_other(
    world: World,
) -> None:
    _, tier = await started(world, reserve_offsets=100, batch_bytes_max=500)
    for _ in range(20):
        await fill(tier.log, 40, run=4)
        await asyncio.gather(tier.upload_round(), tier.reserve())
    await flush(tier)
    await verify(world, tier, {0: range(800)})


# -- reading


@pytest.mark.feature("T09")
async def test_pruned_messages_are_read_from_objects_and_others_from_the_wal(
    world: World,
) -> None:
    broker, tier = await started(world)
    await fill(tier.log, 200)
    await flush(tier)
    await fill(tier.log, 50)
    await indexed(tier.log)
    await broker.tiers.upkeep(TOPIC)
    assert 0 < tier.log.files.start(P0) <= 200
    for start in (0, 1, 99, 199, 200, 249):
        assert await read_all(tier, start) == filled(range(start, 250))


async def pruned(world: World, **settings: Any) -> tuple[Broker, TopicTier]:
    """A topic of 100 messages that are only in objects."""
    broker, tier = await started(world, batch_bytes_max=2000, **settings)
    await fill(tier.log, 100)
    await flush(tier)
    await drop_wal(tier)
    return broker, tier


@pytest.mark.feature("T16")
@pytest.mark.parametrize("how", ["missing", "damaged", "short", "another"])
async def test_an_object_that_cannot_be_read_is_reported_by_its_offsets_and_no_others(
    world: World, how: str
) -> None:
    broker, tier = await pruned(world)
    _, entries = await world.manifest()
    bad = entries[1]
    if how == "missing":
        await world.bucket.delete(bad.object_id)
    elif how == "damaged":
        await broker.store.damage(bad.object_id, lambda d: d[:200] + bytes(60) + d[260:])
    elif how == "short":
        await broker.store.damage(bad.object_id, lambda d: d[:-1])
    else:
        await broker.store.damage(bad.object_id, lambda d: d[:-20] + d[-19:] + b"x")
    first, next_ = bad.start_offset, bad.end_offset + 1
    for offset in (first, first + 3, next_ - 1):
        with pytest.raises(DataDamaged) as caught:
            await read_all(tier, offset)
        error = caught.value
        assert (error.topic, error.partition, error.first, error.next) == (
            *(str(TOPIC), 0),
            *(offset, next_),
        )
    assert await read_all(tier, next_) == filled(range(next_, 100))
    reader = LogReader(tier.log, P0, Offset(0), objects=tier.read)
    found = [await anext(reader)]
    while found[-1].next_offset < first:
        found.append(await anext(reader))
    with pytest.raises(DataDamaged) as caught:
        await anext(reader)
    assert found[-1].next_offset == caught.value.first == first


@pytest.mark.feature("T16")
async def test_messages_of_a_damaged_object_are_read_from_the_wal_if_it_has_them(
    world: World,
) -> None:
    _, tier = await started(world)
    await fill(tier.log, 100)
    await flush(tier)
    _, entries = await world.manifest()
    for entry in entries:
        await world.bucket.delete(entry.object_id)
    assert await read_all(tier) == filled(range(100))


@pytest.mark.feature("T04", "T16")
async def test_messages_damaged_in_the_wal_are_read_from_their_object(world: World) -> None:
    _, tier = await started(world)
    await fill(tier.log, 100)
    await flush(tier)
    for path in tier.log.directory.glob("*.log"):
        data = path.read_bytes()
        needle = payload(31)
        if needle in data:
            path.write_bytes(data.replace(needle, needle[:-1] + b"?"))
    assert await read_all(tier) == filled(range(100))
    assert [m.first for m in tier.log.status().missing] != []


@pytest.mark.feature("T04", "T16")
async def test_damage_in_the_wal_before_the_upload_is_reported_as_a_gap(
    world: World,
) -> None:
    _, tier = await started(world)
    await fill(tier.log, 40)
    for path in tier.log.directory.glob("*.log"):
        data = path.read_bytes()
        needle = payload(22)
        path.write_bytes(data.replace(needle, needle[:-1] + b"?"))
    await flush(tier)
    _, entries = await world.manifest()
    assert spans(entries) == [(0, 20), (25, 40)], "never one object across the damage"
    await drop_wal(tier)
    with pytest.raises(DataDamaged) as caught:
        await read_all(tier, 20)
    assert (caught.value.first, caught.value.next) == (20, 25)
    assert await read_all(tier, 25) == filled(range(25, 40))


async def test_an_unavailable_store_is_not_reported_as_damage(world: World) -> None:
    broker, tier = await pruned(world)
    broker.store.steps.fail = lambda name, key: StoreUnavailable(key, "out")
    with pytest.raises(StoreUnavailable):
        await read_all(tier)
    broker.store.steps.fail = lambda name, key: None
    assert await read_all(tier) == filled(range(100))


@pytest.mark.feature("T09", "T12")
async def test_a_reader_continues_when_its_object_is_replaced(world: World) -> None:
    broker, tier = await pruned(world)
    await asyncio.sleep(0)
    merged = False

    async def merge_now(name: str, key: str) -> None:
        nonlocal merged
        if name == "get" and not merged:
            merged = True
            old = list(tier.manifest.index)
            object.__setattr__(broker.host.settings, "merge_objects_min", 2)
            await broker.tiers.upkeep(TOPIC)
            for entry in old:
                await world.bucket.delete(entry.object_id)

    broker.store.steps.wait = merge_now
    assert await read_all(tier) == filled(range(100))
    assert merged
