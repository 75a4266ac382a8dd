import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.log.subjects.bitmaps import MatchCache
from penstock.log.subjects.memory import Lane
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.queries import IndexParts, Queries, summarise
from penstock.log.subjects.span import IndexSpan, SpanName
from penstock.model.subjects import Filter
from penstock.model.units import PartitionId
from tests.unit.formats.test_postings import entries
from tests.unit.log.subjects.subject_topic import State, in_thread
from tests.unit.log.subjects.test_span import make

FIVE = PartitionId(5)
A, WILD = Filter.parse(b"a"), Filter.parse(b"*")


def _queries(state: State) -> Queries:
    return Queries(state, in_thread, MatchCache(1 << 20))


def _sources(directory: Path) -> IndexParts:
    """Offsets 0 to 29: two spans and a lane, `a` and `b` by turns."""
    rows = [(b"ab"[n % 2 : n % 2 + 1], n, 1) for n in range(20)]
    spans = [
        make(directory, rows[:10], SpanName(1, 1, 0)),
        make(directory, rows[10:], SpanName(2, 2, 0)),
    ]
    lane = Lane()
    lane.add(Piece(20, 10, pa.array([b"a", b"b"] * 5, pa.binary())))
    return IndexParts(spans, [lane])


async def test_the_newest_source_with_a_live_offset_has_the_last_one(tmp_path: Path) -> None:
    state, sources = State(), _sources(tmp_path)
    queries = _queries(state)
    for last in range(28, -2, -2):
        for chosen in (A, WILD):
            expected = last if chosen is A else last + 1
            found = await queries.last(sources, FIVE, chosen)
            assert found == (expected if expected >= 0 else None)
        state.deleted.setdefault(5, BitMap64()).update([last, last + 1])


async def test_offsets_before_the_start_are_never_found(tmp_path: Path) -> None:
    state, sources = State(), _sources(tmp_path)
    state.starts[5] = 100
    queries = _queries(state)
    for chosen in (A, WILD):
        assert await queries.last(sources, FIVE, chosen) is None
        assert await queries.matching(sources, FIVE, chosen, 0, 5) == []
        assert await queries.count(sources, FIVE, chosen, 0, 1000) == 0
    assert await queries.next(sources, FIVE, A, 0) is None
    assert await queries.subjects(sources, FIVE, WILD, b"", 5) == []


async def test_the_next_of_a_subject_crosses_sources_and_deletions(tmp_path: Path) -> None:
    state, sources = State(), _sources(tmp_path)
    queries = _queries(state)
    for start in range(31):
        expected = start + start % 2 if start < 29 else None
        assert await queries.next(sources, FIVE, A, start) == expected
    state.deleted[5] = BitMap64(range(4, 24))
    assert await queries.next(sources, FIVE, A, 3) == 24


async def test_consumers_that_ask_the_same_of_a_cold_span_share_one_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    match = IndexSpan.match

    def counting(span: IndexSpan, partition: int, chosen: Filter) -> BitMap64:
        searches.append((span.name.first, chosen.text))
        return match(span, partition, chosen)

    monkeypatch.setattr(IndexSpan, "match", counting)
    queries, sources = _queries(State()), _sources(tmp_path)
    calls = [queries.matching(sources, FIVE, WILD, 0, 12) for _ in range(5)]
    assert await asyncio.gather(*calls) == [list(range(12))] * 5
    assert await queries.count(sources, FIVE, WILD, 0, 30) == 30
    none = Filter.parse(b"x.*")
    for _ in range(2):
        assert await queries.count(sources, FIVE, none, 0, 30) == 0
    assert sorted(searches) == [(1, b"*"), (1, b"x.*"), (2, b"*"), (2, b"x.*")]


async def test_a_cancelled_query_does_not_affect_the_others(tmp_path: Path) -> None:
    queries, sources = _queries(State()), _sources(tmp_path)
    first = asyncio.create_task(queries.matching(sources, FIVE, WILD, 0, 3))
    second = asyncio.create_task(queries.matching(sources, FIVE, WILD, 0, 3))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == [0, 1, 2]


async def test_spans_outside_the_requested_offsets_are_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexSpan, "match", lambda *_: pytest.fail("a span was searched"))
    queries, sources = _queries(State()), _sources(tmp_path)
    assert await queries.matching(sources, FIVE, WILD, 20, 5) == [20, 21, 22, 23, 24]
    assert await queries.count(sources, FIVE, WILD, 20, 30) == 10


async def test_a_page_of_dead_subjects_is_passed_over(tmp_path: Path) -> None:
    rows = [(b"n.%03d" % n, n, 1) for n in range(100)]
    sources = IndexParts([make(tmp_path, rows)], [])
    state = State()
    state.deleted[5] = BitMap64(range(50))
    found = await _queries(state).subjects(sources, FIVE, Filter.parse(b"n.*"), b"n.010", 3)
    assert found == [(b"n.%03d" % n, 1, n) for n in (50, 51, 52)]


RUNS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 9)), min_size=1, max_size=20
)


@given(RUNS, st.sets(st.integers(0, 100)), st.integers(0, 100), st.integers(1, 5))
def test_rows_tell_the_live_messages_of_each_subject(
    runs: list[tuple[bytes, int]], deleted: set[int], start: int, limit: int
) -> None:
    pages, truth, offset = [], {}, 0
    for subject, length in runs:
        pages.append(entries([(subject, offset, length)]))
        truth.update(dict.fromkeys(range(offset, offset + length), subject))
        offset += length
    names = sorted(set(truth.values()))[:limit]
    expected = []
    for name in names:
        live = [o for o, n in truth.items() if n == name and o >= start and o not in deleted]
        if live:
            expected.append((name, len(live), max(live)))
    found = summarise(pages, limit, start, BitMap64(deleted) if deleted else None)
    assert found == (expected, names[-1])


def test_nothing_to_list_ends_the_listing() -> None:
    assert summarise([entries([])], 10, 0, None) == ([], None)
