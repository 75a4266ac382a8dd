import asyncio

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.host.clock import Clock
from penstock.model.units import Nanoseconds
from penstock.objects import READ_BYTES, MemoryStore, ObjectDamaged, ObjectMissing, stored_crc32c
from penstock.objects.transfer import (
    CREDIT_SECONDS,
    PARTS_MAX,
    Bandwidth,
    TokenBucket,
    TransferLimits,
    check_crc32c,
    part_size,
    pieces_crc32c,
    slices,
)


@given(st.lists(st.binary(max_size=20)), st.integers(1, 8))
def test_slices_have_all_bytes_and_at_most_the_given_size(pieces: list[bytes], size: int) -> None:
    cut = list(slices(pieces, size))
    assert b"".join(cut) == b"".join(pieces)
    assert all(0 < len(one) <= size for one in cut)


def test_small_pieces_are_not_cut() -> None:
    assert list(slices([b"12345", memoryview(b"67"), b""], 3)) == [b"123", b"45", b"67"]


@pytest.mark.parametrize("size", [1, 5 << 20, 5 * PARTS_MAX, 5 * PARTS_MAX + 1, 5 << 40])
def test_parts_never_exceed_the_maximum_of_the_store(size: int) -> None:
    part = part_size(size, TransferLimits(part_bytes=5))
    assert part >= 5
    assert -(-size // part) <= PARTS_MAX


SECOND = 1_000_000_000


class FakeClock(Clock):
    """A clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 5 * SECOND

    def monotonic_ns(self) -> Nanoseconds:
        return Nanoseconds(self.now)


def test_the_first_second_is_free_and_later_bytes_wait() -> None:
    bucket = TokenBucket(100, Nanoseconds(0))
    assert bucket.take(100, Nanoseconds(0)) == 0
    assert bucket.take(50, Nanoseconds(0)) == 0.5
    assert bucket.take(50, Nanoseconds(0)) == 1.0
    assert bucket.take(0, Nanoseconds(SECOND)) == 0
    assert bucket.take(10, Nanoseconds(SECOND)) == 0.1


def test_a_pause_earns_no_more_than_one_second() -> None:
    bucket = TokenBucket(100, Nanoseconds(0))
    bucket.take(100, Nanoseconds(0))
    assert bucket.take(101, Nanoseconds(3600 * SECOND)) == 0.01


@pytest.mark.feature("T14")
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 3 * SECOND)), min_size=1))
def test_no_more_bytes_pass_than_the_rate_allows_from_any_start(
    takes: list[tuple[int, int]],
) -> None:
    bucket, now, sent = TokenBucket(1000, Nanoseconds(0)), 0, 0
    for size, pause in takes:
        now += pause
        now += round(bucket.take(size, Nanoseconds(now)) * SECOND)
        sent += size
        assert sent <= 1000 * (now / SECOND + CREDIT_SECONDS) + 0.01


async def test_bytes_wait_for_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    bandwidth = Bandwidth(1000, FakeClock())
    for size in (1000, 500, 0, 250):
        await bandwidth.wait(size)
    assert slept == [0.5, 0.5, 0.75]


async def test_without_a_limit_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "sleep", None)
    await Bandwidth(0, FakeClock()).wait(1 << 40)


def test_how_bytes_are_cut_into_pieces_does_not_change_their_checksum() -> None:
    whole = b"123456789"
    assert pieces_crc32c([whole]) == 0xE3069283
    assert pieces_crc32c([whole[:4], b"", memoryview(whole)[4:]]) == 0xE3069283
    assert pieces_crc32c([]) == 0


@pytest.mark.parametrize("size", [0, 1, READ_BYTES, 2 * READ_BYTES + 5])
async def test_a_stored_object_has_the_checksum_of_what_was_put(size: int) -> None:
    store, body = MemoryStore(), bytes(size)
    await store.put("a", [body])
    assert await stored_crc32c(store, "a", size) == crc32c(body)


async def test_the_checksum_of_a_missing_object_is_an_error() -> None:
    with pytest.raises(ObjectMissing):
        await stored_crc32c(MemoryStore(), "a", 1)


def test_data_passes_if_its_checksum_is_unknown_or_right() -> None:
    assert check_crc32c("a", b"123456789", None) == b"123456789"
    assert check_crc32c("a", b"123456789", 0xE3069283) == b"123456789"
    with pytest.raises(ObjectDamaged) as error:
        check_crc32c("a", b"123456788", 0xE3069283)
    assert error.value.crc32c == 0xE3069283
