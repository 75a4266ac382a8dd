"""Ids of jobs and messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.job_ids import (
    ENDPOINTS_MAX,
    JobPlace,
    job_id,
    job_place,
    message_id,
    message_offset,
    random_id,
)

OFFSETS = st.integers(0, 2**44 - 1)
PLACES = st.builds(JobPlace, st.integers(1, ENDPOINTS_MAX), OFFSETS)
TIMES_US = st.integers(0, (2**32 - 1) * 1_000_000)
KEYS = st.binary(min_size=1)
T0_US = 1_700_000_000_000_000
ALPHABET = "0123456789abcdefghijklmnopqrstuv"


def xid_bytes(text: str) -> bytes:
    """Decodes an id as github.com/rs/xid does, with the checks of its UnmarshalText."""
    assert len(text) == 20
    value = 0
    for character in text:
        value = value << 5 | ALPHABET.index(character)
    assert value % 16 == 0, "the last character carries one bit"
    return (value >> 4).to_bytes(12, "big")


@given(PLACES, TIMES_US, KEYS)
def test_a_job_id_decodes_to_its_job(place: JobPlace, time_us: int, key: bytes) -> None:
    id_ = job_id(key, place, time_us)
    data = xid_bytes(id_)
    assert int.from_bytes(data[:4], "big") == time_us // 1_000_000
    assert job_place(key, id_) == place


@given(OFFSETS, TIMES_US, KEYS)
def test_a_message_id_decodes_to_its_offset(offset: int, time_us: int, key: bytes) -> None:
    id_ = message_id(key, offset, time_us)
    assert int.from_bytes(xid_bytes(id_)[:4], "big") == time_us // 1_000_000
    assert message_offset(key, id_) == offset


def test_a_random_id_is_an_xid_of_its_time() -> None:
    assert xid_bytes(random_id(T0_US, b"12345678")) == b"\x65\x53\xf1\x0012345678"


@given(st.lists(st.tuples(TIMES_US, OFFSETS), min_size=2, max_size=2, unique=True))
def test_ids_sort_by_second_then_by_offset(places: list[tuple[int, int]]) -> None:
    ordered = sorted((time_us // 1_000_000, offset, time_us) for time_us, offset in places)
    ids = [message_id(b"key", offset, time_us) for _, offset, time_us in ordered]
    assert ids == sorted(ids)
    jobs = [job_id(b"key", JobPlace(1, offset), time_us) for _, offset, time_us in ordered]
    assert jobs == sorted(jobs)


@given(st.lists(PLACES, min_size=2, max_size=20, unique=True), KEYS)
def test_no_two_jobs_share_an_id(places: list[JobPlace], key: bytes) -> None:
    assert len({job_id(key, place, T0_US) for place in places}) == len(places)


@pytest.mark.feature("C16")
def test_an_id_of_another_channel_is_not_decoded() -> None:
    ids = [job_id(b"theirs", JobPlace(1, n), T0_US) for n in range(200)]
    assert not [place for id_ in ids if (place := job_place(b"ours", id_)) and place.endpoint <= 9]
    ids = [message_id(b"theirs", n, T0_US) for n in range(200)]
    assert [message_offset(b"ours", id_) for id_ in ids] == [None] * 200


@pytest.mark.feature("C16")
@given(st.text())
def test_text_of_neither_format_is_refused(text: str) -> None:
    assert job_place(b"key", text) is None
    assert message_offset(b"key", text) is None


@pytest.mark.feature("C16")
def test_a_forged_id_never_decodes_to_another_job_of_the_endpoint() -> None:
    id_ = job_id(b"key", JobPlace(1, 2), T0_US)
    for n in range(20):
        for character in set(ALPHABET) - {id_[n]}:
            place = job_place(b"key", id_[:n] + character + id_[n + 1 :])
            assert place is None or place.endpoint != 1
    for other in (id_.upper(), id_ + "=", id_ + " ", " " + id_, id_ + "00", id_[:-2]):
        assert job_place(b"key", other) is None


@pytest.mark.feature("C16")
def test_ids_of_the_hexadecimal_format_are_decoded() -> None:
    assert job_place(b"key", "000000010000000000028ca8d81cd4") == JobPlace(1, 2)
    assert message_offset(b"key", "00000000000201f87613860a") == 2
    for wrong in ("000000010000000000038ca8d81cd4", "000000010000000000028CA8D81CD4"):
        assert job_place(b"key", wrong) is None
    for wrong in ("00000000000301f87613860a", "00000000000201F87613860A"):
        assert message_offset(b"key", wrong) is None


def test_an_endpoint_number_above_the_limit_has_hexadecimal_ids() -> None:
    place = JobPlace(ENDPOINTS_MAX + 1, 7)
    id_ = job_id(b"key", place, T0_US)
    assert len(id_) == 30
    assert job_place(b"key", id_) == place
