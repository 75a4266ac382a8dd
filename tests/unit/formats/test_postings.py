import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import postings
from penstock.formats.postings import Postings
from penstock.model.errors import FormatError
from penstock.model.limits import OFFSET_MAX, SUBJECT_BYTES_MAX

ROWS = st.lists(
    st.tuples(st.binary(min_size=1, max_size=6), st.integers(1, 99)), min_size=1, max_size=50
)
Row = tuple[bytes, int, int]


def entries(rows: list[Row]) -> Postings:
    return Postings(
        pa.array([row[0] for row in rows], pa.binary()),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.int64),
    )


def rows_of(found: Postings) -> list[Row]:
    columns = (found.subjects.to_pylist(), found.firsts.tolist(), found.lengths.tolist())
    return list(zip(*columns, strict=True))


def _spread(drawn: list[tuple[bytes, int]], gap: int) -> list[Row]:
    """Entries with increasing offsets, `gap` apart."""
    rows, offset = [], 0
    for subject, length in drawn:
        rows.append((subject, offset, length))
        offset += length + gap
    return rows


@given(ROWS, st.sampled_from([0, 1, 1 << 33]))
def test_a_block_comes_back_as_it_was_written(drawn: list[tuple[bytes, int]], gap: int) -> None:
    rows = sorted(_spread(drawn, gap))
    assert rows_of(postings.decode(postings.encode(entries(rows))).entries()) == rows


def test_the_largest_values_fit() -> None:
    rows = [(b"a" * SUBJECT_BYTES_MAX, 0, 1), (b"b", OFFSET_MAX - 1, 1)]
    assert rows_of(postings.decode(postings.encode(entries(rows))).entries()) == rows


def test_a_slice_of_entries_makes_a_block_of_its_own() -> None:
    rows = [(b"%d" % n, n, 1) for n in range(10)]
    block = postings.decode(postings.encode(entries(rows).slice(3, 7)))
    assert rows_of(block.entries()) == rows[3:7]


@given(ROWS, st.binary(min_size=1, max_size=6))
def test_a_block_finds_the_entries_of_a_subject(
    drawn: list[tuple[bytes, int]], other: bytes
) -> None:
    rows = sorted(_spread(drawn, 1))
    block = postings.decode(postings.encode(entries(rows)))
    for subject in {other, *(row[0] for row in rows)}:
        low, high = block.find(subject)
        assert rows[low:high] == [row for row in rows if row[0] == subject]
        assert rows[:low] == [row for row in rows if row[0] < subject]


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    block = bytearray(postings.encode(entries([(b"a", 1, 1), (b"b", 7, 3)])))
    block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError, match="checksum"):
        postings.decode(bytes(block))


def test_a_block_that_is_cut_short_is_noticed() -> None:
    block = postings.encode(entries([(b"a", 1, 1)]))
    for size in range(len(block)):
        with pytest.raises(FormatError):
            postings.decode(block[:size])


@given(ROWS)
def test_arranging_sorts_and_joins_neighbours_of_a_subject(
    drawn: list[tuple[bytes, int]],
) -> None:
    rows = _spread(drawn, 0)
    shuffled = rows[::-1]
    found = rows_of(postings.arrange(entries(shuffled)))
    assert found == sorted(found)
    offsets = {
        (subject, offset)
        for subject, first, length in rows
        for offset in range(first, first + length)
    }
    assert offsets == {
        (subject, offset)
        for subject, first, length in found
        for offset in range(first, first + length)
    }
    ends = {(subject, first + length) for subject, first, length in found}
    assert not ends.intersection((subject, first) for subject, first, _ in found)


def test_parts_are_put_together_in_order() -> None:
    parts = [entries([(b"b", 1, 1)]), entries([(b"a", 2, 2), (b"c", 4, 1)])]
    assert rows_of(postings.concatenate(parts)) == [(b"b", 1, 1), (b"a", 2, 2), (b"c", 4, 1)]
