"""Which job is in which state."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from penstock.ledger.job_column import Column
from penstock.ledger.job_records import Change
from penstock.ledger.job_sets import CHANGED_KEPT, JobSets
from penstock.ledger.job_states import JobRules, JobState, key_of, offset_of

RULES = JobRules(5, 1_000_000)


def sets(jobs: int) -> JobSets:
    job_sets = JobSets(1, 0, RULES, Column("u4"))
    job_sets.offer(0, jobs)
    return job_sets


def test_a_message_is_offered_once() -> None:
    job_sets = sets(5)
    job_sets.apply(Change(1, JobState.DELIVERED, 9, 2))
    job_sets.offer(0, 5)
    job_sets.offer_each([key_of(0, 2), key_of(0, 5)], 6)
    assert list(map(offset_of, job_sets.queued_keys(9))) == [0, 1, 3, 4, 5]


def test_the_offsets_of_the_jobs_in_a_state() -> None:
    job_sets = sets(10)
    job_sets._priorities[7] = 3
    job_sets._queued.discard(key_of(0, 7))
    job_sets._queued.add(key_of(3, 7))
    for offset, state in ((0, JobState.DEAD), (9, JobState.DEAD), (4, JobState.INFLIGHT)):
        job_sets.apply(Change(1, state, 9, offset, 0, 99))
    assert job_sets.span(JobState.QUEUED) == (1, 8)
    assert job_sets.span(JobState.DEAD) == (0, 9)
    assert job_sets.span(JobState.INFLIGHT) == (4, 4)
    assert sets(0).span(JobState.QUEUED) is None
    assert job_sets.floor() == 0


def test_times_of_old_deliveries_are_removed_but_those_of_dead_jobs_are_not() -> None:
    job_sets = sets(CHANGED_KEPT + 5000)
    job_sets.apply(Change(1, JobState.DELIVERED, 77, 10))
    job_sets.apply(Change(1, JobState.DELIVERED, 77, CHANGED_KEPT + 4000))
    job_sets.apply(Change(1, JobState.DEAD, 77, 2000, 3))
    job_sets.state()
    times = [job_sets.facts(offset) for offset in (10, CHANGED_KEPT + 4000, 2000)]
    assert [facts and facts.changed_us for facts in times] == [0, 77, 77]


def test_offsets_without_messages_have_no_job() -> None:
    job_sets = JobSets(1, 5, RULES, Column("u4"))
    job_sets.offer(5, 8)
    assert [job_sets.facts(offset) is None for offset in (4, 5, 7, 8)] == [True, False, False, True]


STATES = st.sampled_from([JobState.QUEUED, JobState.INFLIGHT, JobState.DELIVERED, JobState.DEAD])


@given(
    st.lists(STATES, min_size=20, max_size=20),
    st.integers(0, 25),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 19)),
)
def test_jobs_of_deleted_messages_are_removed_and_not_counted(
    states: list[JobState], start: int, deleted: set[int], holes: set[int]
) -> None:
    job_sets = JobSets(1, 0, RULES, Column("u4"))
    job_sets.offer_each([key_of(0, offset) for offset in range(20) if offset not in holes], 20)
    for offset, state in enumerate(states):
        if offset not in holes and state is not JobState.QUEUED:
            job_sets.apply(Change(1, state, 9, offset, 0, 99))
    job_sets.drop_deleted(start, BitMap64(deleted))
    job_sets.drop_deleted(start, BitMap64(deleted))
    left = {o: states[o] for o in range(start, 20) if o not in deleted | holes}
    numbers = job_sets.counts()
    assert numbers == {state: list(left.values()).count(state) for state in numbers}
    facts = {offset: job_sets.facts(offset) for offset in range(20)}
    assert {offset: fact.state for offset, fact in facts.items() if fact} == left
