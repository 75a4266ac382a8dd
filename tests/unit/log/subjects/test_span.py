from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats import postings
from penstock.log.subjects import span as subjects_store
from penstock.log.subjects.span import (
    IndexSpan,
    SpanDamaged,
    SpanName,
    SpanWriter,
    connect,
    open_spans,
)
from penstock.model.subjects import Filter
from tests.unit.formats.test_postings import Row, entries, rows_of


def test_the_name_of_a_span_has_the_files_it_covers() -> None:
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
    span = IndexSpan(writer.path)
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
    monkeypatch.setattr("penstock.log.subjects.span.BLOCK_ENTRIES", 4)
    rows = [(b"%03d" % n, n, 1) for n in range(10)]
    writer = SpanWriter(tmp_path, SpanName(1, 1, 0), level=0)
    writer.add(0, entries(rows[:6]))
    writer.add(0, entries(rows[6:]))
    writer.add(0, entries([]))
    writer.add(2, entries([(b"x", 7, 5)]))
    span = IndexSpan(writer.finish())
    assert [len(block) for block in span.blocks(0)] == [4, 2, 4]
    assert [row for block in span.blocks(0) for row in rows_of(block)] == rows
    assert span.extents == {0: (0, 10, 10, 1, 3), 2: (7, 12, 5, 4, 4)}


def test_a_path_with_signs_that_addresses_escape_can_be_opened(tmp_path: Path) -> None:
    directory = tmp_path / "a%2eb?c#d e"
    directory.mkdir()
    path = SpanWriter(directory, SpanName(1, 1, 0), level=0).finish()
    with closing(connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM blocks").fetchone() == (0,)


TOKEN = st.sampled_from([b"a", b"b", b"bb", b"c"])
SUBJECT = st.lists(TOKEN, min_size=1, max_size=3).map(b".".join)
RUNS = st.lists(
    st.tuples(SUBJECT, st.integers(1, 40), st.sampled_from([0, 0, 3])), min_size=1, max_size=60
)
FILTERS = [b"a", b"b.bb", b"*", b"a.*", b"a.>", b"*.b", b"b.*.c", b"bb.>", b"c.c.c", b"d"]
Runs = list[tuple[bytes, int, int]]


ONE = SpanName(1, 1, 0)


def make(directory: Path, rows: list[Row], name: SpanName = ONE) -> IndexSpan:
    writer = SpanWriter(directory, name, level=0)
    writer.add(5, postings.arrange(entries(rows)))
    return IndexSpan(writer.finish())


def _rows(runs: Runs) -> tuple[list[Row], dict[int, bytes]]:
    rows, truth, offset = [], {}, 10
    for subject, length, gap in runs:
        rows.append((subject, offset, length))
        truth.update(dict.fromkeys(range(offset, offset + length), subject))
        offset += length + gap
    return rows, truth


@settings(max_examples=60)
@given(runs=RUNS, block=st.sampled_from([1, 2, 5, 512]), start=st.integers(0, 400))
def test_a_span_agrees_with_a_scan_of_all_messages(
    runs: Runs, block: int, start: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, truth = _rows(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.log.subjects.span.BLOCK_ENTRIES", block)
        span = make(tmp_path_factory.mktemp("span"), rows)
    for subject in {b"a", b"zz", b"", *truth.values()}:
        offsets = [offset for offset, name in truth.items() if name == subject]
        assert span.greatest(5, subject) == max(offsets, default=None)
        later = [offset for offset in offsets if offset >= start]
        assert span.first_from(5, subject, start) == min(later, default=None)
    for text in FILTERS:
        chosen = Filter.parse(text)
        assert dict.fromkeys(span.match(5, chosen)) == {
            offset: None for offset, name in truth.items() if chosen.matches(name)
        }
    span.close()


@settings(max_examples=60)
@given(
    runs=RUNS,
    block=st.sampled_from([1, 2, 5, 512]),
    after=st.one_of(st.just(b""), SUBJECT),
    limit=st.integers(1, 5),
)
def test_a_page_has_the_first_subjects_whole(
    runs: Runs, block: int, after: bytes, limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows, truth = _rows(runs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.log.subjects.span.BLOCK_ENTRIES", block)
        span = make(tmp_path_factory.mktemp("span"), rows)
    for text in FILTERS:
        chosen = Filter.parse(text)
        expected_names = sorted(n for n in set(truth.values()) if n > after and chosen.matches(n))[
            :limit
        ]
        found = rows_of(span.page(5, chosen, after, limit))
        assert {
            (name, offset)
            for name, first, length in found
            if name in expected_names
            for offset in range(first, first + length)
        } == {(name, offset) for offset, name in truth.items() if name in expected_names}
        assert {name for name, *_ in found} >= set(expected_names)
        assert all(name > after and chosen.matches(name) for name, *_ in found)


def test_spans_are_opened_in_the_order_of_the_files_they_cover(tmp_path: Path) -> None:
    for first, last in [(9, 9), (1, 8), (10, 17)]:
        make(tmp_path, [(b"a", first, 1)], SpanName(first, last, 1))
    spans, damages = open_spans(tmp_path)
    assert ([span.name.first for span in spans], damages) == ([1, 9, 10], [])


def test_unfinished_files_of_a_merge_are_removed_at_the_next_start(tmp_path: Path) -> None:
    for number in range(1, 9):
        make(tmp_path, [(b"a", number, 1)], SpanName(number, number, 0))
    for edition in (1, 2):
        make(tmp_path, [(b"a", 1, 8)], SpanName(1, 8, edition))
    (tmp_path / "subjects-0000000009-0000000009-000000.sqlite.77.tmp").write_bytes(b"half")
    (tmp_path / "subjects-other.sqlite").write_bytes(b"not ours")
    spans, damages = open_spans(tmp_path)
    assert ([span.name for span in spans], damages) == ([SpanName(1, 8, 2)], [])
    assert {path.name for path in tmp_path.iterdir()} == {
        str(SpanName(1, 8, 2)),
        "subjects-other.sqlite",
    }


def test_a_damaged_span_does_not_hide_the_ones_it_covers(tmp_path: Path) -> None:
    make(tmp_path, [(b"a", 1, 1)], SpanName(1, 1, 0))
    make(tmp_path, [(b"a", 2, 1)], SpanName(2, 2, 0))
    (tmp_path / str(SpanName(1, 2, 1))).write_bytes(b"damaged")
    spans, damages = open_spans(tmp_path)
    assert [span.name for span in spans] == [SpanName(1, 1, 0), SpanName(2, 2, 0)]
    assert len(damages) == 1
    assert not (tmp_path / str(SpanName(1, 2, 1))).exists()


def test_a_span_of_another_version_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = make(tmp_path, [(b"a", 1, 1)])
    monkeypatch.setattr(subjects_store, "SPAN_VERSION", 2)
    with pytest.raises(SpanDamaged, match="has version 1, this one is 2"):
        IndexSpan(span.path)


def test_every_query_of_a_damaged_span_reports_the_damage(tmp_path: Path) -> None:
    span = make(tmp_path, [(b"a.%d" % n, n, 1) for n in range(2000)])
    data = bytearray(span.path.read_bytes())
    for start in range(8192 * 2, len(data), 512):
        data[start] ^= 0xFF
    span.path.write_bytes(data)
    chosen = Filter.parse(b"a.*")
    for ask in (
        lambda: span.greatest(5, b"a.7"),
        lambda: span.first_from(5, b"a.7", 0),
        lambda: span.match(5, chosen),
        lambda: span.page(5, chosen, b"", 5000),
        lambda: list(span.blocks(5)),
    ):
        with pytest.raises(SpanDamaged) as caught:
            ask()
        assert caught.value.span is span
        span.close()


def test_few_spans_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects_store, "_OPEN", subjects_store._OpenSpans(2))
    spans = [make(tmp_path, [(b"a", n, 1)], SpanName(n, n, 0)) for n in range(4)]
    for _ in range(2):
        for number, span in enumerate(spans):
            assert span.greatest(5, b"a") == number
            assert sum(span._connection is not None for span in spans) <= 2
    for span in spans:
        span.close()
