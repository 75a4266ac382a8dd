import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.disk import Disk
from penstock.metadata.interface import (
    Change,
    Compare,
    Delete,
    HistoryCompacted,
    Put,
    Revision,
    Target,
)
from penstock.metadata.sqlite_file import open_reader
from penstock.metadata.sqlite_read import read_changes, read_entry
from penstock.metadata.sqlite_store import Committed, HistoryLimits, Store
from tests.unit.metadata.clocks import StillClock

LIMITS = HistoryLimits(changes_max=5, bytes_max=1000)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def store(tmp_path: Path, clock: StillClock) -> Iterator[Store]:
    store = Store.open(tmp_path, Disk(), clock, LIMITS)
    yield store
    store.close()


@pytest.fixture
def reader(tmp_path: Path, store: Store) -> Iterator[sqlite3.Connection]:
    connection = open_reader(tmp_path)
    yield connection
    connection.close()


def commit(store: Store, *changes: Put | Delete) -> Committed:
    store.begin()
    for change in changes:
        store.transact([], [change])
    return store.commit()


def test_a_group_is_seen_when_it_is_committed(store: Store, reader: sqlite3.Connection) -> None:
    store.begin()
    store.transact([], [Put("/a", b"1")])
    store.transact([Compare("/a", Target.VALUE, b"1")], [Put("/b", b"2")])
    assert read_entry(reader, b"/a") is None
    assert store.commit() == Committed(Revision(3), [b"/a", b"/b"])
    assert read_entry(reader, b"/a") is not None
    assert read_entry(reader, b"/b") is not None


def test_an_abandoned_group_leaves_no_trace(store: Store, reader: sqlite3.Connection) -> None:
    commit(store, Put("/a", b"1"))
    store.begin()
    store.transact([], [Put("/a", b"2"), Put("/b", b"")])
    lease = store.grant(10)
    store.abandon()
    assert store.revision == 2
    assert store.earliest_end_ns() is None
    assert commit(store, Put("/c", b"")) == Committed(Revision(3), [b"/c"])
    assert read_changes(reader, b"/", Revision(1), 10).changes == [
        Change("/a", b"1", Revision(2)),
        Change("/c", b"", Revision(3)),
    ]
    store.begin()
    with pytest.raises(Exception, match=f"lease {lease} has ended"):
        store.keep_alive(lease)
    store.commit()


def test_a_full_disk_fails_the_group_and_not_the_store(
    store: Store, reader: sqlite3.Connection
) -> None:
    commit(store, Put("/a", b"1"))
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        commit(store, Put("/big", bytes(1 << 20)))
    store.abandon()
    assert read_entry(reader, b"/big") is None
    store._connection.execute("PRAGMA max_page_count = 1000000")
    assert commit(store, Put("/big", bytes(1 << 20))).revision == 3


def test_expired_leases_are_changes_of_their_own_before_anything_else(
    store: Store, clock: StillClock, reader: sqlite3.Connection
) -> None:
    store.begin()
    first, second = store.grant(10), store.grant(10)
    store.transact([], [Put("/1/a", b"", first), Put("/1/b", b"", first)])
    store.transact([], [Put("/2", b"", second)])
    store.commit()
    clock.pass_seconds(10)
    store.begin()
    absent = Compare("/1/a", Target.VERSION, 0)
    assert store.transact([absent], [Put("/1/a", b"new")]).succeeded
    store.commit()
    changes = read_changes(reader, b"/", Revision(3), 10).changes
    assert changes == [
        Change("/1/a", None, Revision(4)),
        Change("/1/b", None, Revision(4)),
        Change("/2", None, Revision(5)),
        Change("/1/a", b"new", Revision(6)),
    ]


def test_leases_get_their_full_time_again_after_a_restart(
    tmp_path: Path, clock: StillClock
) -> None:
    store = Store.open(tmp_path, Disk(), clock, LIMITS)
    store.begin()
    lease = store.grant(10)
    store.transact([], [Put("/a", b"", lease)])
    store.commit()
    clock.pass_seconds(9)
    store.close()
    store = Store.open(tmp_path, Disk(), clock, LIMITS)
    clock.pass_seconds(9)
    assert commit(store).keys == []
    clock.pass_seconds(1)
    assert commit(store).keys == [b"/a"]
    store.close()


def test_only_the_latest_changes_are_kept(store: Store, reader: sqlite3.Connection) -> None:
    for number in range(8):
        commit(store, Put(f"/{number}", b""))
    with pytest.raises(HistoryCompacted) as caught:
        read_changes(reader, b"/", Revision(3), 100)
    assert (caught.value.asked, caught.value.oldest) == (3, 5)
    assert [change.revision for change in read_changes(reader, b"/", Revision(4), 100).changes] == [
        5, 6, 7, 8, 9,
    ]  # fmt: skip


def test_history_is_bounded_in_bytes_too(store: Store, reader: sqlite3.Connection) -> None:
    for number in range(4):
        commit(store, Put(f"/{number}", bytes(400)))
    with pytest.raises(HistoryCompacted):
        read_changes(reader, b"/", Revision(2), 100)
    assert len(read_changes(reader, b"/", Revision(3), 100).changes) == 2


def test_a_revision_is_kept_whole_or_not_at_all(store: Store, reader: sqlite3.Connection) -> None:
    store.begin()
    store.transact([], [Put(f"/a/{number}", b"") for number in range(3)])
    store.transact([], [Put(f"/b/{number}", b"") for number in range(3)])
    store.commit()
    with pytest.raises(HistoryCompacted):
        read_changes(reader, b"/", Revision(1), 100)
    assert len(read_changes(reader, b"/", Revision(2), 100).changes) == 3


def test_the_limits_of_history_hold_after_a_restart(tmp_path: Path, clock: StillClock) -> None:
    for number in range(8):
        store = Store.open(tmp_path, Disk(), clock, LIMITS)
        commit(store, Put(f"/{number}", b""))
        store.close()
    store = Store.open(tmp_path, Disk(), clock, LIMITS)
    assert store._connection.execute("SELECT count(*) FROM changes").fetchone() == (5,)
    assert store.revision == 9
    store.close()
