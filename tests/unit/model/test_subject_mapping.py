import pytest

from penstock.model.errors import NameInvalid
from penstock.model.subject_mapping import SubjectMapping


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
    ],
)
def test_what_the_source_matched_stands_where_the_destination_says(
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
        (b"a", b"$x"),
    ],
)
def test_a_mapping_that_cannot_be_followed_is_refused(source: bytes, destination: bytes) -> None:
    with pytest.raises(NameInvalid):
        SubjectMapping.parse(source, destination)
