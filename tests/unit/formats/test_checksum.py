from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import checksum


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_checksum_of_a_whole_follows_from_those_of_its_parts(
    first: bytes, second: bytes
) -> None:
    whole = checksum.joined(crc32c(first), crc32c(second), len(second))
    assert whole == crc32c(first + second)


def test_parts_may_be_as_large_as_the_body_of_a_frame() -> None:
    size = (1 << 24) + 12_345
    second = bytes(range(256)) * (size // 256 + 1)
    assert checksum.joined(crc32c(b"first"), crc32c(second), len(second)) == crc32c(
        second, crc32c(b"first")
    )
