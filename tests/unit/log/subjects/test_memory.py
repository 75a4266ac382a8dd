import asyncio
import gc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.log.subjects import memory as subjects_memory
from penstock.log.subjects.memory import Lane
from penstock.log.subjects.pieces import Piece, Pieces, match_pieces
from penstock.log.subjects.subject_map import SubjectMap
from penstock.model.subjects import Filter
from tests.unit.log.subjects.subject_topic import in_thread


def _lane(subjects: list[bytes]) -> Lane:
    lane = Lane()
    lane.add(Piece(0, len(subjects), pa.array(subjects, pa.binary())))
    return lane


def test_noting_enters_nothing_into_the_dict() -> None:
    lane = _lane([b"n.%d" % n for n in range(1000)])
    assert lane.unindexed == 1000
    assert list(lane.get(b"n.1")) == []
    assert lane.nbytes < 1000 * 20


def test_the_dict_is_entered_in_slices() -> None:
    lane = _lane([b"n.%d" % n for n in range(1000)])
    lane.enter(600)
    assert lane.unindexed == 400
    assert (list(lane.get(b"n.599")), list(lane.get(b"n.600"))) == ([599], [])
    lane.enter(600)
    assert lane.unindexed == 0


def test_a_run_of_one_subject_is_entered_at_once() -> None:
    lane = Lane()
    lane.add(Piece(5, 1_000_000, b"a"))
    lane.enter(1)
    assert (lane.unindexed, len(lane.get(b"a"))) == (0, 1_000_000)


async def test_settling_leaves_the_loop_its_turns() -> None:
    lane = _lane([b"n.%d" % n for n in range(5 * subjects_memory.SLICE_MESSAGES)])
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await lane.settle()
    turning.cancel()
    assert lane.unindexed == 0
    assert turns >= 4


async def test_a_filter_looks_at_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counting(pieces: list[Piece], chosen: Filter) -> Any:
        looked.append(sum(piece.messages for piece in pieces))
        return match_pieces(pieces, chosen)

    monkeypatch.setattr(subjects_memory, "match_pieces", counting)
    lane, chosen = _lane([b"a.b", b"b"] * 10), Filter.parse(b"a.*")
    assert len(await lane.match(chosen, in_thread)) == 10
    lane.add(Piece(20, 2, pa.array([b"a.c", b"a.d"], pa.binary())))
    assert len(await lane.match(chosen, in_thread)) == 12
    assert len(await lane.match(chosen, in_thread)) == 12
    lane.add(Piece(22, 20_000, pa.array([b"a.c", b"b"] * 10_000, pa.binary())))
    assert len(await lane.match(chosen, in_thread)) == 10_012
    assert looked == [20, 2, 0, 20_000]


async def test_cached_filters_are_bounded_and_their_memory_is_counted() -> None:
    lane = _lane([b"n.%d" % n for n in range(1000)])
    before = lane.nbytes
    for number in range(100):
        await lane.match(Filter.parse(b"n.%d" % number), in_thread)
    assert len(lane._matches) == subjects_memory.FILTERS_MAX
    assert 0 < lane.nbytes - before < subjects_memory.FILTERS_MAX * 1000
    assert list(await lane.match(Filter.parse(b"n.0"), in_thread)) == [0]


async def test_pages_stay_sorted_while_subjects_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects_memory, "FRESH_SUBJECTS_MAX", 10)
    monkeypatch.setattr(subjects_memory, "_PAGE_SUBJECTS", 7)
    lane = _lane([b"n.%03d" % n for n in range(0, 100, 2)])
    chosen = Filter.parse(b"n.*")
    page = await lane.page(chosen, b"n.010", 3, in_thread)
    assert page.subjects.to_pylist() == [b"n.012", b"n.014", b"n.016"]
    lane.add(Piece(50, 2, pa.array([b"n.013", b"m.013"], pa.binary())))
    page = await lane.page(chosen, b"n.010", 3, in_thread)
    assert page.subjects.to_pylist() == [b"n.012", b"n.013", b"n.014"]
    assert page.firsts.tolist() == [6, 50, 7]
    lane.add(Piece(52, 40, pa.array([b"n.%03d" % n for n in range(1, 80, 2)], pa.binary())))
    page = await lane.page(chosen, b"", 1000, in_thread)
    assert page.subjects.to_pylist() == [
        b"n.%03d" % n
        for n in range(100)
        for _ in range(2 if n == 13 else 1)
        if n % 2 == 0 or n < 80
    ]
    assert len(await lane.page(Filter.parse(b"z.*"), b"", 5, in_thread)) == 0


SUBJECT = st.sampled_from([b"a", b"b", b"c"])
RUNS = st.lists(
    st.one_of(st.tuples(SUBJECT, st.integers(2, 50)), st.lists(SUBJECT, min_size=1, max_size=50)),
    max_size=20,
)


@given(RUNS, st.sets(st.integers(0, 500)), st.integers(0, 500))
def test_it_has_the_added_offsets(
    runs: list[tuple[bytes, int] | list[bytes]], deleted: set[int], start: int
) -> None:
    mapping, truth, offset = SubjectMap(), dict[bytes, list[int]](), 0
    for run in runs:
        if isinstance(run, tuple):
            mapping.add_range(run[0], offset, offset + run[1])
            subjects = [run[0]] * run[1]
        else:
            mapping.add_each(offset, run)
            subjects = run
        for subject in subjects:
            truth.setdefault(subject, []).append(offset)
            offset += 1
    for subject in (b"a", b"b", b"c", b"d"):
        offsets = truth.get(subject, [])
        assert list(mapping.get(subject)) == offsets
        live = [o for o in offsets if o >= start and o not in deleted]
        assert mapping.last(subject, BitMap64(deleted), start) == max(live, default=None)
        later = [o for o in offsets if o >= start]
        assert mapping.last(subject, None, start) == max(later, default=None)
    assert set(mapping.since([0] * len(mapping.counts()))) == set(truth)


def test_it_returns_the_subjects_added_since() -> None:
    mapping = SubjectMap()
    mapping.add_each(0, [b"%d" % n for n in range(1000)])
    counts = mapping.counts()
    mapping.add_each(1000, [b"%d" % n for n in range(900, 1100)])
    assert sum(counts) == 1000
    assert sorted(mapping.since(counts)) == sorted(b"%d" % n for n in range(1000, 1100))


def test_the_garbage_collector_does_not_look_at_it() -> None:
    mapping = SubjectMap()
    for _ in range(40):
        mapping.add_each(0, [b"%d" % n for n in range(100)])
    mapping.add_range(b"x", 0, 9)
    assert not any(gc.is_tracked(shard) for shard in mapping._shards)


def test_shards_differ_in_size_so_that_they_do_not_grow_together() -> None:
    mapping = SubjectMap()
    mapping.add_each(0, [b"subject.%d" % n for n in range(100_000)])
    counts = sorted(mapping.counts())
    assert 1.5 < counts[-2] / counts[1] < 2.5
    assert counts[-1] < 100_000 / 10


def test_the_memory_estimate_is_about_right() -> None:
    mapping = SubjectMap()
    mapping.add_each(0, [b"subject.%07d" % n for n in range(10_000)])
    assert 100 * 10_000 < mapping.nbytes < 200 * 10_000


SUBJECT = st.sampled_from([b"a.b", b"a.c", b"b"])
RUNS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 5]),
        st.one_of(
            st.tuples(SUBJECT, st.integers(1, 40)),
            st.lists(SUBJECT, min_size=1, max_size=40),
        ),
    ),
    max_size=30,
)
Runs = list[tuple[int, tuple[bytes, int] | list[bytes]]]


def _filled(runs: Runs) -> tuple[Pieces, list[tuple[int, bytes]]]:
    pieces, truth, offset = Pieces(), [], 100
    for gap, run in runs:
        offset += gap
        if isinstance(run, tuple):
            pieces.add(Piece(offset, run[1], run[0]))
            subjects = [run[0]] * run[1]
        else:
            pieces.add(Piece(offset, len(run), pa.array(run, pa.binary())))
            subjects = run
        truth += list(enumerate(subjects, offset))
        offset += len(subjects)
    return pieces, truth


@given(RUNS, st.integers(0, 200))
def test_messages_are_returned_in_order_from_any_number(runs: Runs, number: int) -> None:
    pieces, truth = _filled(runs)
    found = [
        (piece.first + n, subject)
        for piece in pieces.since(number)
        for n, subject in enumerate(piece.subjects())
    ]
    assert found == truth[number:]
    assert pieces.messages == len(truth)
    assert not truth or pieces.next == truth[-1][0] + 1


@given(RUNS, st.sampled_from([b"a.b", b"a.*", b">"]))
def test_matching_pieces_agrees_with_matching_each_message(runs: Runs, text: bytes) -> None:
    pieces, truth = _filled(runs)
    chosen = Filter.parse(text)
    found = match_pieces(pieces.since(0), chosen)
    assert list(found) == [offset for offset, subject in truth if chosen.matches(subject)]


def test_any_number_of_runs_of_one_subject_is_one_piece() -> None:
    pieces = Pieces()
    for first in range(0, 100_000, 100):
        pieces.add(Piece(first, 100, b"a"))
    assert pieces.since(0) == [Piece(0, 100_000, b"a")]
    assert pieces.nbytes < 1000


def test_single_messages_are_gathered() -> None:
    pieces = Pieces()
    for offset in range(10_000):
        pieces.add(Piece(offset, 1, b"n.%d" % offset))
    assert len(pieces.since(0)) < 20
    assert pieces.nbytes < 10_000 * 30


def test_a_column_cut_from_a_frame_does_not_keep_the_frame() -> None:
    frame = pa.py_buffer(bytes(1 << 20))
    offsets = pa.py_buffer(memoryview(pa.array(range(101), pa.int32()).buffers()[1]))
    column = pa.Array.from_buffers(pa.binary(), 100, [None, offsets, frame.slice(4096, 100)])
    pieces = Pieces()
    pieces.add(Piece(0, 100, column))
    stored = pieces.at(0).subject
    assert not isinstance(stored, bytes)
    assert stored.equals(column)
    assert [buffer.parent for buffer in stored.buffers() if buffer is not None] == [None, None]


@given(RUNS)
def test_pieces_are_handed_on_when_all_share_a_subject(runs: Runs) -> None:
    pieces, truth = _filled(runs)
    found = pieces.shared()
    if found is None:
        assert len({subject for _, subject in truth}) > 1
    else:
        pairs = [(p.first + n, s) for p in found for n, s in enumerate(p.subjects())]
        assert pairs == truth
        assert all(isinstance(piece.subject, bytes) for piece in found)


def test_many_pieces_are_not_handed_on() -> None:
    pieces = Pieces()
    for number in range(3000):
        pieces.add(Piece(100 * number, 50, b"a.b"))
    assert pieces.shared() is None
