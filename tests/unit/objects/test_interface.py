import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.objects import (
    KeyInvalid,
    ObjectDamaged,
    ObjectExists,
    ObjectMissing,
    ObjectStoreError,
    StoreUnavailable,
)
from penstock.objects.interface import KEY_BYTES_MAX, SEGMENT_BYTES_MAX, check_key, check_prefix


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


@pytest.mark.parametrize(
    "key", ["a", "a/b", "a/..b", "a/.b", "topics/t/n/%2e/data-1.parquet", "é/日本", "n" * 220]
)
def test_a_plain_key_is_allowed(key: str) -> None:
    check_key(key)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "'' is no name between two slashes"),
        ("/a", "'' is no name between two slashes"),
        ("a/", "'' is no name between two slashes"),
        ("a/../b", "'..' is no name between two slashes"),
        ("./a", "'.' is no name between two slashes"),
        ("a\x00", "it has a control character, a backslash or half a character"),
        ("a\\b", "it has a control character, a backslash or half a character"),
        ("\udc80", "it has a control character, a backslash or half a character"),
        ("a/ b", "' b' starts or ends with white space"),
        ("e\u0301", "it is not in Unicode's normal form C"),
        ("a/.penstock-1", "names that start with .penstock- are reserved"),
        ("n" * 221, "a name in it is over 220 bytes"),
        ("é" * 111, "a name in it is over 220 bytes"),
        ("a/" * 448 + "b", "it is longer than 896 bytes"),
    ],
)
def test_a_key_that_breaks_a_rule_is_refused_by_that_rule(key: str, reason: str) -> None:
    with pytest.raises(KeyInvalid) as error:
        check_key(key)
    assert error.value.reason == reason


@given(st.text())
def test_a_key_that_is_accepted_stays_below_the_root_and_within_the_limits(key: str) -> None:
    try:
        check_key(key)
    except KeyInvalid:
        return
    segments = key.split("/")
    assert not {"", ".", ".."}.intersection(segments)
    assert len(key.encode()) <= KEY_BYTES_MAX
    assert max(len(segment.encode()) for segment in segments) <= SEGMENT_BYTES_MAX


@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "a/.", "a/.."])
def test_a_prefix_is_what_a_key_can_start_with(prefix: str) -> None:
    check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["/", "a//", "../", "a/../", "\x00"])
def test_a_prefix_that_no_key_starts_with_is_refused(prefix: str) -> None:
    with pytest.raises(KeyInvalid):
        check_prefix(prefix)
