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
    made = JobSets(1, 0, RULES, Column("u4"))
    made.offer(0, jobs)
    return made


def test_messages_that_were_offered_already_are_not_offered_again() -> None:
    made = sets(5)
    made.apply(Change(1, JobState.DELIVERED, 9, 2))
    made.offer(0, 5)
    made.offer_each([key_of(0, 2), key_of(0, 5)], 6)
    assert list(map(offset_of, made.queued_keys(9))) == [0, 1, 3, 4, 5]


def test_the_span_of_a_state() -> None:
    made = sets(10)
    made._priorities[7] = 3
    made._queued.discard(key_of(0, 7))
    made._queued.add(key_of(3, 7))
    for offset, state in ((0, JobState.DEAD), (9, JobState.DEAD), (4, JobState.INFLIGHT)):
        made.apply(Change(1, state, 9, offset, 0, 99))
    assert made.span(JobState.QUEUED) == (1, 8)
    assert made.span(JobState.DEAD) == (0, 9)
    assert made.span(JobState.INFLIGHT) == (4, 4)
    assert sets(0).span(JobState.QUEUED) is None
    assert made.floor() == 0


def test_when_long_ago_jobs_were_delivered_is_forgotten_but_not_of_dead_ones() -> None:
    made = sets(CHANGED_KEPT + 5000)
    made.apply(Change(1, JobState.DELIVERED, 77, 10))
    made.apply(Change(1, JobState.DELIVERED, 77, CHANGED_KEPT + 4000))
    made.apply(Change(1, JobState.DEAD, 77, 2000, 3))
    made.state()
    times = [made.facts(offset) for offset in (10, CHANGED_KEPT + 4000, 2000)]
    assert [facts and facts.changed_us for facts in times] == [0, 77, 77]


def test_there_is_no_job_outside_of_what_was_offered() -> None:
    made = JobSets(1, 5, RULES, Column("u4"))
    made.offer(5, 8)
    assert [made.facts(offset) is None for offset in (4, 5, 7, 8)] == [True, False, False, True]


STATES = st.sampled_from([JobState.QUEUED, JobState.INFLIGHT, JobState.DELIVERED, JobState.DEAD])


@given(
    st.lists(STATES, min_size=20, max_size=20),
    st.integers(0, 25),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 19)),
)
def test_jobs_of_lost_messages_are_not_there_and_not_counted(
    states: list[JobState], start: int, deleted: set[int], holes: set[int]
) -> None:
    made = JobSets(1, 0, RULES, Column("u4"))
    made.offer_each([key_of(0, offset) for offset in range(20) if offset not in holes], 20)
    for offset, state in enumerate(states):
        if offset not in holes and state is not JobState.QUEUED:
            made.apply(Change(1, state, 9, offset, 0, 99))
    made.drop_deleted(start, BitMap64(deleted))
    made.drop_deleted(start, BitMap64(deleted))
    left = {o: states[o] for o in range(start, 20) if o not in deleted | holes}
    numbers = made.counts()
    assert numbers == {state: list(left.values()).count(state) for state in numbers}
    facts = {offset: made.facts(offset) for offset in range(20)}
    assert {offset: fact.state for offset, fact in facts.items() if fact} == left
