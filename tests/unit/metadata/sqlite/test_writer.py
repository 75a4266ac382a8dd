import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event

import pytest
import pytest_asyncio

from penstock.host.disk import Disk
from penstock.metadata.interface import (
    LeaseExpired,
    LeaseId,
    MetadataUnavailable,
    Put,
    Revision,
    TransactionResult,
)
from penstock.metadata.sqlite.store import HistoryLimits, SqliteStore
from penstock.metadata.sqlite.writer import GroupResult, GroupWriter, QueueLimits
from tests.unit.metadata.clocks import StillClock

WAIT_SECONDS = 30


class Bench:
    """A writer, the results that it reported, and a way to hold its thread."""

    def __init__(self, store: SqliteStore, limits: QueueLimits) -> None:
        self.store = store
        self.groups: list[GroupResult] = []
        self.writer = GroupWriter(store, self.groups.append, limits)
        self.go_on = Event()

    async def hold(self) -> "asyncio.Future[None]":
        """Keep the thread busy with a request until `go_on` is set."""
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(_: SqliteStore) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert self.go_on.wait(WAIT_SECONDS)

        future = self.writer.submit(wait)
        await begun.wait()
        return future


@pytest.fixture
def limits() -> QueueLimits:
    """The limits of the writer; a test may choose others."""
    return QueueLimits()


@pytest_asyncio.fixture
async def bench(tmp_path: Path, limits: QueueLimits) -> AsyncIterator[Bench]:
    bench = Bench(SqliteStore.open(tmp_path, Disk(), StillClock(), HistoryLimits()), limits)
    yield bench
    bench.go_on.set()
    await bench.writer.close()


def putting(key: str, lease: LeaseId | None = None) -> Callable[[SqliteStore], TransactionResult]:
    def call(store: SqliteStore) -> TransactionResult:
        applied = store.transact([], [Put(key, b"", lease)])
        return TransactionResult(applied.succeeded, applied.revision)

    return call


async def test_requests_during_a_commit_share_the_next_one(bench: Bench) -> None:
    holding = await bench.hold()
    waiting = [bench.writer.submit(putting(f"/{number}")) for number in range(50)]
    bench.go_on.set()
    await holding
    outcomes = await asyncio.gather(*waiting)
    assert outcomes == [TransactionResult(True, Revision(2 + number)) for number in range(50)]
    assert (bench.writer.requests_total, bench.writer.groups_total) == (51, 1)
    assert [len(group.answers) for group in bench.groups] == [1, 50]


async def test_each_gets_its_own_answer(bench: Bench) -> None:
    holding = await bench.hold()
    good = bench.writer.submit(putting("/good"))
    bad = bench.writer.submit(putting("/bad", LeaseId(9)))
    also_good = bench.writer.submit(putting("/also"))
    bench.go_on.set()
    await holding
    assert await good == TransactionResult(True, Revision(2))
    with pytest.raises(LeaseExpired):
        await bad
    assert await also_good == TransactionResult(True, Revision(3))


async def test_a_failed_commit_fails_every_request_of_its_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    holding = await bench.hold()
    waiting = [bench.writer.submit(putting(f"/{number}")) for number in range(3)]
    real = bench.store.commit
    commits = iter([real, None])

    def commit() -> object:
        attempt = next(commits, real)
        if attempt is None:
            raise sqlite3.OperationalError("disk I/O error")
        return attempt()

    monkeypatch.setattr(bench.store, "commit", commit)
    bench.go_on.set()
    await holding
    for future in waiting:
        with pytest.raises(MetadataUnavailable, match="disk I/O error"):
            await future
    assert bench.groups[-1].committed is None
    assert await bench.writer.submit(putting("/next")) == TransactionResult(True, Revision(2))


async def test_a_store_that_cannot_even_undo_recovers_with_the_next_group(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as broken:
        broken.setattr(bench.store, "commit", fail)
        broken.setattr(bench.store, "_load", fail)
        with pytest.raises(MetadataUnavailable):
            await bench.writer.submit(putting("/a"))
    assert await bench.writer.submit(putting("/b")) == TransactionResult(True, Revision(2))


@pytest.mark.parametrize("limits", [QueueLimits(queue_requests_max=3, queue_bytes_max=100)])
async def test_a_full_queue_refuses_and_names_its_limit(bench: Bench) -> None:
    holding = await bench.hold()
    large = bench.writer.submit(putting("/a"), 60)
    with pytest.raises(MetadataUnavailable, match="queue_bytes_max 100"):
        bench.writer.submit(putting("/b"), 60)
    small = bench.writer.submit(putting("/c"), 40)
    assert bench.writer.full
    with pytest.raises(MetadataUnavailable, match="queue_requests_max 3"):
        bench.writer.submit(putting("/d"))
    bench.go_on.set()
    await asyncio.gather(holding, large, small)
    assert await bench.writer.submit(putting("/e"), 100) == TransactionResult(True, Revision(4))


@pytest.mark.parametrize("limits", [QueueLimits(group_requests_max=4)])
async def test_a_group_has_a_limit(bench: Bench) -> None:
    holding = await bench.hold()
    waiting = [bench.writer.submit(putting(f"/{number}")) for number in range(10)]
    bench.go_on.set()
    await asyncio.gather(holding, *waiting)
    assert [len(group.answers) for group in bench.groups] == [1, 4, 4, 2]


async def test_a_cancelled_caller_does_not_affect_the_others(bench: Bench) -> None:
    holding = await bench.hold()
    gone = bench.writer.submit(putting("/gone"))
    there = bench.writer.submit(putting("/there"))
    gone.cancel()
    bench.go_on.set()
    await holding
    assert await there == TransactionResult(True, Revision(3))


async def test_closing_commits_queued_requests_and_refuses_later_ones(bench: Bench) -> None:
    await bench.hold()
    waiting = [bench.writer.submit(putting(f"/{number}")) for number in range(10)]
    closing = asyncio.create_task(bench.writer.close())
    await asyncio.sleep(0)
    with pytest.raises(MetadataUnavailable, match="closed"):
        bench.writer.submit(putting("/late"))
    bench.go_on.set()
    await closing
    assert [outcome.succeeded for outcome in await asyncio.gather(*waiting)] == [True] * 10
