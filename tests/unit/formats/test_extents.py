import pytest

from penstock.formats import bodies
from penstock.formats.bodies import Link, LinkPart, ObjectRef
from penstock.formats.extents import Extent, extents
from penstock.formats.frames import Codec, FrameHeader, Kind
from penstock.model.errors import FormatError


def header(kind: Kind) -> FrameHeader:
    return FrameHeader(1, 0, kind, Codec.NATIVE, 0, 2, 7, 7, 0, 10, 0, 5)


def test_a_batch_holds_one_stretch_whatever_its_body() -> None:
    assert extents(header(Kind.BATCH), b"not read") == [Extent(2, 10, 15)]


def test_a_link_holds_one_stretch_for_each_of_its_partitions() -> None:
    parts = [
        LinkPart(4, 100, [ObjectRef("a", 3, 9, 0), ObjectRef("b", 2, 9, 0)]),
        LinkPart(0, 0, [ObjectRef("c", 1, 9, 0)]),
    ]
    body = bodies.encode(Link("app", 1, parts))
    assert extents(header(Kind.LINK), body) == [Extent(4, 100, 105), Extent(0, 0, 1)]


@pytest.mark.parametrize("kind", [Kind.DELETE, Kind.SETTLE, Kind.CHECKPOINT])
def test_other_frames_hold_no_offsets(kind: Kind) -> None:
    assert extents(header(kind), b"not read") == []


def test_a_link_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(FormatError, match="the body is no Link"):
        extents(header(Kind.LINK), b"\xc1")
