"""Listings are in key order for every store."""

import asyncio

import pytest

from penstock.objects import ObjectStore

pytestmark = pytest.mark.feature("T13")

# `-` and `.` sort before `/`, which a store made of directories gets wrong.
KEYS = [
    "B",
    "a-b/1",
    "a-c",
    "a.d",
    "a/1",
    "a/2/deep/1",
    "a/2/deep/2",
    "a/3",
    "a/é",
    "a0",
    "aa/1",
    "b/1",
]


@pytest.fixture(params=["asked first", "not asked"])
async def filled(store: ObjectStore, request: pytest.FixtureRequest) -> ObjectStore:
    """A store with all keys, before or after it has probed its backend."""
    if request.param == "asked first":
        await store.enforces_conditions()
    for key in reversed(KEYS):
        await store.put(key, [key.encode()])
    return store


async def listed(store: ObjectStore, prefix: str, after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, after)]


def expected(prefix: str, after: str = "") -> list[str]:
    return [key for key in KEYS if key.startswith(prefix) and key > after]


async def test_a_listing_is_in_key_order_for_any_prefix_and_start(
    filled: ObjectStore,
) -> None:
    assert sorted(KEYS) == KEYS
    for prefix in ("", "a", "a/", "a/2", "a/2/", "a/2/deep/1", "a-", "b/", "c", "a/nothing/"):
        for after in ("", "A", "a", "a-b/1", "a-c", "a.", "a/2", "a/2/deep/1", "a/é", "b/1", "z"):
            assert await listed(filled, prefix, after) == expected(prefix, after), (prefix, after)


async def test_an_empty_store_lists_nothing(store: ObjectStore) -> None:
    assert await listed(store, "") == []
    assert await listed(store, "a/b") == []


async def test_a_listing_continues_after_the_first_page(store: ObjectStore) -> None:
    await store.enforces_conditions()
    keys = [f"many/{n:04}" for n in range(1100)]
    for some in range(0, len(keys), 20):
        await asyncio.gather(*(store.put(key, [b""]) for key in keys[some : some + 20]))
    assert await listed(store, "many/") == keys
    assert await listed(store, "many/", keys[1049]) == keys[1050:]
