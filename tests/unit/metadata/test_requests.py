import pytest

from penstock.metadata.interface import Compare, CompareTarget, DeleteKeys, MetadataRefused, Put
from penstock.metadata.requests import (
    CHUNK_BYTES_MAX,
    REQUEST_BYTES_MAX,
    check_lease,
    check_page,
    check_transaction,
    chunks,
    encode_key,
    encode_prefix,
    fits,
    prefix_end,
    range_start,
)


def test_keys_sort_as_their_bytes_do() -> None:
    assert encode_key("é") == b"\xc3\xa9"
    assert encode_prefix("") == b""


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_a_key_is_text_and_not_empty(key: str) -> None:
    with pytest.raises(MetadataRefused):
        encode_key(key)


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"a", b"b"), (b"/a/", b"/a0"), (b"a\xff", b"b"), (b"a\xff\xff", b"b"), (b"\xff", None)],
)
def test_the_end_of_a_prefix_is_the_first_key_after_it(prefix: bytes, end: bytes | None) -> None:
    assert prefix_end(prefix) == end


def test_everything_has_no_end() -> None:
    assert prefix_end(b"") is None


def test_a_page_starts_at_the_prefix_or_after_the_last_key() -> None:
    assert range_start(b"/a", b"") == b"/a"
    assert range_start(b"/a", b"/") == b"/a"
    assert range_start(b"/a", b"/a/1") == b"/a/1\0"


def test_the_size_of_a_transaction_is_that_of_its_keys_and_values() -> None:
    compares = [Compare("ab", CompareTarget.VALUE, b"xyz"), Compare("ab", CompareTarget.VERSION, 1)]
    changes: list[Put | DeleteKeys] = [
        Put("é", b"1234"),
        DeleteKeys("k"),
        DeleteKeys("prefix", prefix=True),
    ]
    assert check_transaction(compares, changes) == 5 + 10 + 6 + 1 + 6


def test_the_limit_of_a_transaction_is_exact() -> None:
    assert check_transaction([], [Put("k", bytes(REQUEST_BYTES_MAX - 1))]) == REQUEST_BYTES_MAX
    with pytest.raises(MetadataRefused, match=r"request_bytes_max is 1310720"):
        check_transaction([], [Put("k", bytes(REQUEST_BYTES_MAX))])


def test_a_refusal_does_not_repeat_the_value() -> None:
    with pytest.raises(MetadataRefused) as caught:
        check_transaction([Compare("k", CompareTarget.VERSION, b"canary")], [])
    assert str(caught.value) == "version cannot be compared with bytes"


def test_pages_and_leases_have_limits() -> None:
    check_page(1)
    check_lease(1)
    with pytest.raises(MetadataRefused):
        check_page(0)
    with pytest.raises(MetadataRefused):
        check_lease(0)


def test_changes_are_spread_over_transactions_by_number_and_by_size() -> None:
    small = [Put(f"{n:03d}", b"") for n in range(300)]
    assert [len(chunk) for chunk in chunks(small)] == [128, 128, 44]
    assert [len(chunk) for chunk in chunks(small, 250)] == [250, 50]
    assert [put for chunk in chunks(small) for put in chunk] == small
    half, most = bytes(CHUNK_BYTES_MAX - 3), bytes(REQUEST_BYTES_MAX - 3)
    sizes = [Put(f"{n:03d}", value) for n, value in enumerate([b"", half, b"", most, b"", half])]
    assert list(chunks(sizes)) == [[put] for put in sizes]
    assert all(fits([], chunk) for chunk in chunks(sizes))
    assert list(chunks([])) == []


def test_fits_agrees_with_the_check_of_a_transaction() -> None:
    compare = Compare("k", CompareTarget.VERSION, 0)
    for compares, changes in (
        ([compare] * 128, [DeleteKeys(f"{n}") for n in range(128)]),
        ([compare] * 129, []),
        ([], [DeleteKeys(f"{n}") for n in range(129)]),
        ([], [Put("k", bytes(REQUEST_BYTES_MAX - 1))]),
        ([], [Put("k", bytes(REQUEST_BYTES_MAX))]),
        ([compare], [Put("k", bytes(REQUEST_BYTES_MAX - 9))]),
    ):
        try:
            check_transaction(compares, changes)
        except MetadataRefused:
            assert not fits(compares, changes)
        else:
            assert fits(compares, changes)
