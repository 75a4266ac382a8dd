from contextlib import closing
from pathlib import Path

import pytest

from penstock.log.subjects.file import SpanName, SpanWriter, connect
from penstock.log.subjects.store import Span
from tests.unit.formats.test_postings import entries, rows_of


def test_a_name_tells_what_the_span_covers() -> None:
    name = SpanName(3, 17, 2)
    assert str(name) == "subjects-0000000003-0000000017-000002.sqlite"
    assert SpanName.parse(str(name)) == name
    assert SpanName.parse("subjects-3-17-2.sqlite") is None


def test_a_span_appears_under_its_name_only_when_it_is_finished(tmp_path: Path) -> None:
    writer = SpanWriter(tmp_path, SpanName(1, 1, 0), level=4)
    writer.add(0, entries([(b"a", 1, 2), (b"b", 3, 1)]))
    assert not writer.path.exists()
    assert writer.finish() == writer.path
    assert list(tmp_path.iterdir()) == [writer.path]
    span = Span(writer.path)
    assert (span.level, span.entries) == (4, 2)
    assert span.extents == {0: (1, 4, 3, 1, 1)}


def test_an_abandoned_span_leaves_nothing(tmp_path: Path) -> None:
    writer = SpanWriter(tmp_path, SpanName(1, 1, 0), level=0)
    writer.add(0, entries([(b"a", 1, 2)]))
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_entries_become_blocks_of_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.subjects.file.BLOCK_ENTRIES", 4)
    rows = [(b"%03d" % n, n, 1) for n in range(10)]
    writer = SpanWriter(tmp_path, SpanName(1, 1, 0), level=0)
    writer.add(0, entries(rows[:6]))
    writer.add(0, entries(rows[6:]))
    writer.add(0, entries([]))
    writer.add(2, entries([(b"x", 7, 5)]))
    span = Span(writer.finish())
    assert [len(block) for block in span.blocks(0)] == [4, 2, 4]
    assert [row for block in span.blocks(0) for row in rows_of(block)] == rows
    assert span.extents == {0: (0, 10, 10, 1, 3), 2: (7, 12, 5, 4, 4)}


def test_a_path_with_signs_that_addresses_escape_can_be_opened(tmp_path: Path) -> None:
    directory = tmp_path / "a%2eb?c#d e"
    directory.mkdir()
    path = SpanWriter(directory, SpanName(1, 1, 0), level=0).finish()
    with closing(connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM blocks").fetchone() == (0,)
