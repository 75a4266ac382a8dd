import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import NameInvalid
from penstock.model.limits import SUBJECT_BYTES_MAX
from penstock.model.subjects import Filter, valid_subject

TOKENS = st.sampled_from([b"a", b"b", b"ab", b"a*", b">a", b"\xff", b"$1"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
FILTERS = st.builds(
    lambda tokens, tail: b".".join([*tokens, *([b">"] if tail or not tokens else [])]),
    st.lists(st.one_of(TOKENS, st.just(b"*")), max_size=4),
    st.booleans(),
)


def _matches(pattern: list[bytes], subject: list[bytes]) -> bool:
    if pattern[0] == b">":
        return True
    if pattern[0] != b"*" and pattern[0] != subject[0]:
        return False
    if len(pattern) == 1 or len(subject) == 1:
        return len(pattern) == len(subject)
    return _matches(pattern[1:], subject[1:])


@given(FILTERS, SUBJECTS)
def test_a_filter_matches_token_by_token(text: bytes, subject: bytes) -> None:
    chosen = Filter.parse(text)
    expected = _matches(text.split(b"."), subject.split(b"."))
    assert chosen.matches(subject) == expected
    column = pa.array([subject], pa.binary())
    anchored = rf"\A(?s:{chosen.pattern})\z"
    assert pc.match_substring_regex(column, anchored).to_pylist() == [expected]
    assert not expected or subject.startswith(chosen.prefix)


@pytest.mark.parametrize(
    ("text", "literal", "everything", "prefix"),
    [
        (b"a.b", True, False, b"a.b"),
        (b"a*.b>", True, False, b"a*.b>"),
        (b"a.*.c", False, False, b"a."),
        (b"a.b.>", False, False, b"a.b."),
        (b"*", False, False, b""),
        (b">", False, True, b""),
    ],
)
def test_a_filter_tells_what_it_can_be_looked_up_by(
    text: bytes, literal: bool, everything: bool, prefix: bytes
) -> None:
    found = Filter.parse(text)
    assert (found.literal, found.everything, found.prefix) == (literal, everything, prefix)
    assert str(found) == text.decode()


@pytest.mark.parametrize(
    "text",
    [b"", b".", b"a.", b".a", b"a..b", b"a b", b"a\n", b"a\x00", b"\x7f", b">.a", b"a.>.b", b">.>"],
)
def test_a_malformed_filter_is_refused(text: bytes) -> None:
    with pytest.raises(NameInvalid, match="subject filter name"):
        Filter.parse(text)
    assert not valid_subject(text)


def test_subjects_and_filters_have_a_limit() -> None:
    longest = b"a" * SUBJECT_BYTES_MAX
    assert valid_subject(longest)
    assert not valid_subject(longest + b"a")
    assert Filter.parse(longest).literal
    with pytest.raises(NameInvalid, match=f"1 to {SUBJECT_BYTES_MAX} bytes"):
        Filter.parse(longest + b"a")


@pytest.mark.parametrize("subject", [b"*", b">", b"a.*", b"a.>", b"a.*.b"])
def test_a_wildcard_is_no_subject(subject: bytes) -> None:
    assert not valid_subject(subject)


@given(SUBJECTS)
def test_every_subject_is_a_filter_for_itself(subject: bytes) -> None:
    assert valid_subject(subject)
    assert Filter.parse(subject) == Filter.parse(subject)
    assert Filter.parse(subject).matches(subject)
