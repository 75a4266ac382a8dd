from pathlib import Path

from pyroaring import BitMap64

from penstock.log.subjects import plan as subjects_plan
from penstock.log.subjects.file import SpanName, SpanWriter
from penstock.log.subjects.plan import choose, live_messages, merge_of
from penstock.log.subjects.store import Span
from tests.unit.formats.test_postings import entries
from tests.unit.log.subjects.subject_topic import State


def _span(directory: Path, number: int, level: int = 0) -> Span:
    """Ten messages of partition 5, and one of a partition of its own."""
    writer = SpanWriter(directory, SpanName(number, number, 0), level)
    writer.add(5, entries([(b"a", 10 * number, 10)]))
    writer.add(100 + number, entries([(b"a", 0, 1)]))
    return Span(writer.finish())


async def test_nothing_is_merged_without_a_reason(tmp_path: Path) -> None:
    spans = [_span(tmp_path, n) for n in range(subjects_plan.FAN_IN - 1)]
    assert await choose(spans, State()) == []
    assert await choose([], State()) == []


async def test_neighbours_of_one_level_are_merged(tmp_path: Path) -> None:
    older = [_span(tmp_path, n, level=1) for n in range(3)]
    newer = [_span(tmp_path, n) for n in range(3, 3 + subjects_plan.FAN_IN)]
    assert await choose([*older, *newer], State()) == newer
    assert merge_of(newer, State()).level == 1


async def test_a_span_that_is_mostly_deleted_is_written_anew(tmp_path: Path) -> None:
    spans = [_span(tmp_path, n) for n in range(3)]
    state = State()
    state.deleted[5] = BitMap64([10, 12, 14, 16, 18])
    assert live_messages(spans[1], 5, state) == 5
    assert await choose(spans, state) == []
    state.deleted[5].add(11)
    assert await choose(spans, state) == [spans[1]]
    order = merge_of([spans[1]], state)
    assert (order.spans, order.level) == ([spans[1].path], 0)
    assert BitMap64.deserialize(order.kept[5][1]) == BitMap64([10, 11, 12, 14, 16, 18])
    assert order.kept[101] == (0, b"")


async def test_what_lies_before_the_start_is_deleted(tmp_path: Path) -> None:
    spans = [_span(tmp_path, n) for n in range(2)]
    state = State()
    state.starts[5] = 7
    assert live_messages(spans[0], 5, state) == 3
    assert await choose(spans, state) == [spans[0]]
    assert merge_of([spans[0]], state).kept[5] == (7, b"")
