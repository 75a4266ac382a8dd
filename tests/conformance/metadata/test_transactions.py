"""Transactions, on every store: all or nothing, on comparisons, one revision each."""

import asyncio

import pytest

from penstock.metadata import (
    OPERATIONS_MAX,
    Compare,
    CompareTarget,
    DeleteKeys,
    LeaseExpired,
    LeaseId,
    Metadata,
    MetadataEntry,
    MetadataRefused,
    Put,
    TransactionResult,
)

pytestmark = [pytest.mark.feature("T25"), pytest.mark.asyncio(loop_scope="session")]

NO_LEASE = LeaseId(7)


async def test_changes_are_made_together_under_one_revision(store: Metadata, root: str) -> None:
    before = await store.put(f"{root}/old", b"")
    changes: list[Put | DeleteKeys] = [
        Put(f"{root}/a", b"1"),
        Put(f"{root}/b", b"2"),
        DeleteKeys(f"{root}/old"),
    ]
    outcome = await store.transaction([], changes)
    assert outcome == TransactionResult(True, outcome.revision)
    assert outcome.revision > before
    at = outcome.revision
    assert (await store.range(f"{root}/")).entries == [
        MetadataEntry(f"{root}/a", b"1", at, at, 1, None),
        MetadataEntry(f"{root}/b", b"2", at, at, 1, None),
    ]


async def test_a_comparison_that_does_not_hold_stops_every_change(
    store: Metadata, root: str
) -> None:
    at = await store.put(f"{root}/a", b"1")
    holds = Compare(f"{root}/a", CompareTarget.VALUE, b"1")
    fails = Compare(f"{root}/a", CompareTarget.VERSION, 2)
    changes: list[Put | DeleteKeys] = [Put(f"{root}/b", b""), DeleteKeys(f"{root}/a")]
    assert await store.transaction([holds, fails], changes) == TransactionResult(False, at)
    assert (await store.range(f"{root}/")).entries == [
        MetadataEntry(f"{root}/a", b"1", at, at, 1, None)
    ]


async def test_every_target_compares_what_it_says(store: Metadata, root: str) -> None:
    key = f"{root}/a"
    made = await store.put(key, b"1")
    changed = await store.put(key, b"2")
    true: dict[CompareTarget, bytes | int] = {
        CompareTarget.VALUE: b"2",
        CompareTarget.VERSION: 2,
        CompareTarget.CREATE_REVISION: made,
        CompareTarget.MOD_REVISION: changed,
    }
    false: dict[CompareTarget, list[bytes | int]] = {
        CompareTarget.VALUE: [b"", b"1", b"22"],
        CompareTarget.VERSION: [0, 1, 3],
        CompareTarget.CREATE_REVISION: [0, changed],
        CompareTarget.MOD_REVISION: [0, made],
    }
    assert set(true) == set(false) == set(CompareTarget)
    for target, equals in true.items():
        assert (await store.transaction([Compare(key, target, equals)], [])).succeeded
    for target, values in false.items():
        for equals in values:
            assert not (await store.transaction([Compare(key, target, equals)], [])).succeeded


async def test_zero_means_there_is_no_such_key_and_no_value_does(
    store: Metadata, root: str
) -> None:
    key = f"{root}/a"
    for target in (
        CompareTarget.VERSION,
        CompareTarget.CREATE_REVISION,
        CompareTarget.MOD_REVISION,
    ):
        assert (await store.transaction([Compare(key, target, 0)], [])).succeeded
        assert not (await store.transaction([Compare(key, target, 1)], [])).succeeded
    assert not (await store.transaction([Compare(key, CompareTarget.VALUE, b"")], [])).succeeded


async def test_only_the_first_of_two_creations_succeeds(store: Metadata, root: str) -> None:
    absent = Compare(f"{root}/a", CompareTarget.CREATE_REVISION, 0)
    first = await store.transaction([absent], [Put(f"{root}/a", b"first")])
    second = await store.transaction([absent], [Put(f"{root}/a", b"second")])
    assert (first.succeeded, second) == (True, TransactionResult(False, first.revision))
    entry = await store.get(f"{root}/a")
    assert entry is not None
    assert (entry.value, entry.create_revision) == (b"first", first.revision)


async def test_a_transaction_that_changes_nothing_has_no_revision_of_its_own(
    store: Metadata, root: str
) -> None:
    at = await store.put(f"{root}/a", b"")
    assert await store.transaction([], []) == TransactionResult(True, at)
    assert await store.transaction([], [DeleteKeys(f"{root}/b")]) == TransactionResult(True, at)


async def test_a_prefix_is_deleted_without_its_neighbours(store: Metadata, root: str) -> None:
    for name in ("/a", "/a/1", "/a/2", "/a0", "/b"):
        await store.put(root + name, b"")
    await store.transaction([], [DeleteKeys(f"{root}/a/", prefix=True), Put(f"{root}/c", b"")])
    entries = (await store.range(root)).entries
    assert [entry.key.removeprefix(root) for entry in entries] == ["/a", "/a0", "/b", "/c"]


@pytest.mark.parametrize(
    "changes",
    [
        [Put("/x", b"1"), Put("/x", b"2")],
        [Put("/x", b"1"), DeleteKeys("/x")],
        [DeleteKeys("/x"), Put("/x", b"1")],
        [DeleteKeys("/", prefix=True), Put("/x", b"1")],
        [DeleteKeys("", prefix=True)],
        [Put("", b"1")],
        [Put("\udfff", b"1")],
        [Put(f"/{number}", b"") for number in range(OPERATIONS_MAX + 1)],
    ],
)
async def test_what_one_store_would_refuse_both_refuse(
    store: Metadata, root: str, changes: list[Put | DeleteKeys]
) -> None:
    await store.put(f"{root}/a", b"")
    with pytest.raises(MetadataRefused):
        await store.transaction([], changes)
    assert await store.get(f"{root}/a") is not None


async def test_the_largest_transaction_is_carried_out(store: Metadata, root: str) -> None:
    compares = [
        Compare(f"{root}/{number}", CompareTarget.VERSION, 0) for number in range(OPERATIONS_MAX)
    ]
    changes = [Put(f"{root}/{number}", bytes(9000)) for number in range(OPERATIONS_MAX)]
    assert (await store.transaction(compares, changes)).succeeded
    assert len((await store.range(f"{root}/")).entries) == OPERATIONS_MAX
    with pytest.raises(MetadataRefused):
        await store.transaction([*compares, compares[0]], [])


async def test_a_value_is_compared_with_bytes_and_a_number_with_a_number(
    store: Metadata, root: str
) -> None:
    for target, equals in ((CompareTarget.VALUE, 1), (CompareTarget.VERSION, b"1")):
        with pytest.raises(MetadataRefused):
            await store.transaction([Compare(f"{root}/a", target, equals)], [])


async def test_a_lease_must_exist_only_if_the_comparisons_hold(store: Metadata, root: str) -> None:
    change = Put(f"{root}/a", b"", NO_LEASE)
    present = Compare(f"{root}/a", CompareTarget.VERSION, 1)
    absent = Compare(f"{root}/a", CompareTarget.VERSION, 0)
    assert not (await store.transaction([present], [change])).succeeded
    with pytest.raises(LeaseExpired):
        await store.transaction([absent], [Put(f"{root}/b", b""), change])
    assert (await store.range(f"{root}/")).entries == []


async def test_a_hundred_parallel_increments_lose_none(store: Metadata, root: str) -> None:
    key = f"{root}/counter"
    await store.put(key, b"0")

    async def increment() -> None:
        while True:
            entry = await store.get(key)
            assert entry is not None
            unchanged = Compare(key, CompareTarget.MOD_REVISION, entry.mod_revision)
            more = Put(key, b"%d" % (int(entry.value) + 1))
            if (await store.transaction([unchanged], [more])).succeeded:
                return

    await asyncio.gather(*(increment() for _ in range(100)))
    entry = await store.get(key)
    assert entry is not None
    assert (entry.value, entry.version) == (b"100", 101)


async def test_one_that_fails_does_not_disturb_those_beside_it(store: Metadata, root: str) -> None:
    never = Compare(f"{root}/none", CompareTarget.VERSION, 1)

    async def one(number: int) -> bool:
        change = Put(f"{root}/{number:03d}", b"", NO_LEASE if number % 3 == 2 else None)
        try:
            outcome = await store.transaction([never] if number % 3 == 1 else [], [change])
        except LeaseExpired:
            return False
        return outcome.succeeded

    outcomes = await asyncio.gather(*(one(number) for number in range(300)))
    assert list(outcomes) == [number % 3 == 0 for number in range(300)]
    entries = (await store.range(f"{root}/")).entries
    assert [entry.key for entry in entries] == [f"{root}/{n:03d}" for n in range(0, 300, 3)]
    assert len({entry.create_revision for entry in entries}) == 100
