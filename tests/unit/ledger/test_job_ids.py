"""Ids of jobs and messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ledger.job_ids import JobPlace, job_id, job_place, message_id, message_offset

PLACES = st.builds(JobPlace, st.integers(0, 2**32 - 1), st.integers(0, 2**44 - 1))


@given(PLACES, st.binary(min_size=1))
def test_an_id_leads_back_to_its_job(place: JobPlace, key: bytes) -> None:
    id_ = job_id(key, place)
    assert len(id_) == 30
    assert job_place(key, id_) == place
    assert job_place(key + b"x", id_) is None


@given(st.integers(0, 2**44 - 1))
def test_an_id_leads_back_to_its_message(offset: int) -> None:
    id_ = message_id(b"key", offset)
    assert len(id_) == 24
    assert message_offset(b"key", id_) == offset
    assert message_offset(b"other", id_) is None


@pytest.mark.feature("C16")
@given(st.text())
def test_no_other_text_is_an_id(text: str) -> None:
    assert job_place(b"key", text) is None
    assert message_offset(b"key", text) is None


@pytest.mark.feature("C16")
def test_a_job_has_one_id_and_changing_any_character_of_it_leads_nowhere() -> None:
    id_ = job_id(b"key", JobPlace(1, 2))
    others = [id_[:n] + ("0" if id_[n] != "0" else "1") + id_[n + 1 :] for n in range(30)]
    assert [job_place(b"key", other) for other in others] == [None] * len(id_)
    for other in (id_.upper(), id_ + "=", id_ + " ", " " + id_, id_ + "00", id_[:-2]):
        assert job_place(b"key", other) is None
