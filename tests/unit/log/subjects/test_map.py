import gc

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.log.subjects.map import SubjectMap

SUBJECT = st.sampled_from([b"a", b"b", b"c"])
RUNS = st.lists(
    st.one_of(st.tuples(SUBJECT, st.integers(2, 50)), st.lists(SUBJECT, min_size=1, max_size=50)),
    max_size=20,
)


@given(RUNS, st.sets(st.integers(0, 500)), st.integers(0, 500))
def test_it_holds_what_was_added(
    runs: list[tuple[bytes, int] | list[bytes]], deleted: set[int], start: int
) -> None:
    mapping, truth, offset = SubjectMap(), dict[bytes, list[int]](), 0
    for run in runs:
        if isinstance(run, tuple):
            mapping.add_range(run[0], offset, offset + run[1])
            subjects = [run[0]] * run[1]
        else:
            mapping.add_each(offset, run)
            subjects = run
        for subject in subjects:
            truth.setdefault(subject, []).append(offset)
            offset += 1
    for subject in (b"a", b"b", b"c", b"d"):
        offsets = truth.get(subject, [])
        assert list(mapping.get(subject)) == offsets
        live = [o for o in offsets if o >= start and o not in deleted]
        assert mapping.last(subject, BitMap64(deleted), start) == max(live, default=None)
        later = [o for o in offsets if o >= start]
        assert mapping.last(subject, None, start) == max(later, default=None)
    assert set(mapping.since([0] * len(mapping.counts()))) == set(truth)


def test_it_tells_the_subjects_that_came_since() -> None:
    mapping = SubjectMap()
    mapping.add_each(0, [b"%d" % n for n in range(1000)])
    counts = mapping.counts()
    mapping.add_each(1000, [b"%d" % n for n in range(900, 1100)])
    assert sum(counts) == 1000
    assert sorted(mapping.since(counts)) == sorted(b"%d" % n for n in range(1000, 1100))


def test_the_garbage_collector_does_not_look_at_it() -> None:
    mapping = SubjectMap()
    for _ in range(40):
        mapping.add_each(0, [b"%d" % n for n in range(100)])
    mapping.add_range(b"x", 0, 9)
    assert not any(gc.is_tracked(shard) for shard in mapping._shards)


def test_shards_differ_in_size_so_that_they_do_not_grow_together() -> None:
    mapping = SubjectMap()
    mapping.add_each(0, [b"subject.%d" % n for n in range(100_000)])
    counts = sorted(mapping.counts())
    assert 1.5 < counts[-2] / counts[1] < 2.5
    assert counts[-1] < 100_000 / 10


def test_memory_is_told_about_right() -> None:
    mapping = SubjectMap()
    mapping.add_each(0, [b"subject.%07d" % n for n in range(10_000)])
    assert 100 * 10_000 < mapping.nbytes < 200 * 10_000
