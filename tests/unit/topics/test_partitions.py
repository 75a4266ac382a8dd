from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from penstock.metadata import (
    OPERATIONS_MAX,
    Compare,
    CompareTarget,
    MetadataKeys,
    MetadataUnavailable,
    encode_partition,
)
from penstock.metadata.ownership import NotOwner
from penstock.metadata.sqlite import SqliteMetadata
from penstock.model import names
from penstock.model.errors import FormatError, LogClosed, PartitionInvalid
from penstock.model.partition_value import PartitionValue
from penstock.topics.partitions import Partitions
from tests.faults import FaultyMetadata

pytestmark = pytest.mark.feature("F26")

TOPIC = names.topic("regions")
KEYS = MetadataKeys()
OWNED = Compare("/owner", CompareTarget.VALUE, b"us")

Opener = Callable[[], Partitions]


def value(number: int) -> PartitionValue:
    return PartitionValue("Int64", number)


def values(*numbers: int) -> list[PartitionValue]:
    return [value(number) for number in numbers]


@pytest_asyncio.fixture
async def store(tmp_path: Path, light: None) -> AsyncIterator[FaultyMetadata]:
    store = FaultyMetadata(await SqliteMetadata.open(tmp_path))
    await store.put(OWNED.key, b"us")
    yield store
    await store.close()


@pytest.fixture
def partitions(store: FaultyMetadata) -> Partitions:
    return Partitions(store, KEYS, TOPIC, [OWNED], partitioned=True)


async def reloaded(store: FaultyMetadata) -> Partitions:
    partitions = Partitions(store, KEYS, TOPIC, [OWNED], partitioned=True)
    await partitions.load()
    return partitions


async def test_a_topic_without_a_partition_column_has_one_partition(store: FaultyMetadata) -> None:
    partitions = Partitions(store, KEYS, TOPIC, [OWNED], partitioned=False)
    await partitions.load()
    assert await partitions.ensure([None, None]) == [0, 0]
    assert (partitions.find(None), len(partitions), list(partitions)) == (0, 1, [None])
    assert store.transactions == []


async def test_values_get_ids_in_order_and_keep_them(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    assert await partitions.ensure(values(7, 3, 7)) == [0, 1, 0]
    assert await partitions.ensure(values(3, 9, 7)) == [1, 2, 0]
    assert [partitions.find(value(n)) for n in (7, 3, 9, 4)] == [0, 1, 2, None]
    again = await reloaded(store)
    assert list(again) == values(7, 3, 9)
    assert await again.ensure(values(9, 1)) == [2, 3]
    assert again.slice(1, 2) == values(3, 9)


async def test_values_that_are_known_cost_nothing(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    await partitions.ensure(values(1, 2))
    store.cut = True
    assert await partitions.ensure(values(2, 1)) == [1, 0]


async def test_all_new_values_of_a_push_are_one_transaction_while_they_fit(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    await partitions.ensure(values(*range(OPERATIONS_MAX)))
    assert len(store.transactions) == 1
    await partitions.ensure(values(*range(OPERATIONS_MAX + 129)))
    assert len(store.transactions) == 3


async def test_large_values_are_spread_over_transactions(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    large = [PartitionValue("String", f"{number}" + "x" * 60_000) for number in range(40)]
    assert await partitions.ensure(large) == list(range(40))
    assert len(store.transactions) > 1
    assert list(await reloaded(store)) == large


async def test_a_value_that_is_too_large_is_refused_and_leaves_nothing(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    large = PartitionValue("Bytes", bytes(70_000))
    with pytest.raises(PartitionInvalid, match="VALUE_BYTES_MAX is 65536"):
        await partitions.ensure([value(1), large])
    assert list(await reloaded(store)) == []


async def test_more_partitions_than_the_limit_are_refused(store: FaultyMetadata) -> None:
    partitions = Partitions(store, KEYS, TOPIC, [OWNED], partitioned=True, partitions_max=3)
    assert await partitions.ensure(values(1, 2, 3, 3)) == [0, 1, 2, 2]
    with pytest.raises(PartitionInvalid, match="more than 3 partitions, the limit PARTITIONS_MAX"):
        await partitions.ensure(values(4))
    assert await partitions.ensure(values(3)) == [2]


@pytest.mark.parametrize("lost", [1, 2])
async def test_values_whose_answer_was_lost_are_found_and_not_given_again(
    partitions: Partitions, store: FaultyMetadata, lost: int
) -> None:
    store.answers_lost = lost
    for _ in range(lost):
        with pytest.raises(MetadataUnavailable):
            await partitions.ensure(values(*range(300)))
    assert await partitions.ensure(values(5, *range(300), 1000)) == [5, *range(301)]
    assert list(await reloaded(store)) == values(*range(300), 1000)


async def test_values_of_a_late_transaction_keep_their_ids(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    """The caller is cancelled, and the transaction is committed afterwards."""
    await partitions.ensure(values(1))
    store.cut = True
    with pytest.raises(MetadataUnavailable):
        await partitions.ensure(values(2, 3))
    store.cut = False
    await partitions.load()
    for number, late in enumerate(values(2, 3), 1):
        await store.put(KEYS.partition(TOPIC, number), encode_partition(late))
    assert await partitions.ensure(values(3, 4)) == [2, 3]
    assert list(await reloaded(store)) == values(1, 2, 3, 4)


async def test_a_push_that_is_given_up_leaves_no_doubt(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    giving_up = asyncio.create_task(partitions.ensure(values(1, 2)))
    await asyncio.sleep(0)
    giving_up.cancel()
    await asyncio.wait([giving_up])
    assert giving_up.cancelled()
    ids = await partitions.ensure(values(2, 3))
    known = list(await reloaded(store))
    assert [known[number] for number in ids] == values(2, 3)
    assert len(set(known)) == len(known)


async def test_pushes_at_the_same_time_agree(partitions: Partitions, store: FaultyMetadata) -> None:
    batches = [values(*range(start, start + 200)) for start in range(0, 400, 50)]
    given = await asyncio.gather(*map(partitions.ensure, batches))
    known = list(await reloaded(store))
    assert known == list(partitions)
    assert len(set(known)) == len(known) == 550
    assert [[known[number] for number in ids] for ids in given] == batches


async def test_a_lost_record_is_an_error_and_no_id_changes(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    await partitions.ensure(values(1, 2, 3))
    await store.delete(KEYS.partition(TOPIC, 1))
    with pytest.raises(FormatError, match=r"the partition before .*/0000000002 has no record"):
        await reloaded(store)


async def test_a_deposed_owner_makes_no_partition(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    await partitions.ensure(values(1))
    await store.put(OWNED.key, b"them")
    with pytest.raises(NotOwner):
        await partitions.ensure(values(2))
    assert partitions.find(value(2)) is None
    assert list(await reloaded(store)) == values(1)


async def test_no_partition_is_created_once_the_topic_closes(
    partitions: Partitions, store: FaultyMetadata
) -> None:
    await partitions.ensure(values(1))
    partitions.stop()
    with pytest.raises(LogClosed):
        await partitions.ensure(values(2))
    assert await partitions.ensure(values(1)) == [0]
    assert list(await reloaded(store)) == values(1)


async def test_a_reader_of_a_new_value_is_woken_when_its_partition_is_created(
    partitions: Partitions,
) -> None:
    with partitions.arrival(value(2)) as batches, partitions.arrival(value(3)) as other:
        await partitions.ensure(values(1))
        assert not batches.done()
        await partitions.ensure(values(2))
        assert batches.done()
        assert not other.done()
        partitions.stop()
        assert other.done()
    assert len(partitions._waiters) == 0


async def test_ten_thousand_partitions_are_entries_of_a_dictionary_and_nothing_else(
    partitions: Partitions, store: FaultyMetadata, tmp_path: Path
) -> None:
    tasks, files = len(asyncio.all_tasks()), len(list(tmp_path.rglob("*")))
    all_values = values(*range(10_000))
    for start in range(0, 10_000, 1000):
        await partitions.ensure(all_values[start : start + 1000])
    assert len(asyncio.all_tasks()) == tasks
    assert len(list(tmp_path.rglob("*"))) == files
    assert len(store.transactions) <= 10 * (1000 // OPERATIONS_MAX + 1)
    tracemalloc.start()
    try:
        again = await reloaded(store)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(again) == all_values
    assert held < 10_000 * 1000
