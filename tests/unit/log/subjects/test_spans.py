import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio
import structlog.testing

from penstock.host.child import Child, ChildFailed
from penstock.log.subjects.memory import Lane
from penstock.log.subjects.merge import FAN_IN
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.span import IndexSpan, SpanDamaged, SpanName
from penstock.log.subjects.span_catalog import Part, SealedFile
from penstock.log.subjects.spans import Spans
from penstock.model.errors import IndexUnavailable
from tests.unit.log.subjects.subject_topic import (
    TOPIC_SUBJECT,
    State,
    batch,
    batch_frame,
    in_thread,
)
from tests.unit.log.subjects.subject_topic import write_wal as write


class InlineChild(Child):
    """Runs calls in this process at once; the next `failures` of them fail."""

    failures = 0

    async def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise ChildFailed("call", "told to")
        return function(*args, **kwargs)


@pytest.fixture
def child() -> InlineChild:
    return InlineChild()


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def retry_seconds() -> float:
    return 0.001


@pytest_asyncio.fixture
async def spans(
    tmp_path: Path, child: InlineChild, state: State, retry_seconds: float
) -> AsyncIterator[Spans]:
    spans = Spans(tmp_path, TOPIC_SUBJECT, child, state, in_thread, retry_seconds)
    yield spans
    await spans.close()


def _file(directory: Path, number: int) -> SealedFile:
    """Ten messages, `a` and `b` by turns."""
    return write(directory, number, [batch_frame(batch(0, 10 * number, [b"a", b"b"] * 5), 1)])


def _part(number: int) -> Part:
    lane = Lane()
    lane.add(Piece(10 * number, 10, pa.array([b"a", b"b"] * 5, pa.binary())))
    return {0: lane}


def _names(spans: Spans) -> list[SpanName]:
    with spans.catalog.hold(0) as held:
        return [span.name for span in held]


def _files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("subjects-*"))


async def test_a_part_answers_until_its_span_is_built(spans: Spans, tmp_path: Path) -> None:
    part = _part(1)
    spans.freeze(_file(tmp_path, 1), part)
    assert (spans.catalog.parts, _names(spans), spans.catalog.unapplied) == ([part], [], {1})
    assert spans.complete
    await spans.idle()
    assert (spans.catalog.parts, _names(spans), spans.catalog.unapplied) == (
        [],
        [SpanName(1, 1, 0)],
        set(),
    )


async def test_a_part_of_shared_subjects_makes_its_span_without_the_file(
    spans: Spans, tmp_path: Path
) -> None:
    lane = Lane()
    lane.add(Piece(10, 500, TOPIC_SUBJECT))
    spans.freeze(SealedFile(tmp_path / "nobody reads this", 1), {0: lane})
    await spans.idle()
    with spans.catalog.hold(0) as (span,):
        assert (span.name, span.extents[0].messages) == (SpanName(1, 1, 0), 500)


async def test_files_get_their_spans_in_order_and_spans_are_merged(
    spans: Spans, tmp_path: Path
) -> None:
    for number in range(1, FAN_IN + 3):
        spans.freeze(_file(tmp_path, number), _part(number))
    await spans.idle()
    expected = [
        SpanName(1, FAN_IN, 1),
        SpanName(FAN_IN + 1, FAN_IN + 1, 0),
        SpanName(FAN_IN + 2, FAN_IN + 2, 0),
    ]
    assert _names(spans) == expected
    assert _files(tmp_path) == [str(name) for name in expected]
    assert spans.applied == FAN_IN + 2


async def test_queries_wait_for_files_that_memory_does_not_answer_for(
    spans: Spans, tmp_path: Path
) -> None:
    await spans.open([_file(tmp_path, 1), _file(tmp_path, 2)])
    seen = [spans.complete]
    await spans.completed()
    assert [*seen, spans.complete] == [False, True]
    assert _names(spans) == [SpanName(1, 1, 0), SpanName(2, 2, 0)]


async def test_the_file_of_a_merged_span_stays_while_a_query_holds_it(
    spans: Spans, tmp_path: Path
) -> None:
    for number in range(1, FAN_IN):
        spans.freeze(_file(tmp_path, number), _part(number))
    await spans.idle()
    with spans.catalog.hold(0) as held:
        spans.freeze(_file(tmp_path, FAN_IN), _part(FAN_IN))
        await spans.idle()
        assert _names(spans) == [SpanName(1, FAN_IN, 1)]
        assert [span.greatest(0, b"b") for span in held] == [10 * n + 9 for n in range(1, FAN_IN)]
        assert len(_files(tmp_path)) == FAN_IN
    await spans.idle()
    assert _files(tmp_path) == [str(SpanName(1, FAN_IN, 1))]


async def test_a_mostly_deleted_span_is_rewritten_when_the_index_is_woken(
    spans: Spans, tmp_path: Path, state: State
) -> None:
    spans.freeze(_file(tmp_path, 1), _part(1))
    await spans.idle()
    state.starts[0] = 16
    spans.wake()
    await spans.idle()
    with spans.catalog.hold(0) as (span,):
        assert (span.name, span.extents[0].messages) == (SpanName(1, 1, 1), 4)


async def test_work_that_fails_is_tried_again(
    spans: Spans, tmp_path: Path, child: InlineChild
) -> None:
    for number in range(1, FAN_IN + 1):
        child.failures = 3
        spans.freeze(_file(tmp_path, number), _part(number))
        await spans.idle()
    assert _names(spans) == [SpanName(1, FAN_IN, 1)]


async def test_a_damaged_span_gets_another_name(spans: Spans, tmp_path: Path) -> None:
    spans.freeze(_file(tmp_path, 1), _part(1))
    await spans.idle()
    with spans.catalog.hold(0) as (span,):
        spans.damaged(SpanDamaged(span, "test"))
        spans.damaged(SpanDamaged(span, "reported twice"))
        assert not spans.complete
        await spans.completed()
        assert _names(spans) == [SpanName(1, 1, 1)]
    await spans.idle()
    assert _files(tmp_path) == [str(SpanName(1, 1, 1))]
    assert spans.applied == 2


async def test_damage_found_by_a_merge_is_repaired_and_the_merge_done(
    spans: Spans, tmp_path: Path
) -> None:
    for number in range(1, FAN_IN):
        spans.freeze(_file(tmp_path, number), _part(number))
    await spans.idle()
    (tmp_path / str(SpanName(3, 3, 0))).write_bytes(b"damaged")
    spans.freeze(_file(tmp_path, FAN_IN), _part(FAN_IN))
    await spans.idle()
    assert _names(spans) == [SpanName(1, FAN_IN, 2)]
    with spans.catalog.hold(0) as (span,):
        assert span.extents[0].messages == 10 * FAN_IN


async def test_a_merge_that_loses_a_span_is_given_up_and_done_again(
    spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.subjects.merge.STEP_SECONDS", 0)
    for number in range(1, FAN_IN + 1):
        spans.freeze(_file(tmp_path, number), _part(number))
    while not spans._merging:
        await asyncio.sleep(0)
    spans.damaged(SpanDamaged(spans._merging[2], "test"))
    assert spans._merging == []
    monkeypatch.setattr("penstock.log.subjects.merge.STEP_SECONDS", 1)
    await spans.idle()
    assert _files(tmp_path) == [str(SpanName(1, FAN_IN, 2))]
    with spans.catalog.hold(0) as (span,):
        assert span.extents[0].messages == 10 * FAN_IN


async def test_dropped_files_are_forgotten_wherever_they_are(
    spans: Spans, tmp_path: Path, state: State
) -> None:
    spans.freeze(_file(tmp_path, 1), _part(1))
    await spans.idle()
    spans.freeze(_file(tmp_path, 2), _part(2))
    spans.freeze(_file(tmp_path, 3), _part(3))
    state.starts[0] = 30
    spans.drop({1, 2})
    assert (len(spans.catalog.parts), _names(spans)) == (1, [])
    await spans.idle()
    assert _files(tmp_path) == [str(SpanName(3, 3, 0))]


async def test_dropping_a_file_while_its_span_is_built_is_no_error(
    spans: Spans, tmp_path: Path
) -> None:
    file = _file(tmp_path, 1)
    spans.freeze(file, _part(1))
    await asyncio.sleep(0)
    spans.drop({1})
    file.path.unlink()
    with structlog.testing.capture_logs() as events:
        await spans.idle()
    assert (events, _files(tmp_path)) == ([], [])


async def test_a_span_with_something_live_is_not_dropped(
    spans: Spans, tmp_path: Path, state: State
) -> None:
    spans.freeze(_file(tmp_path, 1), _part(1))
    await spans.idle()
    state.starts[0] = 19
    spans.drop({1})
    assert len(_names(spans)) == 1


@pytest.mark.parametrize("retry_seconds", [0.2])
async def test_queries_fail_when_a_span_cannot_be_built_and_succeed_once_it_is(
    spans: Spans, tmp_path: Path, child: InlineChild
) -> None:
    child.failures = 1
    await spans.open([_file(tmp_path, 1)])
    waiting = asyncio.create_task(spans.completed())
    for attempt in (waiting, spans.completed()):
        with pytest.raises(IndexUnavailable, match="not complete"):
            await asyncio.wait_for(attempt, 5)
    await spans.idle()
    await spans.completed()
    assert _names(spans) == [SpanName(1, 1, 0)]


async def test_a_file_that_has_a_span_is_not_taken_in_again(spans: Spans, tmp_path: Path) -> None:
    file = _file(tmp_path, 1)
    spans.freeze(file, _part(1))
    await spans.idle()
    assert (spans.catalog.covers(1), spans.catalog.covers(2)) == (True, False)
    spans.freeze(file, _part(1))
    assert (spans.catalog.parts, spans.catalog.unapplied) == ([], set())


async def test_closing_ends_the_wait_of_queries(
    tmp_path: Path, state: State, child: InlineChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(child, "call", never)
    spans = Spans(tmp_path, TOPIC_SUBJECT, child, state, in_thread)
    await spans.open([_file(tmp_path, 1)])
    waiting = asyncio.create_task(spans.completed())
    await asyncio.sleep(0.01)
    await spans.close()
    await waiting
    spans.wake()
    await spans.idle()


async def test_a_merge_under_way_is_given_up_on_close(
    spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.subjects.merge.STEP_SECONDS", 0)
    for number in range(1, FAN_IN + 1):
        spans.freeze(_file(tmp_path, number), _part(number))
    while not spans._merging:
        await asyncio.sleep(0)
    await spans.close()
    assert len(_files(tmp_path)) == FAN_IN
    assert [IndexSpan(path).name.edition for path in tmp_path.glob("*.sqlite")] == [0] * FAN_IN
