from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.log.subjects import merge as subjects_merge
from penstock.log.subjects.merge import Merge, MergeFailed, choose, live_messages, merge_of
from penstock.log.subjects.span import IndexSpan, SpanName, SpanWriter
from tests.unit.formats.test_postings import Row, entries, rows_of
from tests.unit.log.subjects.subject_topic import State
from tests.unit.log.subjects.test_span import make

SUBJECT = st.sampled_from([b"a", b"b", b"c", b"d"])
PARTS = st.lists(
    st.lists(st.tuples(SUBJECT, st.integers(1, 40)), min_size=1, max_size=30),
    min_size=1,
    max_size=4,
)


def _run(plan: Merge) -> IndexSpan:
    subjects_merge.begin(plan)
    while (path := subjects_merge.step(plan.spans[0])) is None:
        pass
    return IndexSpan(path)


@settings(max_examples=100)
@given(
    parts=PARTS,
    start=st.integers(0, 200),
    deleted=st.sets(st.integers(0, 600)),
    block=st.sampled_from([1, 3, 512]),
    ahead=st.sampled_from([1, 32]),
)
def test_a_merge_has_exactly_the_live_offsets_of_its_spans(
    parts: list[list[tuple[bytes, int]]],
    start: int,
    deleted: set[int],
    block: int,
    ahead: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory, offset, truth, spans = tmp_path_factory.mktemp("merge"), 0, {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.log.subjects.span.BLOCK_ENTRIES", block)
        patch.setattr("penstock.log.subjects.merge.READ_BLOCKS", ahead)
        for number, part in enumerate(parts, 1):
            rows: list[Row] = []
            for subject, length in part:
                rows.append((subject, offset, length))
                truth.update(dict.fromkeys(range(offset, offset + length), subject))
                offset += length
            spans.append(make(directory, rows, SpanName(number, number, number)).path)
        dead = BitMap64(deleted).serialize() if deleted else b""
        merged = _run(Merge(spans, 3, {5: (start, dead)}))
    left = {
        offset: name for offset, name in truth.items() if offset >= start and offset not in deleted
    }
    found = [row for part in merged.blocks(5) for row in rows_of(part)] if left else []
    assert found == sorted(found)
    assert {
        offset: name for name, first, length in found for offset in range(first, first + length)
    } == left
    assert sum(extent.messages for extent in merged.extents.values()) == len(left)
    assert merged.name == SpanName(1, len(parts), len(parts) + 1)
    assert (merged.level, merged.entries) == (3, len(found))


def test_a_merge_is_done_in_steps_that_leave_nothing_when_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects_merge, "STEP_SECONDS", 0)
    span = make(tmp_path, [(b"a", 1, 1)])
    subjects_merge.begin(Merge([span.path], 0, {}))
    assert subjects_merge.step(span.path) is None
    subjects_merge.give_up(span.path)
    subjects_merge.give_up(span.path)
    assert list(tmp_path.iterdir()) == [span.path]
    with pytest.raises(MergeFailed) as caught:
        subjects_merge.step(span.path)
    assert caught.value.damaged is None


def test_a_merge_names_the_span_it_could_not_read(tmp_path: Path) -> None:
    good = make(tmp_path, [(b"a", 1, 1)], SpanName(1, 1, 0)).path
    bad = make(tmp_path, [(b"a", 2, 1)], SpanName(2, 2, 0)).path
    bad.write_bytes(b"damaged")
    subjects_merge.begin(Merge([good, bad], 1, {}))
    with pytest.raises(MergeFailed) as caught:
        subjects_merge.step(good)
    assert caught.value.damaged == bad
    assert sorted(tmp_path.iterdir()) == [good, bad]


def _span(directory: Path, number: int, level: int = 0) -> IndexSpan:
    """Ten messages of partition 5, and one of a partition of its own."""
    writer = SpanWriter(directory, SpanName(number, number, 0), level)
    writer.add(5, entries([(b"a", 10 * number, 10)]))
    writer.add(100 + number, entries([(b"a", 0, 1)]))
    return IndexSpan(writer.finish())


async def test_nothing_is_merged_without_a_reason(tmp_path: Path) -> None:
    spans = [_span(tmp_path, n) for n in range(subjects_merge.FAN_IN - 1)]
    assert await choose(spans, State()) == []
    assert await choose([], State()) == []


async def test_neighbours_of_one_level_are_merged(tmp_path: Path) -> None:
    older = [_span(tmp_path, n, level=1) for n in range(3)]
    newer = [_span(tmp_path, n) for n in range(3, 3 + subjects_merge.FAN_IN)]
    assert await choose([*older, *newer], State()) == newer
    assert merge_of(newer, State()).level == 1


async def test_a_mostly_deleted_span_is_rewritten(tmp_path: Path) -> None:
    spans = [_span(tmp_path, n) for n in range(3)]
    state = State()
    state.deleted[5] = BitMap64([10, 12, 14, 16, 18])
    assert live_messages(spans[1], 5, state) == 5
    assert await choose(spans, state) == []
    state.deleted[5].add(11)
    assert await choose(spans, state) == [spans[1]]
    order = merge_of([spans[1]], state)
    assert (order.spans, order.level) == ([spans[1].path], 0)
    assert BitMap64.deserialize(order.partitions[5][1]) == BitMap64([10, 11, 12, 14, 16, 18])
    assert order.partitions[101] == (0, b"")


async def test_offsets_before_the_start_are_left_out_of_a_merge(tmp_path: Path) -> None:
    spans = [_span(tmp_path, n) for n in range(2)]
    state = State()
    state.starts[5] = 7
    assert live_messages(spans[0], 5, state) == 3
    assert await choose(spans, state) == [spans[0]]
    assert merge_of([spans[0]], state).partitions[5] == (7, b"")
