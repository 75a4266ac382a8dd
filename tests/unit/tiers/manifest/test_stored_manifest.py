from __future__ import annotations

import pytest

from penstock.metadata import Put, read_all
from penstock.model.units import PartitionRange
from penstock.tiers.manifest import entries as forms
from penstock.tiers.manifest import stored_manifest as stored
from penstock.tiers.manifest.entries import Head, LinkRecord, Transactions
from penstock.tiers.manifest.stored_manifest import LinkRecords, ManifestLimits, deletes_fit
from tests.broker.storage import KEYS, TOPIC, World

OLD = LinkRecord(0, "a", 1, [PartitionRange(0, 2, 5)])
OTHER = LinkRecord(1, "b", 7, [])
NEW = LinkRecord(2, "a", 2, [PartitionRange(0, 5, 6), PartitionRange(3, 0, 9)])


def test_the_last_record_of_an_application_is_valid_and_later_numbers_are_ignored() -> None:
    records = LinkRecords.of([OLD, OTHER, NEW, LinkRecord(3, "a", 9, [])], next_number=3)
    assert records.transactions == {"b": (7, {}), "a": (2, {0: (5, 6), 3: (0, 9)})}
    assert list(records.transactions) == ["b", "a"], "the newest is the last"
    assert (records.numbers, records.unused) == ({"b": 1, "a": 2}, [0])


def test_only_changed_link_records_are_written_and_superseded_ones_are_unused() -> None:
    records = LinkRecords.of([OLD, OTHER], next_number=2)
    wanted: Transactions = {"c": (4, {}), "a": (2, {0: (5, 6), 3: (0, 9)})}
    after, new = records.updated(wanted)
    assert new == [LinkRecord(2, "c", 4, []), LinkRecord(3, "a", 2, NEW.ranges)]
    assert (after.next_number, after.transactions) == (4, wanted)
    assert (after.numbers, after.unused) == ({"c": 2, "a": 3}, [0, 1])
    assert after.updated(dict(wanted)) == (after, [])
    assert records == LinkRecords.of([OLD, OTHER], next_number=2), "it is as it was"


def test_unchanged_transactions_need_no_records() -> None:
    records = LinkRecords.of([OLD, OTHER, NEW], next_number=3)
    same, new = records.updated(records.transactions)
    assert same is records
    assert new == []


def test_delete_vectors_fit_into_the_head_if_starts_leave_room() -> None:
    vectors = {p: bytes(100) for p in range(1000)}
    starts = dict.fromkeys(range(20_000), 1 << 40)
    assert deletes_fit(Head(deletes=vectors))
    assert not deletes_fit(Head(deletes=vectors, starts=starts))
    assert deletes_fit(Head(starts=starts))
    assert not deletes_fit(Head(deletes={0: bytes(ManifestLimits().inline_bytes_max)}))
    for head in (Head(deletes=vectors), Head(starts=starts)):
        assert len(forms.encode_record(head)) < 2 * ManifestLimits().inline_bytes_max


async def test_a_missing_manifest_has_no_head(world: World) -> None:
    found = await stored.read_manifest(world.metadata, KEYS, TOPIC)
    assert found == (None, 0, [], LinkRecords())


async def test_links_are_read_with_the_head_however_many_there_are(world: World) -> None:
    many = [LinkRecord(n, f"app-{n}", n, [PartitionRange(0, n, n + 1)]) for n in range(1500)]
    puts = [Put(KEYS.link(TOPIC, record.number), forms.encode_record(record)) for record in many]
    for start in range(0, len(puts), 100):
        await world.metadata.transaction([], puts[start : start + 100])
    await world.metadata.put(KEYS.manifest(TOPIC), forms.encode_record(Head(next_link=1200)))
    found = await stored.read_manifest(world.metadata, KEYS, TOPIC)
    assert found.head is not None
    assert found.head.transactions == {f"app-{n}": (n, {0: (n, n + 1)}) for n in range(1200)}
    assert len(await read_all(world.metadata, KEYS.links(TOPIC))) == 1500


@pytest.mark.parametrize("count", [1, 3])
async def test_delete_vectors_are_read_back_from_the_bucket(world: World, count: int) -> None:
    vectors = {p: bytes([p]) * 9 for p in range(count)}
    head = await stored.put_deletes(world.bucket, TOPIC, Head(change="x", deletes=vectors))
    assert head == Head(change="x", deletes_object="topics/default/default/t/deletes-x.msgpack")
    assert head.deletes_object is not None
    assert await stored.get_deletes(world.bucket, head.deletes_object) == vectors
