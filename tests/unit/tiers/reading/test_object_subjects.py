"""The subject index is correct for messages that are only in objects."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.formats import link_subjects
from penstock.formats import objects as form
from penstock.log.subjects import rebuild
from penstock.model.columns import Columns
from penstock.model.errors import IndexUnavailable
from penstock.model.run import ColumnRun, Run
from penstock.model.subjects import Filter
from penstock.model.units import Offset, PartitionId
from penstock.objects import StoreUnavailable
from penstock.tiers.topic_tier import TopicTier
from tests.broker.storage import (
    P0,
    TOPIC,
    Broker,
    World,
    drop_wal,
    fill,
    flush,
    link_fill,
    read_batches,
    stage,
    started,
)
from tests.unit.log.messages import eventually

PARTITIONS = (0, 1)
FILTERS = (b"s.0", b"s.2", b"s.*", b">", b"none", TOPIC.topic.encode())


async def truth(tier: TopicTier, partition: int) -> list[tuple[int, bytes]]:
    """Offset and subject of every message, by reading them all."""
    found: list[tuple[int, bytes]] = []
    for batch in await read_batches(tier, partition=partition):
        subjects = [TOPIC.topic.encode()] * batch.messages
        if isinstance(batch.content, Columns):
            subjects = batch.content.subjects().to_pylist()
        found += zip(batch.offsets().tolist(), subjects, strict=True)
    return found


async def check(tier: TopicTier) -> None:
    """Every query returns the same as a scan of all messages."""
    index = tier.log.index
    for number in PARTITIONS:
        partition, messages = PartitionId(number), await truth(tier, number)
        for text in FILTERS:
            chosen = Filter.parse(text)
            live = [offset for offset, subject in messages if chosen.matches(subject)]
            assert await index.last(partition, chosen) == (live[-1] if live else None)
            for start in (0, 33, 90):
                later = [offset for offset in live if offset >= start]
                first = await index.next(partition, chosen, Offset(start))
                assert first == (later[0] if later else None)
                stop = Offset(1 << 40)
                assert await index.count(partition, chosen, Offset(start), stop) == len(later)


async def link_subjects_of(
    world: World, tier: TopicTier, epoch: int, subjects: list[bytes | None]
) -> None:
    """Link messages of partition 0 that have these subjects; those of None carry the topic's."""
    column = pa.array([None if s is None else s.decode() for s in subjects], pa.string())
    payloads = pa.array([b"linked"] * len(subjects), pa.binary())
    ref = await stage(world, pa.table({"subject": column, "payload": payloads}))
    told = column.cast(pa.binary()).fill_null(TOPIC.topic.encode())
    await tier.link("subjects", epoch, {P0: [ref]}, link_subjects.encode(told))


async def filled_topic(world: World) -> tuple[Broker, TopicTier]:
    """Raw and linked messages in two partitions, some deleted, all in objects; of the linked ones
    some have subjects of their own.
    """
    broker, tier = await started(world, batch_bytes_max=1500)
    for n in range(4):
        for partition in PARTITIONS:
            await fill(tier.log, 20, partition)
        await link_fill(world, tier, n, {1: [3, 4]})
        await link_subjects_of(world, tier, n, [b"s.0", b"s.2", None, b"s.0", b"x.y", b"s.2"])
    await tier.log.delete(P0, [0, 20, 21, 22, 79])
    await tier.log.purge(PartitionId(1), Offset(6))
    await flush(tier)
    return broker, tier


async def taken_over(world: World, broker: Broker, name: str = "b2") -> tuple[Broker, TopicTier]:
    """Another broker continues without the disk of the first."""
    await broker.drop()
    await world.depose()
    other = await world.broker(name=name)
    return other, await other.tier()


def fetched(broker: Broker) -> int:
    return broker.store.steps.names.count("get")


@pytest.mark.feature("T36", "S03")
async def test_subjects_of_links_are_found_while_only_the_wal_has_them(world: World) -> None:
    world.log_settings = replace(world.log_settings, file_bytes_max=2000)
    broker, tier = await started(world)
    for n in range(12):
        await fill(tier.log, 10)
        await link_subjects_of(world, tier, n, [b"s.0", None, b"x.y", b"s.2"])
    await check(tier)
    again = await world.broker(await broker.crash(), name=broker.name)
    await check(await again.tier())


@pytest.mark.feature("T36")
async def test_a_successor_serves_messages_that_are_only_in_objects(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(rebuild, "SPAN_ROWS", 30)
    broker, _ = await filled_topic(world)
    other, tier = await taken_over(world, broker)
    await check(tier)
    await fill(tier.log, 10)
    await check(tier)
    await tier.log.index.settled()
    await other.stop()
    again = await world.broker(other.directory, name="b2")
    tier = await again.tier()
    calls = fetched(again)
    for text in FILTERS:
        await tier.log.index.last(P0, Filter.parse(text))
    assert fetched(again) == calls, "what was read once is on disk"
    await check(tier)


@pytest.mark.feature("T36")
async def test_a_second_successor_serves_the_messages_of_the_first_one(world: World) -> None:
    broker, _ = await filled_topic(world)
    second, tier = await taken_over(world, broker)
    await fill(tier.log, 30)
    await flush(tier)
    _, tier = await taken_over(world, second, "b3")
    await check(tier)


@pytest.mark.feature("T36")
async def test_pruning_removes_nothing_from_the_subject_index(world: World) -> None:
    world.log_settings = replace(world.log_settings, file_bytes_max=2000)
    broker, tier = await filled_topic(world)
    await drop_wal(tier)
    await check(tier)
    await broker.stop()
    again = await world.broker(broker.directory)
    await check(await again.tier())


@pytest.mark.feature("T36")
async def test_a_damaged_index_is_rebuilt_without_the_wal(world: World) -> None:
    world.log_settings = replace(world.log_settings, file_bytes_max=2000)
    broker, tier = await filled_topic(world)
    await drop_wal(tier)
    await tier.log.index.settled()
    await broker.stop()
    for path in sorted(broker.directory.glob("**/subjects-*.sqlite"))[:2]:
        path.write_bytes(b"no index")
    again = await world.broker(broker.directory)
    await check(await again.tier())


@pytest.mark.feature("T36")
async def test_rows_of_typed_objects_need_no_reading(world: World) -> None:
    broker, tier = await started(world)
    rows = pa.record_batch({"n": pa.array(range(50))})
    await tier.log.append(ColumnRun(rows))
    await flush(tier)
    other, tier = await taken_over(world, broker)
    calls = fetched(other)
    own = Filter.parse(TOPIC.topic.encode())
    assert await tier.log.index.last(P0, own) == 49
    assert fetched(other) == calls
    await check(tier)


async def test_only_the_columns_before_the_payload_are_fetched(world: World) -> None:
    broker, tier = await started(world, batch_bytes_max=1 << 20)
    chance = random.Random(1)
    payloads = [chance.randbytes(5000) for _ in range(40)]
    await tier.log.append(Run([b"s.%d" % n for n in range(20)], payloads[:20]))
    await tier.log.append(Run(b"s.0", payloads[20:]))
    await flush(tier)
    [entry] = tier.manifest.index
    other, _ = await taken_over(world, broker)
    sizes: list[int] = []
    get = other.store.store.get

    async def counting(key: str, start: int = 0, size: int | None = None, **rest: Any) -> bytes:
        data = await get(key, start, size, **rest)
        sizes.append(len(data) if "/data-" in key and size is not None else 0)
        return data

    other.store.store.get = counting  # type: ignore[method-assign]
    log = other.tiers[TOPIC].log
    assert await log.index.last(P0, Filter.parse(b"s.7")) == 7
    assert await log.index.last(P0, Filter.parse(b"s.0")) == 39
    assert sum(sizes) < entry.size // 10


@pytest.mark.feature("T16", "T36")
@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_a_damaged_object_costs_only_its_own_subjects(world: World, how: str) -> None:
    broker, tier = await started(world, batch_bytes_max=1500)
    await fill(tier.log, 60)
    await flush(tier)
    bad = list(tier.manifest.index)[1]
    if how == "missing":
        await world.bucket.delete(bad.object_id)
    else:
        await broker.store.damage(bad.object_id, lambda d: b"PAR1" + bytes(400) + d[404:])
    _, tier = await taken_over(world, broker)
    offsets = [n for n in range(60) if not bad.start_offset <= n <= bad.end_offset]
    found = await tier.log.index.matching(P0, Filter.parse(b"s.*"), Offset(0), 100)
    assert found == offsets


@pytest.mark.feature("T36")
async def test_subject_queries_report_a_missing_index_while_the_bucket_is_unavailable(
    world: World,
) -> None:
    world.log_settings = replace(world.log_settings, index_retry_seconds=0.01)
    broker, _ = await filled_topic(world)
    await broker.drop()
    await world.depose()
    other = await world.broker(name="b2")
    other.store.steps.fail = lambda name, key: StoreUnavailable(key, "out")
    tier = await other.tier()
    with pytest.raises(IndexUnavailable, match="out"):
        await tier.log.index.last(P0, Filter.parse(b"s.0"))
    other.store.steps.fail = lambda name, key: None
    await eventually(lambda: tier.log.index._spans.complete)
    await check(tier)
