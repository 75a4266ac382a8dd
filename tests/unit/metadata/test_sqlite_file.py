import sqlite3
import stat
from pathlib import Path

import pytest

from penstock.host.disk import Disk
from penstock.metadata.sqlite_file import FILE_NAME, SCHEMA_VERSION, open_reader, open_writer
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


def test_a_crash_before_the_tables_were_made_leaves_a_store_that_opens(tmp_path: Path) -> None:
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


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    connection.execute("CREATE TABLE theirs(x)")
    connection.close()
    with pytest.raises(FormatError, match="some other database"):
        open_writer(tmp_path, Disk())


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a database at all, but long enough" * 100)
    with pytest.raises(FormatError, match="is not a metadata store"):
        open_writer(tmp_path, Disk())
