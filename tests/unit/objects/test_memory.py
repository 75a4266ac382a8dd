import pytest

from penstock.objects import MemoryStore, StoreUnavailable


async def test_a_full_store_refuses_new_objects_until_there_is_room() -> None:
    store = MemoryStore(bytes_max=10)
    await store.put("a", [b"123456"])
    with pytest.raises(StoreUnavailable, match="bytes_max is 10"):
        await store.put("b", [b"12345"])
    await store.put("a", [b"123456"])
    await store.put("c", [b"1234"])
    await store.delete("a")
    await store.put("b", [b"12345"])
    assert [info.key async for info in store.list("")] == ["b", "c"]


async def test_put_copies_its_pieces() -> None:
    store, body = MemoryStore(), bytearray(b"abc")
    await store.put("a", [body])
    body[0] = 0
    assert await store.get("a") == b"abc"


async def test_an_object_deleted_during_a_listing_is_left_out() -> None:
    store = MemoryStore()
    for key in "abc":
        await store.put(key, [b""])
    found = []
    async for info in store.list(""):
        found.append(info.key)
        await store.delete("b")
    assert found == ["a", "c"]


async def test_a_closed_store_holds_nothing() -> None:
    store = MemoryStore(bytes_max=3)
    await store.put("a", [b"123"])
    await store.close()
    await store.put("b", [b"123"])
    assert [info.key async for info in store.list("")] == ["b"]
