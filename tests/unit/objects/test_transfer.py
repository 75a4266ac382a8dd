import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.objects.transfer import PARTS_MAX, TransferLimits, part_size, slices


@given(st.lists(st.binary(max_size=20)), st.integers(1, 8))
def test_slices_are_the_same_bytes_none_larger_than_asked(pieces: list[bytes], size: int) -> None:
    cut = list(slices(pieces, size))
    assert b"".join(cut) == b"".join(pieces)
    assert all(0 < len(one) <= size for one in cut)


def test_pieces_are_cut_no_smaller_than_needed() -> None:
    assert list(slices([b"12345", memoryview(b"67"), b""], 3)) == [b"123", b"45", b"67"]


@pytest.mark.parametrize("size", [1, 5 << 20, 5 * PARTS_MAX, 5 * PARTS_MAX + 1, 5 << 40])
def test_there_are_never_more_parts_than_a_store_takes(size: int) -> None:
    part = part_size(size, TransferLimits(part_bytes=5))
    assert part >= 5
    assert -(-size // part) <= PARTS_MAX
