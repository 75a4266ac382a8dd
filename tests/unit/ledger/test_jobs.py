"""The full table of transitions, time, retries, dead letters, and a model beside the ledger."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyroaring import BitMap64

from penstock.ledger import job_records
from penstock.ledger.job_column import Column
from penstock.ledger.job_records import Change, JobSnapshot, Start
from penstock.ledger.job_states import JobRules, JobState, Refusal, key_of, offset_of
from penstock.ledger.jobs import JobLedger
from tests.unit.ledger.job_model import Job, Model

RULES = JobRules(retries_max=2, timeout_us=3_250_000)
NOW = 1_700_000_000_000_000
STATES = ("QUEUED", "INFLIGHT", "DELIVERED", "DEAD")


def ledger(jobs: int = 1, rules: JobRules = RULES) -> JobLedger:
    made = JobLedger(7, 0, rules, Column("u4"))
    made.offer(0, jobs)
    return made


def state_of(jobs: JobLedger, offset: int = 0) -> str:
    facts = jobs.facts(offset)
    assert facts is not None
    return facts.state.name


def brought_to(state: str) -> JobLedger:
    jobs = ledger()
    path = {"QUEUED": [], "INFLIGHT": ["INFLIGHT"], "DEAD": ["INFLIGHT", "DEAD"]}
    for step in path.get(state, ["INFLIGHT", "DELIVERED"]):
        assert isinstance(jobs.change_state(0, step, 0, None, NOW), Change)
    assert state_of(jobs) == state
    return jobs


@pytest.mark.feature("C08")
@pytest.mark.parametrize("requested", [*STATES, "inflight", "", "NONSENSE"])
@pytest.mark.parametrize("state", STATES)
def test_only_the_transitions_of_the_table_are_allowed(state: str, requested: str) -> None:
    jobs = brought_to(state)
    before = jobs.facts(0)
    answer = jobs.change_state(0, requested, 0, None, NOW + 1)
    allowed = {
        ("QUEUED", "INFLIGHT"),
        ("INFLIGHT", "DELIVERED"),
        ("INFLIGHT", "DEAD"),
        ("DEAD", "INFLIGHT"),
    }
    if state == requested:
        assert answer is None
        assert jobs.facts(0) == before
    elif (state, requested) in allowed:
        assert isinstance(answer, Change)
        assert state_of(jobs) == requested
    else:
        assert answer is Refusal.TRANSITION
        assert jobs.facts(0) == before


@pytest.mark.feature("C09")
@pytest.mark.parametrize("requested", [*STATES, "NONSENSE"])
@pytest.mark.parametrize("state", STATES)
def test_a_timeout_is_accepted_only_with_a_transition_to_inflight(
    state: str, requested: str
) -> None:
    jobs = brought_to(state)
    answer = jobs.change_state(0, requested, 10, None, NOW + 1)
    if requested == "INFLIGHT" and state in ("QUEUED", "DEAD"):
        assert isinstance(answer, Change)
        facts = jobs.facts(0)
        assert facts is not None
        assert facts.incremental_seconds == 10
    elif requested == "INFLIGHT" and state == "DELIVERED":
        assert answer is Refusal.TRANSITION
    else:
        assert answer is Refusal.TIMEOUT


@pytest.mark.feature("C10")
def test_a_job_has_one_attempt_more_than_retries() -> None:
    jobs, now, attempts = ledger(), NOW, 0
    while state_of(jobs) == "QUEUED":
        assert isinstance(jobs.change_state(0, "INFLIGHT", 0, None, now), Change)
        attempts += 1
        now += RULES.timeout_us
        jobs.tick(now)
    assert (state_of(jobs), attempts) == ("DEAD", RULES.retries_max + 1)


@pytest.mark.feature("C10")
def test_a_job_times_out_after_its_requested_time() -> None:
    jobs = ledger()
    jobs.change_state(0, "INFLIGHT", 5, None, NOW)
    deadline = NOW + RULES.timeout_us + 5_000_000
    assert jobs.next_us() == deadline
    assert jobs.tick(deadline - 1) == []
    assert state_of(jobs) == "INFLIGHT"
    (change,) = jobs.tick(deadline)
    assert (change.state, change.retries) == (JobState.QUEUED, 1)
    jobs.change_state(0, "INFLIGHT", 0, None, deadline)
    assert jobs.next_us() == deadline + RULES.timeout_us


@pytest.mark.feature("C11")
def test_reviving_a_dead_job_counts_as_a_retry() -> None:
    jobs = ledger(rules=JobRules(0, 1_000_000))
    jobs.change_state(0, "INFLIGHT", 0, None, NOW)
    jobs.tick(NOW + 1_000_000)
    assert jobs.facts(0) == (JobState.DEAD, NOW + 1_000_000, 0, 0)
    revived = jobs.change_state(0, "INFLIGHT", 0, None, NOW + 2_000_000)
    assert isinstance(revived, Change)
    assert revived.retries == 1
    jobs.tick(NOW + 3_000_000)
    assert state_of(jobs) == "DEAD"


@pytest.mark.feature("C07")
def test_queued_jobs_are_in_order_of_priority_then_age() -> None:
    priorities = Column("u4")
    jobs = JobLedger(1, 0, RULES, priorities)
    given = [0, 5, 0, 9, 5, 0]
    for offset, priority in enumerate(given):
        priorities[offset] = priority
    jobs.offer_each([key_of(p, o) for o, p in enumerate(given)], len(given))
    assert list(map(offset_of, jobs.queued_keys(100))) == [3, 1, 4, 0, 2, 5]
    first = jobs.queued_keys(2)
    assert list(map(offset_of, jobs.queued_keys(2, after=first[-1]))) == [4, 0]


@pytest.mark.feature("C20")
def test_a_late_ack_is_refused_after_another_claim() -> None:
    jobs = ledger()
    ((_, first),), _ = jobs.claim(5, 0, NOW)
    assert jobs.claim(5, 0, NOW)[0] == []
    jobs.tick(NOW + RULES.timeout_us)
    ((_, second),), _ = jobs.claim(1, 0, NOW + RULES.timeout_us)
    assert first != second
    assert jobs.change_state(0, "DELIVERED", 0, first, NOW + RULES.timeout_us) is Refusal.LEASE
    assert jobs.extend(0, first, 60, NOW + RULES.timeout_us) is Refusal.LEASE
    assert isinstance(jobs.extend(0, second, 60, NOW + RULES.timeout_us), Change)
    assert jobs.tick(NOW + 3 * RULES.timeout_us) == []
    assert isinstance(jobs.change_state(0, "DELIVERED", 0, second, NOW + 20_000_000), Change)


@pytest.mark.feature("C20")
def test_every_lease_is_new_even_if_the_clock_goes_back() -> None:
    jobs = ledger()
    leases = set()
    for step in range(3):
        ((_, lease),), _ = jobs.claim(1, 0, NOW - step)
        leases.add(lease)
        jobs.change_state(0, "DEAD", 0, lease, NOW - step)
        jobs.requeue(None, NOW - step)
    assert len(leases) == 3


@pytest.mark.feature("C13")
def test_dead_letters_are_listed_requeued_and_purged_exactly() -> None:
    jobs = ledger(jobs=6, rules=JobRules(1, 1_000_000))
    for offset in range(5):
        jobs.change_state(offset, "INFLIGHT", 0, None, NOW)
        jobs.change_state(offset, "DEAD", 0, None, NOW)
    jobs.change_state(4, "INFLIGHT", 0, None, NOW)
    jobs.change_state(4, "DEAD", 0, None, NOW)
    assert jobs.dead_before(99, 3) == [4, 3, 2]
    assert jobs.dead_before(2, 3) == [1, 0]
    assert jobs.dead_after(2, 3) == [3, 4]
    assert [jobs.is_exhausted(offset) for offset in range(6)] == [False] * 4 + [True, False]
    purged = jobs.purge(None, NOW)
    assert purged is not None
    assert purged.jobs == 1
    assert jobs.facts(4) is None
    assert jobs.purge(None, NOW) is None
    assert jobs.requeue(BitMap64([0, 5]), NOW + 5) == Change(
        7, JobState.QUEUED, NOW + 5, BitMap64([0])
    )
    assert jobs.requeue(None, NOW) is not None
    assert jobs.counts() == {
        JobState.QUEUED: 5,
        JobState.INFLIGHT: 0,
        JobState.DELIVERED: 0,
        JobState.DEAD: 0,
    }
    assert jobs.requeue(None, NOW) is None


@pytest.mark.feature("C21")
def test_a_replay_may_start_before_the_endpoint_did() -> None:
    jobs = JobLedger(1, 10, RULES, Column("u4"))
    jobs.offer(10, 20)
    for _ in range(10):
        offset = jobs.take(NOW)
        assert offset is not None
        jobs.succeeded(offset, NOW)
    entries = jobs.replay(2, 5, NOW)
    assert [type(entry) for entry in entries] == [Start, Change]
    assert list(map(offset_of, jobs.queued_keys(100))) == [2, 3, 4]
    assert jobs.facts(7) is None
    jobs.replay(18, 99, NOW)
    assert list(map(offset_of, jobs.queued_keys(100))) == [2, 3, 4, 18, 19]
    assert jobs.counts()[JobState.DELIVERED] == 8
    assert jobs.replay(2, 5, NOW) == []


def test_the_job_of_a_deleted_message_is_removed() -> None:
    jobs = ledger(jobs=3)
    jobs.drop(1)
    assert jobs.facts(1) is None
    assert list(map(offset_of, jobs.queued_keys(5))) == [0, 2]


def test_a_million_queued_jobs_take_kilobytes() -> None:
    jobs = ledger(jobs=1_000_000)
    assert len(msgspec.msgpack.encode(jobs.state())) < 200_000
    assert jobs.counts()[JobState.QUEUED] == 1_000_000


def again(jobs: JobLedger) -> JobLedger:
    body = job_records.encode([JobSnapshot(jobs.head, {}, {7: jobs.state()})])
    snapshot = job_records.decode(msgspec.msgpack.decode(body, strict=False)[2])
    assert isinstance(snapshot, JobSnapshot)
    return JobLedger.restored(7, snapshot.ledgers[7], RULES, jobs._priorities)


class Together(RuleBasedStateMachine):
    """The ledger, a plain model of it, and the ledger as a restart would find it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.priorities = Column("u4")
        self.jobs = JobLedger(7, 0, RULES, self.priorities)
        self.model = Model(RULES.retries_max, RULES.timeout_us)
        self.saved_state = self.jobs.state()
        self.entries: list[Any] = []
        self.pushed: set[int] = set()

    def record(self, *entries: object) -> None:
        self.entries += [entry for entry in entries if isinstance(entry, Change | Start)]

    @precondition(lambda self: self.jobs.head < 20)
    @rule(priorities=st.lists(st.sampled_from([0, 0, 3, 9]), min_size=1, max_size=4))
    def offer(self, priorities: list[int]) -> None:
        first = self.jobs.head
        offsets = range(first, first + len(priorities))
        for offset, priority in zip(offsets, priorities, strict=True):
            self.priorities[offset] = priority
            self.model.jobs[offset] = Job(priority)
        if any(priorities):
            keys = [key_of(p, o) for o, p in zip(offsets, priorities, strict=True)]
            self.jobs.offer_each(keys, offsets.stop)
        else:
            self.jobs.offer(first, offsets.stop)

    @rule(
        offset=st.integers(0, 12),
        requested=st.sampled_from(STATES),
        extra=st.sampled_from([0, 0, 4]),
    )
    def change_state(self, offset: int, requested: str, extra: int) -> None:
        if offset in self.pushed:
            return
        for change in self.jobs.tick(self.now):
            self.record(change)
        answer = self.jobs.change_state(offset, requested, extra, None, self.now)
        expected = self.model.change_state(offset, requested, extra, self.now)
        assert (answer if isinstance(answer, Refusal) else None) == expected
        self.record(answer)

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        self.model.tick(self.now)
        expected = self.model.order()[:limit]
        claimed, changes = self.jobs.claim(limit, 0, self.now)
        assert [one.offset for one in claimed] == expected
        for offset in expected:
            assert self.model.change_state(offset, "INFLIGHT", 0, self.now) is None
        self.record(*changes)

    @rule()
    def take(self) -> None:
        self.model.tick(self.now)
        self.jobs.tick(self.now)
        taken = self.jobs.take(self.now)
        assert taken == self.model.take()
        if taken is not None:
            self.pushed.add(taken)

    @precondition(lambda self: self.pushed)
    @rule(good=st.booleans(), delay=st.integers(1, 3_000_000))
    def end(self, good: bool, delay: int) -> None:
        offset, until = self.pushed.pop(), self.now + delay
        self.model.end(offset, good, until)
        self.record(
            self.jobs.succeeded(offset, self.now)
            if good
            else self.jobs.failed(offset, self.now, until)
        )

    @rule(passed=st.integers(1, 5_000_000))
    def later(self, passed: int) -> None:
        self.now += passed
        self.model.tick(self.now)
        self.record(*self.jobs.tick(self.now))

    @rule()
    def requeue_all(self) -> None:
        self.model.requeue_all()
        self.record(self.jobs.requeue(None, self.now))

    @rule()
    def purge(self) -> None:
        self.model.purge()
        self.record(self.jobs.purge(None, self.now))

    @rule(first=st.integers(0, 12), stop=st.integers(0, 12))
    def replay(self, first: int, stop: int) -> None:
        self.model.replay(first, min(stop, self.jobs.head))
        self.record(*self.jobs.replay(first, stop, self.now))

    @rule()
    def snapshot(self) -> None:
        self.saved_state, self.entries = self.jobs.state(), []

    @rule()
    def restart(self) -> None:
        """From the last snapshot, the messages since, and the entries since."""
        restored = JobLedger.restored(7, self.saved_state, RULES, self.priorities)
        keys = [key_of(self.priorities[o], o) for o in range(restored.head, self.jobs.head)]
        restored.offer_each(keys, self.jobs.head)
        for entry in self.entries:
            if isinstance(entry, Start):
                restored.move_start(entry)
            else:
                restored.apply(entry)
        self.model.restart()
        self.pushed.clear()
        restored.tick(self.now)
        self.model.tick(self.now)
        self.jobs = restored
        self.saved_state, self.entries = self.jobs.state(), []

    @invariant()
    def they_agree(self) -> None:
        for offset, job in self.model.jobs.items():
            facts = self.jobs.facts(offset)
            assert facts is not None
            assert (facts.state.name, facts.retries) == (job.state, job.retries)
        counts = {state.name: count for state, count in self.jobs.counts().items()}
        states = [job.state for job in self.model.jobs.values()]
        assert counts == {state: states.count(state) for state in counts}
        self.jobs.tick(self.now)
        self.model.tick(self.now)
        assert list(map(offset_of, self.jobs.queued_keys(1000))) == self.model.order()


TestTogether = Together.TestCase
TestTogether.settings = settings(max_examples=100, stateful_step_count=40)


def test_a_ledger_is_restored_from_its_snapshot() -> None:
    jobs = ledger(jobs=5)
    jobs.claim(1, 9, NOW)
    offset = jobs.take(NOW)
    assert offset == 1
    jobs.failed(1, NOW, NOW + 60_000_000)
    jobs.take(NOW)
    jobs.change_state(3, "INFLIGHT", 0, None, NOW)
    jobs.change_state(3, "DEAD", 0, None, NOW)
    restored = again(jobs)
    assert [state_of(restored, o) for o in range(5)] == [
        "INFLIGHT",
        "QUEUED",
        "QUEUED",
        "DEAD",
        "QUEUED",
    ]
    assert list(map(offset_of, restored.queued_keys(9))) == [2, 4]
    restored.end_delays()
    assert list(map(offset_of, restored.queued_keys(9))) == [1, 2, 4]
    assert restored.lease(0) == jobs.lease(0)
