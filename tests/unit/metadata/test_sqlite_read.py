import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.clock import Clock
from penstock.host.disk import Disk
from penstock.metadata import sqlite_read
from penstock.metadata.interface import Change, Entry, Page, Put, Revision
from penstock.metadata.sqlite_file import open_reader
from penstock.metadata.sqlite_read import News, read_changes, read_entry, read_page
from penstock.metadata.sqlite_store import HistoryLimits, Store


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Revision 2 makes /a and /b, revision 3 /c/1 to /c/4."""
    store = Store.open(tmp_path, Disk(), Clock(), HistoryLimits())
    store.begin()
    store.transact([], [Put("/a", b"1"), Put("/b", b"2")])
    store.transact([], [Put(f"/c/{number}", b"") for number in range(1, 5)])
    store.commit()
    connection = open_reader(tmp_path)
    yield connection
    connection.close()
    store.close()


def change(key: str, revision: int, value: bytes = b"") -> Change:
    return Change(key, value, Revision(revision))


def test_an_entry_is_whole(reader: sqlite3.Connection) -> None:
    two = Revision(2)
    assert read_entry(reader, b"/a") == Entry("/a", b"1", two, two, 1, None)
    assert read_entry(reader, b"/") is None


def test_a_page_knows_whether_there_is_more(reader: sqlite3.Connection) -> None:
    page = read_page(reader, b"/", b"", 6)
    assert [entry.key for entry in page.entries] == ["/a", "/b", "/c/1", "/c/2", "/c/3", "/c/4"]
    assert (page.revision, page.more) == (3, False)
    assert read_page(reader, b"/", b"", 2) == Page(page.entries[:2], Revision(3), True)
    assert read_page(reader, b"", b"/b", 1) == Page(page.entries[2:3], Revision(3), True)


def test_a_page_of_large_entries_ends_early_and_says_so(
    reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_read, "PAGE_BYTES_MAX", 5)
    page = read_page(reader, b"/", b"", 100)
    assert ([entry.key for entry in page.entries], page.more) == (["/a", "/b"], True)
    rest = read_page(reader, b"/", b"/c/2", 100)
    assert ([entry.key for entry in rest.entries], rest.more) == (["/c/3", "/c/4"], False)


def test_a_revision_is_never_cut_by_the_limit(reader: sqlite3.Connection) -> None:
    first = [change("/a", 2, b"1"), change("/b", 2, b"2")]
    second = [change(f"/c/{number}", 3) for number in range(1, 5)]
    assert read_changes(reader, b"/", Revision(1), 1) == News(first, Revision(2))
    assert read_changes(reader, b"/", Revision(1), 2) == News(first, Revision(2))
    assert read_changes(reader, b"/", Revision(1), 3) == News(first + second, Revision(3))
    assert read_changes(reader, b"/", Revision(2), 1) == News(second, Revision(3))


def test_no_news_still_tells_up_to_where_there_is_none(reader: sqlite3.Connection) -> None:
    assert read_changes(reader, b"/x", Revision(0), 10) == News([], Revision(3))


def test_a_read_that_fails_leaves_no_snapshot_open(reader: sqlite3.Connection) -> None:
    with pytest.raises(OverflowError):
        read_page(reader, b"/", b"", 1 << 70)
    assert not reader.in_transaction
