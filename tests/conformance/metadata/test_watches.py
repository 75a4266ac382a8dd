"""Watches, on every store: every change once, in order, from any revision that is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from penstock.metadata import (
    DeleteKeys,
    HistoryCompacted,
    KeyChange,
    Metadata,
    MetadataUnavailable,
    Put,
    Revision,
)
from tests.conformance.metadata.watching import watch, watched

pytestmark = [pytest.mark.feature("T25"), pytest.mark.asyncio(loop_scope="session")]


async def test_a_watch_sees_what_happened_since_its_revision(store: Metadata, root: str) -> None:
    since = await store.put(f"{root}/a", b"before")
    one = await store.put(f"{root}/a", b"1")
    two = await store.put(f"{root}/b", b"")
    await store.delete(f"{root}/a")
    last = await store.put(f"{root}/c", b"3")
    assert await watched(store, f"{root}/", since, 4) == [
        KeyChange(f"{root}/a", b"1", one),
        KeyChange(f"{root}/b", b"", two),
        KeyChange(f"{root}/a", None, Revision(two + 1)),
        KeyChange(f"{root}/c", b"3", last),
    ]


async def test_a_watch_sees_what_happens_while_it_runs(store: Metadata, root: str) -> None:
    since = (await store.range(root)).revision
    async with aclosing(watch(store, f"{root}/", since)) as lists:
        for number in range(5):
            at = await store.put(f"{root}/a", b"%d" % number)
            assert await anext(lists) == [KeyChange(f"{root}/a", b"%d" % number, at)]


async def test_changes_of_one_transaction_come_together(store: Metadata, root: str) -> None:
    since = await store.put(f"{root}/a", b"")
    changes: list[Put | DeleteKeys] = [
        Put(f"{root}/b", b""),
        DeleteKeys(f"{root}/a"),
        Put(f"{root}/c", b""),
    ]
    at = (await store.transaction([], changes)).revision
    async with aclosing(watch(store, f"{root}/", since)) as lists:
        assert await anext(lists) == [
            KeyChange(f"{root}/b", b"", at),
            KeyChange(f"{root}/a", None, at),
            KeyChange(f"{root}/c", b"", at),
        ]


async def test_a_watch_returns_no_changes_of_other_prefixes(store: Metadata, root: str) -> None:
    since = (await store.range(root)).revision
    await store.put(f"{root}/b", b"")
    await store.put(f"{root}/a/1", b"")
    await store.put(f"{root}/a", b"")
    at = await store.put(f"{root}/a/2", b"")
    assert await watched(store, f"{root}/a/", since, 2) == [
        KeyChange(f"{root}/a/1", b"", Revision(at - 2)),
        KeyChange(f"{root}/a/2", b"", at),
    ]


async def test_a_watch_resumes_where_another_ended(store: Metadata, root: str) -> None:
    since = (await store.range(root)).revision
    ends = [await store.put(f"{root}/{number}", b"") for number in range(10)]
    seen: list[KeyChange] = []
    while len(seen) < 10:
        async with aclosing(watch(store, f"{root}/", since)) as lists:
            seen += (await anext(lists))[:3]
        since = seen[-1].revision
    assert seen == [KeyChange(f"{root}/{number}", b"", at) for number, at in enumerate(ends)]


async def test_every_watch_sees_every_change_under_load(store: Metadata, root: str) -> None:
    since = (await store.range(root)).revision
    count = 500

    async def write(writer: int) -> None:
        for number in range(count // 10):
            await store.put(f"{root}/{writer}/{number}", b"%d" % number)

    watches = [
        asyncio.create_task(watched(store, f"{root}/", since, count)),
        asyncio.create_task(watched(store, f"{root}/", since, count)),
        asyncio.create_task(watched(store, f"{root}/3/", since, count // 10)),
    ]
    await asyncio.gather(*(write(writer) for writer in range(10)))
    everything, again, third = await asyncio.gather(*watches)
    assert len(everything) == count
    assert again == everything
    assert third == [change for change in everything if change.key.startswith(f"{root}/3/")]
    revisions = [change.revision for change in everything]
    assert revisions == sorted(set(revisions))


async def test_many_large_changes_arrive_whole(store: Metadata, root: str) -> None:
    since = (await store.range(root)).revision
    values = [bytes([number]) * 200_000 for number in range(6)]
    for _ in range(5):
        await store.transaction(
            [], [Put(f"{root}/{number}", value) for number, value in enumerate(values)]
        )
    async with aclosing(watch(store, f"{root}/", since)) as lists:
        seen: list[KeyChange] = []
        while len(seen) < 30:
            some = await anext(lists)
            assert len(some) % 6 == 0, "a revision was cut"
            seen += some
    assert [change.value for change in seen] == values * 5


async def test_a_watch_from_before_the_history_says_so(
    store: Metadata, root: str, forget_history: Callable[[], Awaitable[None]]
) -> None:
    since = await store.put(f"{root}/a", b"1")
    await store.put(f"{root}/a", b"2")
    await forget_history()
    with pytest.raises(HistoryCompacted) as caught:
        await watched(store, f"{root}/", since, 1)
    assert caught.value.since == since
    assert caught.value.oldest > since
    now = (await store.range(f"{root}/")).revision
    at = await store.put(f"{root}/a", b"3")
    assert await watched(store, f"{root}/", now, 1) == [KeyChange(f"{root}/a", b"3", at)]


async def test_a_watch_that_runs_is_not_hurt_by_history_it_has_behind_it(
    store: Metadata, root: str, forget_history: Callable[[], Awaitable[None]]
) -> None:
    since = await store.put(f"{root}/a", b"1")
    async with aclosing(watch(store, f"{root}/", since)) as lists:
        at = await store.put(f"{root}/a", b"2")
        assert await anext(lists) == [KeyChange(f"{root}/a", b"2", at)]
        waiting = asyncio.ensure_future(anext(lists))
        await forget_history()
        at = await store.put(f"{root}/a", b"3")
        assert await waiting == [KeyChange(f"{root}/a", b"3", at)]


async def test_a_watch_of_a_store_that_is_closed_ends(store: Metadata, root: str) -> None:
    since = (await store.range(root)).revision
    async with aclosing(watch(store, f"{root}/", since)) as lists:
        await store.put(f"{root}/a", b"")
        await anext(lists)
        waiting = asyncio.ensure_future(anext(lists))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(MetadataUnavailable):
            await waiting
    with pytest.raises(MetadataUnavailable):
        await store.get(f"{root}/a")
    with pytest.raises(MetadataUnavailable):
        await store.put(f"{root}/a", b"")
