import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.subjects import Filter
from penstock.wire.jetstream.overlap import collide, first_collision, overlap

SUBJECTS = [
    ".".join(tokens) for length in (1, 2, 3) for tokens in itertools.product("ab", repeat=length)
]
TOKENS = st.lists(st.sampled_from("ab*"), min_size=1, max_size=3)
FILTERS = st.tuples(TOKENS, st.booleans()).map(
    lambda drawn: ".".join([*drawn[0][: 2 if drawn[1] else 3], *([">"] if drawn[1] else [])])
)


@given(FILTERS, FILTERS)
def test_filters_collide_when_a_subject_matches_both(one: str, other: str) -> None:
    both = [
        subject
        for subject in SUBJECTS
        if Filter.parse(one.encode()).matches(subject.encode())
        and Filter.parse(other.encode()).matches(subject.encode())
    ]
    assert collide(one, other) == collide(other, one) == bool(both)


def test_a_wildcard_within_a_token_is_a_literal() -> None:
    assert not collide("a*", "ab")
    assert collide("a*", "a*")


def test_sets_of_filters_overlap_when_two_of_them_do() -> None:
    assert overlap(["x", "a.*"], ["b", "a.b"])
    assert not overlap(["x", "a.*"], ["b", "a.b.c"])
    assert not overlap([], ["a"])


@pytest.mark.parametrize(
    ("subjects", "found"),
    [(["x", "x"], ("x", "x")), (["q.*", "r", "q.a"], ("q.*", "q.a")), (["a", "b"], None)],
)
def test_the_first_collision_is_named(subjects: list[str], found: tuple[str, str] | None) -> None:
    assert first_collision(subjects) == found
