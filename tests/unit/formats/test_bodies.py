from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.formats import bodies
from penstock.formats.bodies import (
    Body,
    DeleteBody,
    EndsBody,
    LinkBody,
    LinkPart,
    ObjectRef,
    SealBody,
    StartBody,
    Transaction,
    offset_ranges,
)
from penstock.formats.frames import Buffer, Codec, FrameHeader, Kind
from penstock.model.errors import FormatError
from penstock.model.units import PartitionRange
from tests.unit.formats import golden

NUMBERS = st.integers(0, (1 << 63) - 1)
PARTITIONS = st.integers(0, (1 << 31) - 1)
REFS = st.builds(
    ObjectRef, st.text(), NUMBERS, NUMBERS, st.integers(0, (1 << 32) - 1), st.none() | st.text()
)
TRANSACTIONS = st.builds(
    Transaction, NUMBERS, st.dictionaries(PARTITIONS, st.tuples(NUMBERS, NUMBERS), max_size=3)
)
BODIES = st.one_of(
    st.builds(DeleteBody, NUMBERS, st.binary(), st.text(), st.binary()),
    st.builds(
        LinkBody,
        st.text(),
        NUMBERS,
        st.lists(st.builds(LinkPart, PARTITIONS, NUMBERS, st.lists(REFS, max_size=3)), max_size=3),
        st.binary(),
    ),
    st.builds(
        StartBody,
        st.text(),
        NUMBERS,
        st.binary(),
        st.binary(),
        st.binary(),
        st.dictionaries(PARTITIONS, st.binary(), max_size=3),
        st.dictionaries(st.text(), TRANSACTIONS, max_size=3),
        st.text(),
        st.text(),
        st.integers(-1, 1 << 60),
        NUMBERS,
    ),
    st.builds(EndsBody, st.binary(), st.binary()),
    st.builds(SealBody, NUMBERS, st.binary()),
)


def decoded_like(body: Body, data: Buffer) -> object:
    kind: Any = type(body)
    return bodies.decode(kind, data)


@given(BODIES)
def test_a_body_is_read_back_as_it_was_written(body: Body) -> None:
    data = bodies.encode(body)
    assert decoded_like(body, data) == body
    assert decoded_like(body, memoryview(data)) == body


@pytest.mark.feature("T02")
@pytest.mark.parametrize(("body", "data"), golden.BODIES, ids=lambda v: type(v).__name__)
def test_a_body_has_these_bytes(body: Body, data: bytes) -> None:
    assert bodies.encode(body) == data
    assert decoded_like(body, data) == body


@pytest.mark.parametrize(("body", "data"), golden.BODIES, ids=lambda v: type(v).__name__)
def test_fields_of_a_later_version_are_ignored(body: Body, data: bytes) -> None:
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(data), "new", 7])
    assert decoded_like(body, later) == body


@pytest.mark.parametrize(("body", "data"), golden.BODIES, ids=lambda v: type(v).__name__)
def test_bytes_of_another_body_are_refused_by_name(body: Body, data: bytes) -> None:
    for wrong in (b"", data[:-1], b"\xc1", b"\x90", b"\xa1x", msgspec.msgpack.encode([None] * 9)):
        with pytest.raises(FormatError, match=f"the body is no {type(body).__name__}"):
            decoded_like(body, wrong)


def test_fields_that_an_older_version_did_not_write_have_their_defaults() -> None:
    start, data = golden.BODIES[2]
    assert isinstance(start, StartBody)
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(data)[:7])
    assert bodies.decode(StartBody, older) == msgspec.structs.replace(start, lineage="")
    deleted = DeleteBody(0, BitMap64([1]).serialize(), "message")
    assert bodies.decode(DeleteBody, golden.FRAMES[4].pieces[0]) == deleted
    link = LinkBody("q", 4, [LinkPart(2, 3, [ObjectRef("k", 1, 9, 5)])])
    assert bodies.decode(LinkBody, golden.FRAMES[3].pieces[0]) == link
    assert msgspec.msgpack.decode(b"\x92\x04\x80", type=Transaction) == Transaction(4, {}, 0)


def test_a_part_of_a_link_counts_the_rows_of_its_objects() -> None:
    assert LinkPart(0, 5, [ObjectRef("a", 3, 9, 0), ObjectRef("b", 4, 9, 0)]).rows == 7


def test_an_object_without_a_version_is_decoded() -> None:
    older = bytes.fromhex("93a17104919302039194a16b010905")
    assert decoded_like(LinkBody("", 0, []), older) == LinkBody(
        "q", 4, [LinkPart(2, 3, [ObjectRef("k", 1, 9, 5, None)])]
    )
    assert LinkPart(0, 5, []).rows == 0


def header(kind: Kind) -> FrameHeader:
    return FrameHeader(1, 0, kind, Codec.NATIVE, 0, 2, 7, 7, 0, 10, 0, 5)


def test_a_batch_has_one_offset_range() -> None:
    assert offset_ranges(header(Kind.BATCH), b"not read") == [PartitionRange(2, 10, 15)]


def test_a_link_has_an_offset_range_for_each_partition() -> None:
    parts = [
        LinkPart(4, 100, [ObjectRef("a", 3, 9, 0), ObjectRef("b", 2, 9, 0)]),
        LinkPart(0, 0, [ObjectRef("c", 1, 9, 0)]),
    ]
    body = bodies.encode(LinkBody("app", 1, parts))
    assert offset_ranges(header(Kind.LINK), body) == [
        PartitionRange(4, 100, 105),
        PartitionRange(0, 0, 1),
    ]


@pytest.mark.parametrize("kind", [Kind.DELETE, Kind.SETTLE, Kind.CHECKPOINT])
def test_other_frames_hold_no_offsets(kind: Kind) -> None:
    assert offset_ranges(header(kind), b"not read") == []


def test_a_link_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(FormatError, match="the body is no Link"):
        offset_ranges(header(Kind.LINK), b"\xc1")
