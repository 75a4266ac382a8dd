"""The contract of every object store."""

import pytest
from crc32c import crc32c

from penstock.objects import (
    Buffer,
    ObjectDamaged,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
)

pytestmark = pytest.mark.feature("T13")

KEY = "topics/default/default/orders/data-1.parquet"
BODY = bytes(range(256)) * 40


async def test_get_returns_what_was_put(store: ObjectStore) -> None:
    info = await store.put(KEY, [BODY])
    assert (info.key, info.size_bytes) == (KEY, len(BODY))
    assert await store.get(KEY) == BODY
    assert await store.head(KEY) == info


async def test_pieces_are_joined_whatever_their_type(store: ObjectStore) -> None:
    pieces: list[Buffer] = [b"one", bytearray(b"two"), memoryview(b"xthree")[1:], b""]
    assert (await store.put(KEY, pieces)).size_bytes == 11
    assert await store.get(KEY) == b"onetwothree"


@pytest.mark.parametrize("pieces", [[], [b""]], ids=["none", "empty"])
async def test_an_empty_object_is_an_object(store: ObjectStore, pieces: list[bytes]) -> None:
    assert (await store.put(KEY, pieces)).size_bytes == 0
    assert await store.get(KEY) == b""
    assert await store.get(KEY, 0, 0) == b""
    assert [info.key async for info in store.list("")] == [KEY]


@pytest.mark.parametrize(
    ("start", "size"), [(0, 1), (0, 10240), (1, 3), (10239, 1), (100, None), (10240, None), (5, 0)]
)
async def test_get_returns_exactly_the_requested_range(
    store: ObjectStore, start: int, size: int | None
) -> None:
    await store.put(KEY, [BODY])
    stop = len(BODY) if size is None else start + size
    assert await store.get(KEY, start, size) == BODY[start:stop]


@pytest.mark.parametrize(("start", "size"), [(0, 10241), (10239, 2), (10240, 1), (10241, None)])
async def test_a_range_past_the_end_is_an_error(
    store: ObjectStore, start: int, size: int | None
) -> None:
    await store.put(KEY, [BODY])
    with pytest.raises(ObjectStoreError) as error:
        await store.get(KEY, start, size)
    assert type(error.value) is ObjectStoreError
    assert error.value.key == KEY


@pytest.mark.feature("T16")
async def test_bytes_with_another_checksum_than_known_are_not_returned(store: ObjectStore) -> None:
    await store.put(KEY, [BODY])
    assert await store.get(KEY, crc32c=crc32c(BODY)) == BODY
    assert await store.get(KEY, 3, 7, crc32c=crc32c(BODY[3:10])) == BODY[3:10]
    with pytest.raises(ObjectDamaged) as error:
        await store.get(KEY, crc32c=1)
    assert (error.value.crc32c, error.value.crc32c_found) == (1, crc32c(BODY))


async def test_a_missing_object_is_an_error(store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing):
        await store.get(KEY)
    with pytest.raises(ObjectMissing):
        await store.get(KEY, 1, 2)
    with pytest.raises(ObjectMissing):
        await store.get(KEY, 0, 0)
    with pytest.raises(ObjectMissing):
        await store.head(KEY)


async def test_writing_the_same_bytes_again_succeeds(store: ObjectStore) -> None:
    first = await store.put(KEY, [BODY])
    again = await store.put(KEY, [BODY[:100], BODY[100:]])
    assert again == first
    assert await store.get(KEY) == BODY


@pytest.mark.parametrize("other", [BODY[:-1] + b"x", BODY + b"x", b""])
async def test_an_object_is_never_replaced_by_other_bytes(store: ObjectStore, other: bytes) -> None:
    await store.put(KEY, [BODY])
    with pytest.raises(ObjectExists):
        await store.put(KEY, [other])
    assert await store.get(KEY) == BODY


async def test_a_deleted_object_is_missing_and_deleting_it_again_succeeds(
    store: ObjectStore,
) -> None:
    await store.put(KEY, [BODY])
    await store.delete(KEY)
    with pytest.raises(ObjectMissing):
        await store.get(KEY)
    assert [info async for info in store.list("")] == []
    await store.delete(KEY)
    await store.delete("never/was/here")


async def test_a_name_that_was_freed_can_be_used(store: ObjectStore) -> None:
    await store.put(KEY, [BODY])
    await store.delete(KEY)
    await store.put(KEY, [b"other"])
    assert await store.get(KEY) == b"other"


async def test_a_store_without_unfinished_uploads_aborts_none(
    store: ObjectStore,
) -> None:
    await store.put(KEY, [BODY])
    assert await store.abort_uploads("topics/") == 0
    assert await store.get(KEY) == BODY


async def test_listings_and_head_return_equal_facts(store: ObjectStore) -> None:
    infos = [await store.put(f"a/{n}", [b"x" * n]) for n in range(3)]
    assert [info async for info in store.list("a/")] == infos
    assert [await store.head(f"a/{n}") for n in range(3)] == infos
    assert all(type(info) is ObjectInfo for info in infos)
