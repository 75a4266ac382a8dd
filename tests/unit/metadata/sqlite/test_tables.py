import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.metadata.interface import EntryPage, KeyChange, MetadataEntry, Put, Revision
from penstock.metadata.sqlite import tables as sqlite_read
from penstock.metadata.sqlite.store import HistoryLimits, SqliteStore
from penstock.metadata.sqlite.tables import (
    FILE_NAME,
    SCHEMA_VERSION,
    ChangeRead,
    open_reader,
    open_writer,
    read_changes,
    read_entry,
    read_page,
)
from penstock.model.errors import FormatError, VersionUnknown


def test_a_new_file_is_for_its_owner_alone_and_so_are_the_files_beside_it(tmp_path: Path) -> None:
    connection = open_writer(tmp_path, Disk())
    connection.execute("UPDATE store SET revision = 2")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {
        FILE_NAME: 0o600,
        f"{FILE_NAME}-wal": 0o600,
        f"{FILE_NAME}-shm": 0o600,
    }
    connection.close()


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    open_writer(tmp_path, Disk()).close()
    (tmp_path / FILE_NAME).chmod(0o644)
    open_writer(tmp_path, Disk()).close()
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_a_commit_waits_for_the_disk(tmp_path: Path) -> None:
    connection = open_writer(tmp_path, Disk())
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    connection.close()


def test_a_new_store_is_at_revision_one_and_an_old_one_where_it_was(tmp_path: Path) -> None:
    connection = open_writer(tmp_path, Disk())
    assert connection.execute("SELECT * FROM store").fetchall() == [(1, 0)]
    connection.execute("UPDATE store SET revision = 7")
    connection.close()
    connection = open_writer(tmp_path, Disk())
    assert connection.execute("SELECT * FROM store").fetchall() == [(7, 0)]
    connection.close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, Disk())
    reader = open_reader(tmp_path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("UPDATE store SET revision = 7")
    reader.close()
    writer.close()


def test_a_crash_before_the_tables_are_created_leaves_a_store_that_opens(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    connection = open_writer(tmp_path, Disk())
    assert connection.execute("SELECT revision FROM store").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1])
def test_a_schema_of_another_version_is_refused_and_left_alone(
    tmp_path: Path, version: int
) -> None:
    connection = open_writer(tmp_path, Disk())
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    before = (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(VersionUnknown) as caught:
        open_writer(tmp_path, Disk())
    assert (caught.value.version, caught.value.known) == (version, SCHEMA_VERSION)
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_a_database_of_another_application_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE theirs(x)")
    connection.close()
    with pytest.raises(FormatError, match="some other database"):
        open_writer(tmp_path, Disk())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all, but long enough" * 100)
    with pytest.raises(FormatError, match="is not a metadata store"):
        open_writer(tmp_path, Disk())


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Revision 2 creates /a and /b, revision 3 creates /c/1 to /c/4."""
    store = SqliteStore.open(tmp_path, Disk(), Clock(), HistoryLimits())
    store.begin()
    store.transact([], [Put("/a", b"1"), Put("/b", b"2")])
    store.transact([], [Put(f"/c/{number}", b"") for number in range(1, 5)])
    store.commit()
    connection = open_reader(tmp_path)
    yield connection
    connection.close()
    store.close()


def change(key: str, revision: int, value: bytes = b"") -> KeyChange:
    return KeyChange(key, value, Revision(revision))


def test_an_entry_is_whole(reader: sqlite3.Connection) -> None:
    two = Revision(2)
    assert read_entry(reader, b"/a") == MetadataEntry("/a", b"1", two, two, 1, None)
    assert read_entry(reader, b"/") is None


def test_a_page_knows_whether_there_is_more(reader: sqlite3.Connection) -> None:
    page = read_page(reader, b"/", b"", 6)
    assert [entry.key for entry in page.entries] == ["/a", "/b", "/c/1", "/c/2", "/c/3", "/c/4"]
    assert (page.revision, page.more) == (3, False)
    assert read_page(reader, b"/", b"", 2) == EntryPage(page.entries[:2], Revision(3), True)
    assert read_page(reader, b"", b"/b", 1) == EntryPage(page.entries[2:3], Revision(3), True)


def test_a_page_of_large_entries_ends_early_with_more_to_come(
    reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_read, "PAGE_BYTES_MAX", 5)
    page = read_page(reader, b"/", b"", 100)
    assert ([entry.key for entry in page.entries], page.more) == (["/a", "/b"], True)
    remaining = read_page(reader, b"/", b"/c/2", 100)
    assert ([entry.key for entry in remaining.entries], remaining.more) == (["/c/3", "/c/4"], False)


def test_a_revision_is_never_cut_by_the_limit(reader: sqlite3.Connection) -> None:
    first = [change("/a", 2, b"1"), change("/b", 2, b"2")]
    second = [change(f"/c/{number}", 3) for number in range(1, 5)]
    assert read_changes(reader, b"/", Revision(1), 1) == ChangeRead(first, Revision(2))
    assert read_changes(reader, b"/", Revision(1), 2) == ChangeRead(first, Revision(2))
    assert read_changes(reader, b"/", Revision(1), 3) == ChangeRead(first + second, Revision(3))
    assert read_changes(reader, b"/", Revision(2), 1) == ChangeRead(second, Revision(3))


def test_a_read_without_changes_returns_its_revision(
    reader: sqlite3.Connection,
) -> None:
    assert read_changes(reader, b"/x", Revision(0), 10) == ChangeRead([], Revision(3))


def test_a_read_that_fails_leaves_no_snapshot_open(reader: sqlite3.Connection) -> None:
    with pytest.raises(OverflowError):
        read_page(reader, b"/", b"", 1 << 70)
    assert not reader.in_transaction
