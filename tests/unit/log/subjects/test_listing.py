from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.log.subjects.listing import summarise
from tests.unit.formats.test_postings import entries

RUNS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 9)), min_size=1, max_size=20
)


@given(RUNS, st.sets(st.integers(0, 100)), st.integers(0, 100), st.integers(1, 5))
def test_rows_tell_the_live_messages_of_each_subject(
    runs: list[tuple[bytes, int]], deleted: set[int], start: int, limit: int
) -> None:
    pages, truth, offset = [], {}, 0
    for subject, length in runs:
        pages.append(entries([(subject, offset, length)]))
        truth.update(dict.fromkeys(range(offset, offset + length), subject))
        offset += length
    names = sorted(set(truth.values()))[:limit]
    expected = []
    for name in names:
        live = [o for o, n in truth.items() if n == name and o >= start and o not in deleted]
        if live:
            expected.append((name, len(live), max(live)))
    found = summarise(pages, limit, start, BitMap64(deleted) if deleted else None)
    assert found == (expected, names[-1])


def test_nothing_to_list_ends_the_listing() -> None:
    assert summarise([entries([])], 10, 0, None) == ([], None)
