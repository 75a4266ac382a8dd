from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import packed
from penstock.formats.frames import Flag
from penstock.model.columns import Columns
from penstock.model.errors import FormatError


class Messages(NamedTuple):
    """A column each; headers and timestamps may be missing, one subject may stand for all."""

    subjects: bytes | list[bytes]
    payloads: list[bytes]
    headers: list[bytes] | None
    stamps: list[int] | None


@st.composite
def messages(draw: st.DrawFn) -> Messages:
    count = draw(st.sampled_from([1, 2, 3, 33, 40]))
    value = st.binary(max_size=5)
    column = st.lists(value, min_size=count, max_size=count)
    stamps = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=count, max_size=count)
    return Messages(
        draw(st.one_of(value, column)),
        draw(column),
        draw(st.one_of(st.none(), column)),
        draw(st.one_of(st.none(), stamps)),
    )


def binary(values: list[bytes]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


def sliced(values: list[bytes]) -> pa.BinaryArray:
    """A slice of a longer array with these values."""
    return binary([b"before", *values, b"behind"]).slice(1, len(values))


def encoded(columns: Columns, stamps: list[int] | None) -> tuple[int, bytes]:
    times = None if stamps is None else pa.array([0, *stamps], pa.int64()).slice(1)
    flags, pieces = packed.encode(columns, times)
    return flags, b"".join(pieces)


def decoded(flags: int, count: int, body: bytes) -> Messages:
    columns, stamps = packed.decode(flags, count, pa.py_buffer(body))
    arrays = [columns.payload, columns.headers, stamps, columns.subject]
    for array in arrays:
        if isinstance(array, pa.Array):
            array.validate(full=True)
    subject: Any = columns.subject
    return Messages(
        subject if isinstance(subject, bytes) else subject.to_pylist(),
        columns.payload.to_pylist(),
        None if columns.headers is None else columns.headers.to_pylist(),
        None if stamps is None else stamps.to_pylist(),
    )


def by_the_book(given_: Messages) -> tuple[int, bytes]:
    """The flags and the body as docs/formats.md describes them."""
    subjects = [given_.subjects] if isinstance(given_.subjects, bytes) else given_.subjects
    columns = [subjects, *([] if given_.headers is None else [given_.headers]), given_.payloads]
    body = b"".join(stamp.to_bytes(8, "little", signed=True) for stamp in given_.stamps or [])
    for column in columns:
        ends = [sum(map(len, column[:n])) for n in range(len(column) + 1)]
        body += b"".join(end.to_bytes(4, "little") for end in ends)
    for column in columns:
        body += b"".join(column)
    flags = Flag.SAME_SUBJECT if isinstance(given_.subjects, bytes) else 0
    flags |= 0 if given_.headers is None else Flag.HEADERS
    flags |= 0 if given_.stamps is None else Flag.TIMESTAMPS
    return flags, body


@given(messages(), st.booleans())
def test_messages_are_packed_by_the_book_and_read_back(given_: Messages, cut: bool) -> None:
    column = sliced if cut else binary
    columns = Columns(
        given_.subjects if isinstance(given_.subjects, bytes) else column(given_.subjects),
        column(given_.payloads),
        None if given_.headers is None else column(given_.headers),
    )
    flags, body = encoded(columns, given_.stamps)
    assert (flags, body) == by_the_book(given_)
    assert decoded(flags, len(given_.payloads), body) == given_


@given(messages())
def test_lists_are_converted_to_equal_columns(given_: Messages) -> None:
    subjects, payloads, headers, _ = given_
    columns = packed.columns(
        subjects if isinstance(subjects, bytes) else list(subjects),
        list(payloads),
        None if headers is None else list(headers),
    )
    assert columns.subjects().to_pylist() == (
        [subjects] * len(payloads) if isinstance(subjects, bytes) else subjects
    )
    assert columns.payload.to_pylist() == payloads
    assert (columns.headers or binary([b""] * len(payloads))).to_pylist() == (
        headers or [b""] * len(payloads)
    )
    flags, body = encoded(columns, None)
    assert decoded(flags, len(payloads), body)[1] == payloads


def test_one_subject_shared_by_all_is_kept_once_and_empty_headers_not_at_all() -> None:
    columns = packed.columns([b"s", b"s"], [b"1", b"2"], [b"", b""])
    assert (columns.subject, columns.headers) == (b"s", None)


def test_an_array_whose_first_offset_is_not_zero_is_packed_as_its_values() -> None:
    offsets, values = pa.py_buffer(b"\2\0\0\0\4\0\0\0\5\0\0\0"), pa.py_buffer(b"xxabc")
    payload = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, values])
    flags, body = encoded(Columns(b"s", payload), None)
    assert decoded(flags, 2, body).payloads == [b"ab", b"c"]


def test_decoding_copies_nothing() -> None:
    payload = b"p" * 1000
    flags, body = encoded(Columns(b"s", binary([payload])), None)
    buffer = pa.py_buffer(body)
    columns, _ = packed.decode(flags, 1, buffer)
    where = columns.payload.buffers()[2].address
    assert buffer.address <= where < buffer.address + buffer.size


@given(messages())
def test_a_body_that_does_not_add_up_is_refused(given_: Messages) -> None:
    flags, body = by_the_book(given_)
    count = len(given_.payloads)
    for wrong in (body[:-1], body + b"x", b"", body[: len(body) // 2]):
        with pytest.raises(FormatError, match="a packed"):
            packed.decode(flags, count, pa.py_buffer(wrong))
    with pytest.raises(FormatError, match="a packed"):
        packed.decode(flags, count + 1000, pa.py_buffer(body))
