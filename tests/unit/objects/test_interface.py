import pytest

from penstock.model.errors import PenstockError
from penstock.objects.interface import (
    KeyInvalid,
    ObjectDamaged,
    ObjectExists,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ObjectStoreError("a/b", "no"), "object a/b: no"),
        (ObjectMissing("a/b"), "object a/b: there is no such object"),
        (ObjectExists("a/b"), "object a/b: the name is taken by an object with other bytes"),
        (
            ObjectDamaged("a/b", 0x1234, 0xABCDEF01),
            "object a/b: its bytes have the CRC32C abcdef01 instead of 00001234",
        ),
        (StoreUnavailable("a/b", "503: SlowDown"), "object a/b: 503: SlowDown"),
        (KeyInvalid("'../x'", "'..' is no name"), "object '../x': '..' is no name"),
    ],
)
def test_every_error_says_which_object_and_why(error: ObjectStoreError, sentence: str) -> None:
    assert str(error) == sentence
    assert sentence == f"object {error.key}: {error.reason}"
    assert isinstance(error, PenstockError)
