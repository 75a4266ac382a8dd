"""Secrets at rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.channels.sealing import MARK, Sealing
from penstock.model.errors import FormatError

pytestmark = pytest.mark.feature("C17")


@given(st.text())
def test_a_sealed_text_is_restored_with_its_key_only(text: str) -> None:
    sealing = Sealing("key")
    sealed = sealing.seal(text)
    assert sealed.startswith(MARK)
    assert sealing.unseal(sealed) == text
    assert sealing.seal(text) != sealed
    for other in (Sealing("other"), Sealing()):
        with pytest.raises(FormatError, match=r"channels\.sealing_key"):
            other.unseal(sealed)


def test_without_a_key_texts_stay_as_they_are() -> None:
    assert Sealing().seal("token") == "token"
    assert Sealing("key").unseal("token") == "token"


def test_a_sealed_text_that_was_changed_is_refused() -> None:
    sealed = Sealing("key").seal("token")
    for changed in (sealed[:-2] + "AA", MARK, MARK + "%%", sealed[:-4]):
        with pytest.raises(FormatError):
            Sealing("key").unseal(changed)
