import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from opendal import AsyncOperator

from penstock.objects import (
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
    remote,
)
from penstock.objects.calls import CallLimits
from penstock.objects.remote import RemoteStore
from penstock.objects.transfer import TransferLimits, pieces_md5


class Told(NamedTuple):
    """The metadata of an object."""

    content_length: int
    content_md5: str | None = None
    etag: str | None = None


def make_store(transfer: TransferLimits | None = None, backend: str = "memory") -> RemoteStore:
    return RemoteStore(backend, AsyncOperator("memory"), CallLimits(), transfer or TransferLimits())


def listing(*keys: str) -> object:
    async def listed(prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        for key in keys:
            yield ObjectInfo(key, 0, None)

    return listed


@pytest.mark.feature("T14")
async def test_uploads_keep_the_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def wait(self: object, size_bytes: int) -> None:
        waited.append(size_bytes)

    monkeypatch.setattr("penstock.objects.transfer.Bandwidth.wait", wait)
    store = make_store(TransferLimits(bytes_per_second=1000))
    await store.put("a", [b"x" * 300, b"y" * 700])
    await store.get("a")
    assert waited == [1000]


async def test_a_listing_out_of_order_is_an_error_if_the_store_should_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make_store()
    assert await store.enforces_conditions()
    store._in_order = True
    monkeypatch.setattr(store, "_listed", listing("a", "c", "b"))
    infos = store.list("")
    assert [(await anext(infos)).key, (await anext(infos)).key] == ["a", "c"]
    with pytest.raises(ObjectStoreError, match="did not list in key order"):
        await anext(infos)


async def test_listings_out_of_order_are_sorted_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make_store()
    monkeypatch.setattr(store, "_listed", listing("b", "c", "a"))
    assert [info.key async for info in store.list("", "a")] == ["b", "c"]
    monkeypatch.setattr(remote, "LISTED_MAX", 2)
    with pytest.raises(ObjectStoreError, match="over LISTED_MAX, 2 objects"):
        _ = [info async for info in store.list("")]


async def test_a_write_that_never_succeeds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store()

    async def refuse(key: str, pieces: object, size: int) -> bool:
        return False

    monkeypatch.setattr(store, "_write", refuse)
    with pytest.raises(StoreUnavailable, match="not written in 3 attempts"):
        await store.put("a", [b"x"])


async def test_a_stored_object_with_fewer_bytes_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make_store()
    await store.enforces_conditions()

    async def stat(key: str) -> Told:
        return Told(1)

    monkeypatch.setattr(store, "_stat", stat)
    with pytest.raises(ObjectStoreError, match="2 bytes were written, 1 are there"):
        await store.put("a", [b"xy"])


@pytest.mark.feature("T16")
async def test_an_object_with_another_md5_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make_store(backend="gcs")
    await store.enforces_conditions()
    bodies = [b"zy", None, b"xy"]

    async def stat(key: str) -> Told:
        body = bodies.pop(0)
        if body is None:
            raise ObjectMissing(key)
        return Told(2, pieces_md5([body]))

    monkeypatch.setattr(store, "_stat", stat)
    assert await store.put("a", [b"x", b"y"]) == ObjectInfo("a", 2, None)
    assert bodies == []


async def test_without_conditions_a_taken_name_is_seen_by_looking_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = make_store()
    store._conditions = False
    await store.put("a", [b"x"])
    monkeypatch.setattr(store, "_write", None)
    assert (await store.put("a", [b"x"])).size_bytes == 1
    with pytest.raises(ObjectExists):
        await store.put("a", [b"y"])


async def test_a_large_read_is_made_of_ranges_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "READ_BYTES", 3)
    store = make_store(TransferLimits(parts_in_flight=2))
    await store.put("a", [b"0123456789abcdef"])
    assert await store.get("a") == b"0123456789abcdef"
    assert await store.get("a", 1, 13) == b"123456789abcd"
    with pytest.raises(ObjectStoreError):
        await store.get("a", 0, 17)


async def test_a_closed_store_refuses_calls() -> None:
    store = make_store()
    await store.close()
    for call in (store.put("a", [b""]), store.get("a", 0, 1), store.head("a"), store.delete("a")):
        with pytest.raises(ObjectStoreError, match="the store is closed"):
            await call
    with pytest.raises(ObjectStoreError, match="the store is closed"):
        await store.enforces_conditions()


async def test_cancelling_a_read_cancels_its_ranges() -> None:
    store = make_store(TransferLimits(bytes_per_second=1))
    put = asyncio.create_task(store.put("a", [b"x" * 1000]))
    await asyncio.sleep(0.01)
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert [info async for info in store.list("")] == []


async def test_a_store_shows_where_it_is_and_what_it_is() -> None:
    store = make_store()
    assert store.backend == "memory"
    assert repr(store).startswith('RemoteStore(AsyncOperator("memory"')
