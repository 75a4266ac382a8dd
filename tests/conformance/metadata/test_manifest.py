"""A manifest at its largest, in both stores: what fits into one fits into the other."""

from __future__ import annotations

import pytest

from penstock.metadata import Compare, CompareTarget, Metadata, MetadataKeys
from penstock.model.names import TopicName
from penstock.model.units import PartitionRange
from penstock.objects import MemoryStore
from penstock.tiers.manifest.entries import Head, Transactions
from penstock.tiers.manifest.manifest import REMOVED_MAX, Manifest
from penstock.topics.partitions import PARTITIONS_MAX
from tests.broker.storage import entry

TOPIC = TopicName("default", "default", "large")
FAR = 10**12

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.feature("T17", "T25", "F26")
async def test_links_objects_and_deletions_of_all_partitions_fit_and_are_read_back(
    store: Metadata, root: str
) -> None:
    keys, bucket = MetadataKeys(root), MemoryStore()
    epoch = await store.put(keys.owner(TOPIC), b"me")
    guard = Compare(keys.owner(TOPIC), CompareTarget.CREATE_REVISION, epoch)

    async def loaded() -> Manifest:
        manifest = Manifest(store, keys, TOPIC, bucket, guard)
        await manifest.load()
        return manifest

    def head(change: str, next_sequence: int, transactions: Transactions) -> Head:
        return Head(
            topic=str(TOPIC),
            change=change,
            next_sequence=next_sequence,
            starts=dict.fromkeys(range(PARTITIONS_MAX), FAR),
            deletes={partition: bytes(9) for partition in range(PARTITIONS_MAX)},
            transactions=transactions,
        )

    manifest = await loaded()
    spans = [PartitionRange(partition, FAR, FAR + 2) for partition in range(PARTITIONS_MAX)]
    small = [entry(PartitionRange(0, n, n + 1), sequence=n) for n in range(REMOVED_MAX)]
    await manifest.commit(head("small", REMOVED_MAX, {}), small)
    merged = entry(*spans, sequence=0, object_id="merged")
    await manifest.commit(head("merged", REMOVED_MAX, {}), [merged], small)
    ranges = dict.fromkeys(range(10_000), (FAR, FAR + 1))
    told: Transactions = {f"query-{n}": (n, ranges) for n in range(5)}
    next_ = entry(*spans, sequence=REMOVED_MAX, object_id="next")
    await manifest.commit(head("linked", REMOVED_MAX + 1, told), [next_])
    found = await loaded()
    assert list(found.index) == [merged, next_]
    assert found.head == manifest.head
    assert found.head.transactions == told
