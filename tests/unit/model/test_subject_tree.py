"""Lookups in subject trees agree with `Filter`."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.subject_tree import SubjectTree, has_wildcards, pattern_matches
from penstock.model.subjects import Filter
from penstock.wire.jetstream.overlap import collide

TOKENS = st.sampled_from([b"a", b"b", b"c", b"a*", b">a"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)


@st.composite
def patterns(draw: st.DrawFn) -> bytes:
    tokens = draw(st.lists(st.one_of(TOKENS, st.just(b"*")), max_size=3))
    tail = draw(st.lists(st.sampled_from([b">", b"a", b"*"]), min_size=not tokens, max_size=1))
    return b".".join([*tokens, *tail])


@pytest.mark.feature("P01")
@given(st.lists(patterns(), max_size=12), st.lists(SUBJECTS, min_size=1, max_size=4), st.data())
def test_a_subject_finds_every_pattern_that_matches_and_no_other(
    added: list[bytes], subjects: list[bytes], data: st.DataObject
) -> None:
    tree: SubjectTree[int] = SubjectTree()
    for number, pattern in enumerate(added):
        tree.add(pattern, number)
    gone = data.draw(st.sets(st.sampled_from(range(len(added))))) if added else set()
    for number in gone:
        tree.remove(added[number], number)
    left = {number: text for number, text in enumerate(added) if number not in gone}
    for subject in subjects:
        matching = {n for n, text in left.items() if Filter.parse(text).matches(subject)}
        found = tree.find(subject)
        assert (
            set(found)
            == matching
            == {n for n, text in left.items() if pattern_matches(text, subject)}
        )
        assert len(found) == len(matching)
        assert tree.has_literal(subject) == any(text == subject for text in left.values())


@given(st.lists(patterns(), max_size=12), patterns())
def test_patterns_collide_that_have_a_subject_in_common(added: list[bytes], one: bytes) -> None:
    tree: SubjectTree[int] = SubjectTree()
    for number, pattern in enumerate(added):
        tree.add(pattern, number)
    both = [n for n, text in enumerate(added) if collide(one.decode(), text.decode())]
    assert sorted(tree.colliding(one)) == both


@given(
    st.lists(st.one_of(patterns(), st.sampled_from([b"r.a.*", b"r.*.*", b"r.>"])), max_size=6),
    st.one_of(
        st.lists(SUBJECTS, min_size=1, max_size=4),
        st.lists(TOKENS.map(b"r.a.%b".__mod__), min_size=1, max_size=4),
    ),
)
def test_items_found_for_many_subjects_together_are_found_for_each_of_them(
    added: list[bytes], subjects: list[bytes]
) -> None:
    tree: SubjectTree[int] = SubjectTree()
    for number, pattern in enumerate(added):
        tree.add(pattern, number)
    found = tree.find_same(subjects)
    if found is not None:
        assert all(sorted(tree.find(subject)) == sorted(found) for subject in subjects)


@pytest.mark.parametrize(
    ("added", "subjects", "found"),
    [
        ([b"r.a.*"], [b"r.a.1", b"r.a.2"], ["r.a.*"]),
        ([b"r.a.*", b"r.b.*", b"s"], [b"r.a.1", b"r.a.2"], ["r.a.*"]),
        ([b"r.>"], [b"r.a.1", b"r.a.2"], ["r.>"]),
        ([b"r.a.*", b"r.>"], [b"r.a.1", b"r.a.2"], ["r.>", "r.a.*"]),
        ([], [b"r.a.1", b"r.a.2"], []),
        ([b"r.a.*", b"r.a.2"], [b"r.a.1", b"r.a.2"], None),
        ([b"r.a.*", b"r.*.2"], [b"r.a.1", b"r.a.2"], None),
        ([b"r.a.*"], [b"r.a.1", b"r.b.2"], None),
        ([b"r.a.*"], [b"r.a.1", b"r.a.2.3"], None),
        ([b"r.a.*"], [b"r.a.1", b"r.a."], None),
        ([b"*"], [b"a", b"b"], None),
    ],
)
def test_many_subjects_are_looked_up_as_one(
    added: list[bytes], subjects: list[bytes], found: list[str] | None
) -> None:
    tree: SubjectTree[str] = SubjectTree()
    for pattern in added:
        tree.add(pattern, pattern.decode())
    same_items = tree.find_same(subjects)
    assert (None if same_items is None else sorted(same_items)) == found


def test_a_removed_pattern_leaves_no_nodes() -> None:
    tree: SubjectTree[str] = SubjectTree()
    for pattern in (b"a.b.c", b"a.*.c", b"a.>", b">"):
        tree.add(pattern, "x")
        tree.add(pattern, "y")
    for pattern in (b"a.b.c", b"a.*.c", b"a.>", b">"):
        tree.remove(pattern, "x")
        tree.remove(pattern, "y")
    assert not tree._literal
    assert not tree._wild.children


@pytest.mark.parametrize("pattern", [b"a", b"a.*", b"b.*", b"a.b"])
def test_an_item_that_was_not_added_cannot_be_removed(pattern: bytes) -> None:
    tree: SubjectTree[str] = SubjectTree()
    tree.add(b"a", "x")
    tree.add(b"a.*", "x")
    with pytest.raises(KeyError):
        tree.remove(pattern, "y")
    assert tree.find(b"a.c") == ["x"]


def test_items_of_literal_patterns_come_first() -> None:
    tree: SubjectTree[str] = SubjectTree()
    tree.add(b">", "all")
    tree.add(b"a", "exact")
    assert tree.find(b"a") == ["exact", "all"]


@pytest.mark.feature("P01")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(b"a", False), (b"a.*", True), (b"*", True), (b">", True), (b"a*", False), (b"a>.b", False)],
)
def test_a_wildcard_is_a_token_of_its_own(pattern: bytes, expected: bool) -> None:
    assert has_wildcards(pattern) is expected


@pytest.mark.feature("P01")
@pytest.mark.parametrize("subject", [b"a..b", b"a.", b".a", b""])
def test_no_wildcard_matches_an_empty_token(subject: bytes) -> None:
    tree: SubjectTree[str] = SubjectTree()
    for pattern in (b">", b"a.>", b"a.*", b"a.*.b", b"*.a", b"*"):
        tree.add(pattern, "x")
        assert not pattern_matches(pattern, subject)
    assert tree.find(subject) == []


@pytest.mark.feature("P01")
def test_a_published_wildcard_token_matches_wildcards_only() -> None:
    tree: SubjectTree[str] = SubjectTree()
    for pattern in (b"a.*", b"a.>", b"a.b"):
        tree.add(pattern, pattern.decode())
    assert sorted(tree.find(b"a.*")) == ["a.*", "a.>"]
    assert sorted(tree.find(b"a.>")) == ["a.*", "a.>"]


@given(
    st.lists(patterns(), max_size=8),
    st.lists(TOKENS, max_size=3),
    st.lists(st.one_of(TOKENS, st.sampled_from([b"x", b"y", b"", b"a.b"])), min_size=1, max_size=4),
    st.booleans(),
)
@example([b"*.x"], [b"a"], [b"x", b"y"], False)
@example([b"*.*"], [b"a"], [b"x", b""], False)
def test_items_found_for_subjects_of_one_prefix_are_found_for_each_of_them(
    added: list[bytes], start: list[bytes], ends: list[bytes], odd: bool
) -> None:
    tree: SubjectTree[int] = SubjectTree()
    for number, pattern in enumerate(added):
        tree.add(pattern, number)
    subjects = [b".".join([*start, end]) for end in ends] + ([b"odd.one"] if odd else [])
    found = tree.find_same(subjects)
    if found is not None:
        assert [set(tree.find(subject)) for subject in subjects] == [set(found)] * len(subjects)


def test_many_inboxes_of_one_client_are_found_at_once() -> None:
    tree: SubjectTree[str] = SubjectTree()
    tree.add(b"_INBOX.a.*", "a")
    tree.add(b"_INBOX.b.*", "b")
    tree.add(b"other", "other")
    assert tree.find_same([b"_INBOX.a.1", b"_INBOX.a.22", b"_INBOX.a.1"]) == ["a"]
    assert tree.find_same([b"_INBOX.c.1", b"_INBOX.c.2"]) == []
    for subjects in ([b"_INBOX.a.1", b"_INBOX.b.1"], [b"x"], [b"_INBOX.a.1", b"_INBOX.a.1.2"]):
        assert tree.find_same(subjects) is None
    tree.add(b"_INBOX.a.22", "exact")
    assert tree.find_same([b"_INBOX.a.1", b"_INBOX.a.22"]) is None


def test_items_that_match_only_a_part_of_many_subjects_are_not_found_for_all() -> None:
    tree: SubjectTree[str] = SubjectTree()
    tree.add(b"*.x", "x")
    assert tree.find_same([b"a.x", b"a.y"]) is None
