from pathlib import Path

import pytest

from penstock.formats import bodies
from penstock.formats.bodies import LinkBody, LinkPart, ObjectRef
from penstock.formats.frames import FRAME_HEADER_BYTES, Codec, Kind
from penstock.log.subjects.build import apply, apply_pieces
from penstock.log.subjects.pieces import Piece
from penstock.log.subjects.span import IndexSpan, SpanName
from penstock.log.subjects.span_catalog import SealedFile
from tests.unit.formats.test_postings import Row, rows_of
from tests.unit.log.subjects.subject_topic import (
    TOPIC_SUBJECT,
    batch,
    batch_frame,
    frame,
    write_wal,
)


def _apply(file: SealedFile) -> dict[int, list[Row]]:
    path, sequence, end = file
    name = SpanName(sequence, sequence, 0)
    span = IndexSpan(apply(path.parent, name, path, end, TOPIC_SUBJECT))
    return {p: [row for part in span.blocks(p) for row in rows_of(part)] for p in span.extents}


def test_every_kind_of_batch_is_taken_in(tmp_path: Path) -> None:
    frames = [
        batch_frame(batch(0, 10, [b"b", b"a", b"b", b"b"]), 1),
        batch_frame(batch(0, 14, b"b"), 2),
        batch_frame(batch(3, 0, 1000), 3),
        batch_frame(batch(3, 1000, 500), 4),
        frame(Kind.SETTLE, Codec.NATIVE, 0, 5, [b"whatever"]),
        batch_frame(batch(0, 20, b"a"), 6),
    ]
    assert _apply(write_wal(tmp_path, 7, frames)) == {
        0: [(b"a", 11, 1), (b"a", 20, 1), (b"b", 10, 1), (b"b", 12, 3)],
        3: [(TOPIC_SUBJECT, 0, 1500)],
    }


def test_rows_of_a_link_carry_the_subject_of_the_topic(tmp_path: Path) -> None:
    objects = [ObjectRef("one", 30, 1, 0), ObjectRef("two", 12, 1, 0)]
    link = LinkBody("app", 1, [LinkPart(0, 5, objects), LinkPart(2, 0, objects[:1])])
    frames = [frame(Kind.LINK, Codec.NATIVE, 0, 1, [bodies.encode(link)])]
    assert _apply(write_wal(tmp_path, 1, frames)) == {
        0: [(TOPIC_SUBJECT, 5, 42)],
        2: [(TOPIC_SUBJECT, 0, 30)],
    }


def test_damaged_frames_are_left_out(tmp_path: Path) -> None:
    file = write_wal(
        tmp_path, 1, [batch_frame(batch(0, n, [b"a", b"b"]), n + 1) for n in range(0, 6, 2)]
    )
    data = bytearray(file.path.read_bytes())
    second = data.find(b"ab", data.find(b"ab") + 1)
    data[second] ^= 1
    file.path.write_bytes(data)
    expected = {0: [(b"a", 0, 1), (b"a", 4, 1), (b"b", 1, 1), (b"b", 5, 1)]}
    assert _apply(file) == expected


def test_a_frame_whose_body_does_not_match_its_header_is_left_out(tmp_path: Path) -> None:
    good = batch_frame(batch(0, 0, b"a"), 1)
    bad = frame(Kind.BATCH, Codec.PACKED, 0, 2, [b"nonsense" * 3], 0, 1, 2)
    assert _apply(write_wal(tmp_path, 1, [good, bad])) == {0: [(b"a", 0, 1)]}


def test_a_file_without_a_readable_frame_makes_an_empty_span(tmp_path: Path) -> None:
    file = write_wal(tmp_path, 1, [])
    file.path.write_bytes(bytes(FRAME_HEADER_BYTES * 3))
    assert _apply(file) == {}


def test_bytes_after_the_end_are_not_indexed(tmp_path: Path) -> None:
    frames = [batch_frame(batch(0, n, b"a"), n + 1) for n in range(3)]
    file = write_wal(tmp_path, 1, frames)
    data = file.path.read_bytes()
    assert _apply(file._replace(end=data.find(frames[2]))) == {0: [(b"a", 0, 2)]}


def test_a_missing_file_leaves_no_span(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _apply(SealedFile(tmp_path / "gone", 1))
    assert list(tmp_path.iterdir()) == []


def test_pieces_make_the_span_that_their_file_makes(tmp_path: Path) -> None:
    frames = [
        batch_frame(batch(0, 10, 4), 1),
        batch_frame(batch(0, 14, 6), 2),
        batch_frame(batch(3, 0, 100), 3),
        batch_frame(batch(0, 30, b"b"), 4),
    ]
    pieces = {
        0: [Piece(10, 10, TOPIC_SUBJECT), Piece(30, 1, b"b")],
        3: [Piece(0, 100, TOPIC_SUBJECT)],
    }
    span = IndexSpan(apply_pieces(tmp_path, SpanName(9, 9, 0), pieces))
    rows = {p: [row for part in span.blocks(p) for row in rows_of(part)] for p in span.extents}
    assert rows == _apply(write_wal(tmp_path, 7, frames))
