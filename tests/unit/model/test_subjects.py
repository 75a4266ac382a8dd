import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import NameInvalid
from penstock.model.limits import SUBJECT_BYTES_MAX
from penstock.model.subjects import Filter, SubjectMapping, storable_subject, valid_subject

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
def test_a_filter_has_its_literal_prefix_and_a_regular_expression(
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


@pytest.mark.parametrize("subject", [b"a.*", b"a.>", b"a.>.c", b"*", b">", b"a.b"])
def test_an_exact_filter_matches_its_subject_alone_even_with_wildcards(
    subject: bytes,
) -> None:
    exact = Filter.exactly(subject)
    assert exact.literal
    assert not exact.everything
    found = [
        other for other in (b"a.b", b"a.*", b"a.>", b"a.>.c", b"*", b">") if exact.matches(other)
    ]
    assert found == [subject]
    subjects = pa.array([b"a.b", b"a.*", b"a.>", b"a.>.c", b"*", b">"])
    matched = pc.match_substring_regex(subjects, rf"\A(?s:{exact.pattern})\z")
    assert subjects.filter(matched).to_pylist() == [subject]


def test_a_filter_with_wildcards_is_not_equal_to_the_subject_of_the_same_text() -> None:
    assert Filter.parse(b"a.*") != Filter.exactly(b"a.*")
    assert Filter.parse(b"a.b") == Filter.exactly(b"a.b")


def test_a_published_subject_covers_what_its_wildcards_match_where_it_is_a_filter() -> None:
    assert Filter.covering(b"a.*") == Filter.parse(b"a.*")
    assert Filter.covering(b"a.>.c") == Filter.exactly(b"a.>.c")


@pytest.mark.parametrize(
    ("subject", "storable"),
    [
        (b"a.b", True),
        (b"a.*", True),
        (b">", True),
        (b"a.>.c", True),
        (b"a.b*", True),
        (b"", False),
        (b"a.", False),
        (b".a", False),
        (b"a..b", False),
        (b"a b", False),
        (b"a.\x01", False),
        (b"a" * (SUBJECT_BYTES_MAX + 1), False),
    ],
)
def test_wildcards_are_stored_and_malformed_subjects_are_not(
    subject: bytes, storable: bool
) -> None:
    assert storable_subject(subject) is storable


@pytest.mark.parametrize(
    ("source", "destination", "subject", "mapped"),
    [
        (b">", b"copy.>", b"a.b", b"copy.a.b"),
        (b"", b"copy.>", b"a", b"copy.a"),
        (b"a.>", b"b.>", b"a.x.y", b"b.x.y"),
        (b"a.>", b"b.>", b"c.x", None),
        (b"a.*.c", b"x.$1", b"a.b.c", b"x.b"),
        (b"a.*.*", b"x.$2.$1", b"a.b.c", b"x.c.b"),
        (b"a.*.*", b"x.{{wildcard(2)}}.{{Wildcard( 1 )}}", b"a.b.c", b"x.c.b"),
        (b"*.*", b"x.*.y.*", b"a.b", b"x.a.y.b"),
        (b"a.*.>", b"$1.all.>", b"a.b.c.d", b"b.all.c.d"),
        (b"a.b", b"c", b"a.b", b"c"),
        (b"a.b", b"c", b"a", None),
        (b"$KV.a.>", b"$KV.b.>", b"$KV.a.key", b"$KV.b.key"),
    ],
)
def test_matched_tokens_are_inserted_into_the_destination(
    source: bytes, destination: bytes, subject: bytes, mapped: bytes | None
) -> None:
    assert SubjectMapping.parse(source, destination).map(subject) == mapped


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        (b"a.*", b"b.>"),
        (b"a.*", b"b.$2"),
        (b"a", b"b.*"),
        (b"a.>", b"b.>.c"),
        (b"a.*", b"b.{{partition(3,1)}}"),
        (b"a", b""),
        (b"a", b"b..c"),
        (b"a.>.b", b"c"),
        (b"a", b"$1"),
        (b"a", b"$1234"),
    ],
)
def test_an_invalid_mapping_is_refused(source: bytes, destination: bytes) -> None:
    with pytest.raises(NameInvalid):
        SubjectMapping.parse(source, destination)
