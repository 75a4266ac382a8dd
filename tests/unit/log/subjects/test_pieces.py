import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.subjects.pieces import Piece, Pieces, match_pieces
from penstock.model.subjects import Filter

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
def test_messages_come_back_in_order_from_any_number(runs: Runs, number: int) -> None:
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
def test_what_matches_in_pieces_is_what_matches_one_by_one(runs: Runs, text: bytes) -> None:
    pieces, truth = _filled(runs)
    chosen = Filter.parse(text)
    found = match_pieces(pieces.since(0), chosen)
    assert list(found) == [offset for offset, subject in truth if chosen.matches(subject)]


def test_runs_of_one_subject_are_one_piece_however_many_there_are() -> None:
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
    kept = pieces.at(0).subject
    assert not isinstance(kept, bytes)
    assert kept.equals(column)
    assert [buffer.parent for buffer in kept.buffers() if buffer is not None] == [None, None]


@given(RUNS)
def test_pieces_are_handed_on_when_all_share_a_subject(runs: Runs) -> None:
    pieces, truth = _filled(runs)
    found = pieces.shared()
    if found is None:
        assert len({subject for _, subject in truth}) > 1
    else:
        told = [(p.first + n, s) for p in found for n, s in enumerate(p.subjects())]
        assert told == truth
        assert all(isinstance(piece.subject, bytes) for piece in found)


def test_many_pieces_are_not_handed_on() -> None:
    pieces = Pieces()
    for number in range(3000):
        pieces.add(Piece(100 * number, 50, b"a.b"))
    assert pieces.shared() is None
