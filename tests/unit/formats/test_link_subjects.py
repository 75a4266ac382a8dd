import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import link_subjects
from penstock.formats.bodies import LinkBody, LinkPart, ObjectRef
from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange


@given(st.lists(st.binary(max_size=9)), st.integers(0, 3))
def test_subjects_are_read_back_as_they_were_written(subjects: list[bytes], start: int) -> None:
    column = pa.array([*[b"before"] * start, *subjects], pa.binary()).slice(start)
    data = link_subjects.encode(column)
    assert link_subjects.decode(data, len(subjects)).to_pylist() == subjects


def test_subjects_have_these_bytes() -> None:
    data = link_subjects.encode(pa.array([b"a", b"bc"], pa.binary()))
    assert data == bytes.fromhex("00000000 01000000 03000000 616263")


@pytest.mark.parametrize(("data", "rows"), [(b"", 1), (bytes(8), 2), (bytes(9), 1), (b"\1" * 8, 1)])
def test_bytes_that_do_not_add_up_are_refused(data: bytes, rows: int) -> None:
    with pytest.raises(FormatError, match="do not add up"):
        link_subjects.decode(data, rows)


def test_parts_have_their_share_of_the_subjects() -> None:
    parts = [
        LinkPart(0, 5, [ObjectRef("a", 1, 9, 0), ObjectRef("b", 1, 9, 0)]),
        LinkPart(3, 7, [ObjectRef("c", 1, 9, 0)]),
    ]
    extents = [PartitionRange(0, 5, 7), PartitionRange(3, 7, 8)]
    assert list(link_subjects.parts(LinkBody("q", 1, parts))) == [
        (extent, None) for extent in extents
    ]
    subjects = link_subjects.encode(pa.array([b"x", b"y", b"z"], pa.binary()))
    found = [
        (extent, own.to_pylist())
        for extent, own in link_subjects.parts(LinkBody("q", 1, parts, subjects))
        if own is not None
    ]
    assert found == [(extents[0], [b"x", b"y"]), (extents[1], [b"z"])]
