"""Topics of two brokers that share a metadata store and a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.host.child import Child
from penstock.host.clock import Clock
from penstock.host.threads import WorkerThreads
from penstock.log import Logs, LogSettings, SharedLimits
from penstock.metadata import Metadata, MetadataKeys
from penstock.metadata.catalog import Catalog, PageQuery
from penstock.metadata.ownership import Epoch, Ownership, find_owner
from penstock.model import names
from penstock.model.errors import OwnedElsewhere, PenstockError, ResourceUnknown
from penstock.model.names import DEFAULT_NAMESPACE, TopicName
from penstock.model.partition_value import PartitionValue
from penstock.model.resources import TopicSpec
from penstock.model.run import Run
from penstock.objects import MemoryStore, ObjectStore
from penstock.tiers.counters import TierCounters
from penstock.tiers.settings import TierSettings
from penstock.tiers.tier_host import TierHost
from penstock.tiers.tiers import Tiers
from penstock.topics import OpenTopic, TopicHost, Topics
from tests.unit.log.disks import Unsynced

pytestmark = [pytest.mark.feature("F27", "T26"), pytest.mark.asyncio(loop_scope="session")]

ORDERS = TopicSpec(names.topic("orders"))
BY_SUBJECT = TopicSpec(names.topic("by-subject"), partition_column="subject")


@asynccontextmanager
async def serving(
    store: Metadata, root: str, bucket: ObjectStore, directory: Path
) -> AsyncIterator[Topics]:
    """The topics of a broker that is named after its directory."""
    broker, keys, clock = directory.name, MetadataKeys(root), Clock()
    logs = Logs(directory, LogSettings(), SharedLimits(reserve_bytes=4096), Unsynced())

    def lost(topic: TopicName, epoch: Epoch, reason: str) -> None:
        tiers.lost(topic, reason)

    ownership = Ownership(store, keys, broker, f"{broker}:8080", lost)
    threads, child = WorkerThreads(2, "tier"), Child()
    tier_host = TierHost(bucket, TierSettings(), clock, threads, child, TierCounters())
    tiers = Tiers(tier_host, logs, store, keys, ownership, broker)
    host = TopicHost(logs, tiers, store, keys, ownership, bucket, clock)
    topics = Topics(host, retry_seconds=0.0)
    await ownership.start()
    await logs.open()
    try:
        await topics.open()
        yield topics
    finally:
        await tiers.close()
        await logs.close()
        await ownership.close()
        await child.close()
        await threads.close()


@asynccontextmanager
async def two(store: Metadata, root: str, directory: Path) -> AsyncIterator[tuple[Topics, Topics]]:
    bucket = MemoryStore()
    async with (
        serving(store, root, bucket, directory / "one") as one,
        serving(store, root, bucket, directory / "two") as other,
    ):
        yield one, other


async def tried(calls: Sequence[Awaitable[object]]) -> list[str]:
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(a, PenstockError) for a in answers if isinstance(a, BaseException))
    return [type(answer).__name__ for answer in answers]


async def push(opened: OpenTopic, payload: bytes) -> int:
    return (await opened.log.append(Run(b"s", [payload]))).first


async def test_nothing_is_made_twice_and_everything_has_one_owner(
    store: Metadata, root: str, tmp_path: Path
) -> None:
    specs = [TopicSpec(names.topic(f"t{number}")) for number in range(8)]
    async with two(store, root, tmp_path) as (one, other):
        for spec in specs:
            calls = [topics.create_topic(spec) for topics in (one, other, one, other)]
            assert sorted(await tried(calls)) == ["ResourceExists"] * 3 + ["Topic"]
        assert len(one) + len(other) == 8
        catalog = Catalog(store, MetadataKeys(root))
        listed = (await catalog.list_topics(DEFAULT_NAMESPACE, PageQuery())).items
        assert [topic.spec for topic in listed] == specs
        for opened in (*one, *other):
            owner = await find_owner(store, MetadataKeys(root), opened.topic.name)
            assert owner is not None
            assert owner.broker == opened.log.directory.parts[-4]


async def test_a_topic_is_served_by_its_owner_and_taken_over_when_the_owner_is_gone(
    store: Metadata, root: str, tmp_path: Path
) -> None:
    bucket = MemoryStore()
    async with serving(store, root, bucket, tmp_path / "two") as other:
        async with serving(store, root, bucket, tmp_path / "one") as one:
            made = await one.create_topic(ORDERS)
            assert await push(one.get(ORDERS.name), b"first") == 0
            assert await other.get_topic(ORDERS.name) == made
            with pytest.raises(OwnedElsewhere, match="one at one:8080"):
                await other.find(ORDERS.name)
            with pytest.raises(OwnedElsewhere, match="one at one:8080"):
                await other.delete_topic(ORDERS.name)
        opened = await other.find(ORDERS.name)
        assert opened.topic == made
        assert await push(opened, b"second") > 0
        await other.delete_topic(ORDERS.name)
    async with serving(store, root, bucket, tmp_path / "one") as one:
        with pytest.raises(ResourceUnknown):
            await one.find(ORDERS.name)
        await one.create_topic(ORDERS)
        assert await push(one.get(ORDERS.name), b"new") == 0


async def test_makers_and_deleters_that_race_leave_a_whole_topic_or_nothing(
    store: Metadata, root: str, tmp_path: Path
) -> None:
    async with two(store, root, tmp_path) as (one, other):
        for _ in range(10):
            calls: list[Awaitable[object]] = []
            for topics in (one, other):
                calls += [
                    topics.create_topic(ORDERS),
                    topics.delete_topic(ORDERS.name),
                    topics.find(ORDERS.name),
                ]
            await tried(calls)
        for topics in (one, other):
            await tried([topics.delete_topic(ORDERS.name)])
        await one.create_topic(ORDERS)
        assert await push(one.get(ORDERS.name), b"x") == 0
        await one.delete_topic(ORDERS.name)
        left = (await store.range(f"{root}/")).entries
        assert [e.key for e in left if "orders" in e.key] == []


@pytest.mark.feature("F26")
async def test_many_partitions_fit_into_the_store_and_are_read_back(
    store: Metadata, root: str, tmp_path: Path
) -> None:
    values = [PartitionValue("String", f"subject-{number}") for number in range(2500)]
    bucket = MemoryStore()
    async with serving(store, root, bucket, tmp_path / "one") as one:
        await one.create_topic(BY_SUBJECT)
        opened = one.get(BY_SUBJECT.name)
        assert await opened.partitions.ensure(values) == list(range(2500))
    async with serving(store, root, bucket, tmp_path / "one") as one:
        opened = one.get(BY_SUBJECT.name)
        assert list(opened.partitions) == values
        await one.delete_topic(BY_SUBJECT.name)
    assert (await store.range(MetadataKeys(root).partitions(BY_SUBJECT.name))).entries == []
