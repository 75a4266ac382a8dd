import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.disk import Disk
from penstock.metadata.interface import (
    Compare,
    CompareTarget,
    DeleteKeys,
    HistoryCompacted,
    KeyChange,
    LeaseExpired,
    LeaseId,
    Put,
    Revision,
)
from penstock.metadata.sqlite.store import Committed, HistoryLimits, Leases, SqliteStore
from penstock.metadata.sqlite.tables import open_reader, read_changes, read_entry
from penstock.model.units import Nanoseconds
from tests.unit.metadata.clocks import StillClock

LIMITS = HistoryLimits(changes_max=5, bytes_max=1000)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def store(tmp_path: Path, clock: StillClock) -> Iterator[SqliteStore]:
    store = SqliteStore.open(tmp_path, Disk(), clock, LIMITS)
    yield store
    store.close()


@pytest.fixture
def reader(tmp_path: Path, store: SqliteStore) -> Iterator[sqlite3.Connection]:
    connection = open_reader(tmp_path)
    yield connection
    connection.close()


def commit(store: SqliteStore, *changes: Put | DeleteKeys) -> Committed:
    store.begin()
    for change in changes:
        store.transact([], [change])
    return store.commit()


def test_a_group_is_seen_when_it_is_committed(
    store: SqliteStore, reader: sqlite3.Connection
) -> None:
    store.begin()
    store.transact([], [Put("/a", b"1")])
    store.transact([Compare("/a", CompareTarget.VALUE, b"1")], [Put("/b", b"2")])
    assert read_entry(reader, b"/a") is None
    assert store.commit() == Committed(Revision(3), [b"/a", b"/b"])
    assert read_entry(reader, b"/a") is not None
    assert read_entry(reader, b"/b") is not None


def test_an_abandoned_group_leaves_no_trace(store: SqliteStore, reader: sqlite3.Connection) -> None:
    commit(store, Put("/a", b"1"))
    store.begin()
    store.transact([], [Put("/a", b"2"), Put("/b", b"")])
    lease = store.grant(10)
    store.abandon()
    assert store.revision == 2
    assert store.earliest_end_ns() is None
    assert commit(store, Put("/c", b"")) == Committed(Revision(3), [b"/c"])
    assert read_changes(reader, b"/", Revision(1), 10).changes == [
        KeyChange("/a", b"1", Revision(2)),
        KeyChange("/c", b"", Revision(3)),
    ]
    store.begin()
    with pytest.raises(Exception, match=f"lease {lease} has ended"):
        store.keep_alive(lease)
    store.commit()


def test_a_full_disk_fails_the_group_and_not_the_store(
    store: SqliteStore, reader: sqlite3.Connection
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
    store: SqliteStore, clock: StillClock, reader: sqlite3.Connection
) -> None:
    store.begin()
    first, second = store.grant(10), store.grant(10)
    store.transact([], [Put("/1/a", b"", first), Put("/1/b", b"", first)])
    store.transact([], [Put("/2", b"", second)])
    store.commit()
    clock.pass_seconds(10)
    store.begin()
    absent = Compare("/1/a", CompareTarget.VERSION, 0)
    assert store.transact([absent], [Put("/1/a", b"new")]).succeeded
    store.commit()
    changes = read_changes(reader, b"/", Revision(3), 10).changes
    assert changes == [
        KeyChange("/1/a", None, Revision(4)),
        KeyChange("/1/b", None, Revision(4)),
        KeyChange("/2", None, Revision(5)),
        KeyChange("/1/a", b"new", Revision(6)),
    ]


def test_leases_get_their_full_time_again_after_a_restart(
    tmp_path: Path, clock: StillClock
) -> None:
    store = SqliteStore.open(tmp_path, Disk(), clock, LIMITS)
    store.begin()
    lease = store.grant(10)
    store.transact([], [Put("/a", b"", lease)])
    store.commit()
    clock.pass_seconds(9)
    store.close()
    store = SqliteStore.open(tmp_path, Disk(), clock, LIMITS)
    clock.pass_seconds(9)
    assert commit(store).keys == []
    clock.pass_seconds(1)
    assert commit(store).keys == [b"/a"]
    store.close()


def test_only_the_latest_changes_are_kept(store: SqliteStore, reader: sqlite3.Connection) -> None:
    for number in range(8):
        commit(store, Put(f"/{number}", b""))
    with pytest.raises(HistoryCompacted) as caught:
        read_changes(reader, b"/", Revision(3), 100)
    assert (caught.value.since, caught.value.oldest) == (3, 5)
    assert [change.revision for change in read_changes(reader, b"/", Revision(4), 100).changes] == [
        5, 6, 7, 8, 9,
    ]  # fmt: skip


def test_history_is_bounded_in_bytes_too(store: SqliteStore, reader: sqlite3.Connection) -> None:
    for number in range(4):
        commit(store, Put(f"/{number}", bytes(400)))
    with pytest.raises(HistoryCompacted):
        read_changes(reader, b"/", Revision(2), 100)
    assert len(read_changes(reader, b"/", Revision(3), 100).changes) == 2


def test_a_revision_is_kept_whole_or_not_at_all(
    store: SqliteStore, reader: sqlite3.Connection
) -> None:
    store.begin()
    store.transact([], [Put(f"/a/{number}", b"") for number in range(3)])
    store.transact([], [Put(f"/b/{number}", b"") for number in range(3)])
    store.commit()
    with pytest.raises(HistoryCompacted):
        read_changes(reader, b"/", Revision(1), 100)
    assert len(read_changes(reader, b"/", Revision(2), 100).changes) == 3


def test_the_limits_of_history_hold_after_a_restart(tmp_path: Path, clock: StillClock) -> None:
    for number in range(8):
        store = SqliteStore.open(tmp_path, Disk(), clock, LIMITS)
        commit(store, Put(f"/{number}", b""))
        store.close()
    store = SqliteStore.open(tmp_path, Disk(), clock, LIMITS)
    assert store._connection.execute("SELECT count(*) FROM changes").fetchone() == (5,)
    assert store.revision == 9
    store.close()


ONE, TWO = LeaseId(1), LeaseId(2)


def seconds(count: float) -> Nanoseconds:
    return Nanoseconds(int(count * 1e9))


def test_a_lease_is_due_when_its_time_is_over_and_not_before() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(100))
    assert leases.due(seconds(109.999)) == []
    assert leases.due(seconds(110)) == [ONE]
    assert leases.due(seconds(110)) == []


def test_a_renewal_counts_from_its_commit() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    assert leases.renew(ONE, seconds(9)) == 10.0
    assert leases.due(seconds(18.9)) == []
    assert leases.due(seconds(19)) == [ONE]


def test_a_lease_whose_time_is_over_is_not_renewed_even_before_it_is_dropped() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    with pytest.raises(LeaseExpired):
        leases.renew(ONE, seconds(10))
    assert leases.due(seconds(10)) == [ONE]


def test_no_lease_ends_before_the_earliest_end() -> None:
    leases = Leases()
    assert leases.earliest_ns() is None
    leases.grant(ONE, 10, seconds(0))
    leases.grant(TWO, 5, seconds(0))
    assert leases.earliest_ns() == seconds(5)
    leases.renew(TWO, seconds(4))
    assert leases.earliest_ns() == seconds(5)
    assert leases.due(seconds(5)) == []
    assert leases.earliest_ns() == seconds(9)


def test_a_dropped_lease_is_neither_due_nor_renewed() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    leases.drop(ONE)
    leases.drop(ONE)
    assert leases.due(seconds(11)) == []
    with pytest.raises(LeaseExpired):
        leases.renew(ONE, seconds(11))


def test_restored_leases_get_their_full_time_unless_they_are_known() -> None:
    leases = Leases()
    leases.grant(ONE, 10, seconds(0))
    leases.grant(LeaseId(3), 10, seconds(0))
    leases.restore([(ONE, 10), (TWO, 10)], seconds(6))
    assert leases.earliest_ns() == seconds(10)
    assert leases.due(seconds(10)) == [ONE]
    leases.drop(ONE)
    assert leases.due(seconds(16)) == [TWO]
