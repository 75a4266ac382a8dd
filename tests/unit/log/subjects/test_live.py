import asyncio
from typing import Any

import pyarrow as pa
import pytest

from penstock.log.subjects import live as subjects_live
from penstock.log.subjects.live import Lane
from penstock.log.subjects.pieces import Piece, match_pieces
from penstock.model.subjects import Filter
from tests.unit.log.subjects.subject_topic import in_thread


def _lane(subjects: list[bytes]) -> Lane:
    lane = Lane()
    lane.add(Piece(0, len(subjects), pa.array(subjects, pa.binary())))
    return lane


def test_noting_enters_nothing_into_the_dict() -> None:
    lane = _lane([b"n.%d" % n for n in range(1000)])
    assert lane.behind == 1000
    assert list(lane.get(b"n.1")) == []
    assert lane.nbytes < 1000 * 20


def test_the_dict_is_entered_in_slices() -> None:
    lane = _lane([b"n.%d" % n for n in range(1000)])
    lane.enter(600)
    assert lane.behind == 400
    assert (list(lane.get(b"n.599")), list(lane.get(b"n.600"))) == ([599], [])
    lane.enter(600)
    assert lane.behind == 0


def test_a_run_of_one_subject_is_entered_at_once() -> None:
    lane = Lane()
    lane.add(Piece(5, 1_000_000, b"a"))
    lane.enter(1)
    assert (lane.behind, len(lane.get(b"a"))) == (0, 1_000_000)


async def test_settling_leaves_the_loop_its_turns() -> None:
    lane = _lane([b"n.%d" % n for n in range(5 * subjects_live.SLICE_MESSAGES)])
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    await lane.settle()
    turning.cancel()
    assert lane.behind == 0
    assert turns >= 4


async def test_a_filter_looks_at_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def counting(pieces: list[Piece], chosen: Filter) -> Any:
        looked.append(sum(piece.messages for piece in pieces))
        return match_pieces(pieces, chosen)

    monkeypatch.setattr(subjects_live, "match_pieces", counting)
    lane, chosen = _lane([b"a.b", b"b"] * 10), Filter.parse(b"a.*")
    assert len(await lane.match(chosen, in_thread)) == 10
    lane.add(Piece(20, 2, pa.array([b"a.c", b"a.d"], pa.binary())))
    assert len(await lane.match(chosen, in_thread)) == 12
    assert len(await lane.match(chosen, in_thread)) == 12
    lane.add(Piece(22, 20_000, pa.array([b"a.c", b"b"] * 10_000, pa.binary())))
    assert len(await lane.match(chosen, in_thread)) == 10_012
    assert looked == [20, 2, 0, 20_000]


async def test_few_filters_are_remembered_and_their_memory_is_told() -> None:
    lane = _lane([b"n.%d" % n for n in range(1000)])
    before = lane.nbytes
    for number in range(100):
        await lane.match(Filter.parse(b"n.%d" % number), in_thread)
    assert len(lane._matches) == subjects_live.FILTERS_MAX
    assert 0 < lane.nbytes - before < subjects_live.FILTERS_MAX * 1000
    assert list(await lane.match(Filter.parse(b"n.0"), in_thread)) == [0]


async def test_pages_stay_sorted_while_subjects_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects_live, "FRESH_SUBJECTS_MAX", 10)
    monkeypatch.setattr(subjects_live, "_PAGE_SUBJECTS", 7)
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
