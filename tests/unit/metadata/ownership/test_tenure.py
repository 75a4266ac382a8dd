import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.ownership.tenure import LeaseDecision, LeaseStep, LeaseTerms, Tenure
from penstock.model.errors import ConfigError
from penstock.model.units import Nanoseconds

TERMS = LeaseTerms(seconds=12, margin_seconds=3.0)


def seconds(count: float) -> Nanoseconds:
    return Nanoseconds(int(count * 1e9))


@pytest.fixture
def tenure() -> Tenure:
    return Tenure(TERMS, seconds(100))


def test_acks_stop_a_margin_before_the_lease_can_end(tenure: Tenure) -> None:
    assert tenure.valid_until_ns == seconds(109)


def test_a_lease_is_renewed_after_a_third_of_its_time(tenure: Tenure) -> None:
    assert tenure.decide(seconds(100)) == LeaseDecision(LeaseStep.WAIT, 4.0)
    assert tenure.decide(seconds(103)) == LeaseDecision(LeaseStep.WAIT, 1.0)
    assert tenure.decide(seconds(104)) == LeaseDecision(LeaseStep.RENEW)


def test_a_renewal_counts_from_its_request(tenure: Tenure) -> None:
    tenure.renewed(seconds(104), 12.0)
    assert tenure.valid_until_ns == seconds(113)
    assert tenure.decide(seconds(107)) == LeaseDecision(LeaseStep.WAIT, 1.0)


def test_the_store_may_grant_more_time_than_requested(tenure: Tenure) -> None:
    tenure.renewed(seconds(104), 20.0)
    assert tenure.valid_until_ns == seconds(121)


def test_a_late_reply_does_not_shorten_a_lease(tenure: Tenure) -> None:
    tenure.renewed(seconds(108), 12.0)
    tenure.renewed(seconds(104), 12.0)
    assert tenure.valid_until_ns == seconds(117)


def test_a_failed_renewal_is_tried_again_soon(tenure: Tenure) -> None:
    tenure.failed(seconds(105))
    assert tenure.decide(seconds(105)) == LeaseDecision(LeaseStep.WAIT, 1.0)
    assert tenure.decide(seconds(106)) == LeaseDecision(LeaseStep.RENEW)


def test_a_renewal_in_the_margin_still_helps(tenure: Tenure) -> None:
    assert tenure.decide(seconds(111)) == LeaseDecision(LeaseStep.RENEW)
    tenure.renewed(seconds(111), 12.0)
    assert tenure.valid_until_ns == seconds(120)


def test_at_its_end_a_lease_is_over_and_not_renewed(tenure: Tenure) -> None:
    assert tenure.decide(seconds(112)) == LeaseDecision(LeaseStep.END)
    tenure.failed(seconds(111.9))
    assert tenure.decide(seconds(111.95)).step is LeaseStep.WAIT
    assert tenure.decide(seconds(111.95)).seconds == pytest.approx(0.05)
    assert tenure.decide(seconds(200)) == LeaseDecision(LeaseStep.END)


def test_a_lease_that_the_store_ended_is_over_at_once(tenure: Tenure) -> None:
    tenure.end()
    assert tenure.decide(seconds(101)) == LeaseDecision(LeaseStep.END)
    assert tenure.valid_until_ns < seconds(101)


def test_an_answer_from_before_a_long_stop_does_not_revive_a_lease(tenure: Tenure) -> None:
    tenure.renewed(seconds(104), 12.0)
    assert tenure.decide(seconds(5000)) == LeaseDecision(LeaseStep.END)
    assert tenure.valid_until_ns < seconds(5000)


def test_an_attempt_leaves_time_for_another(tenure: Tenure) -> None:
    assert tenure.attempt_seconds(seconds(104)) == 4.0
    assert tenure.attempt_seconds(seconds(111)) == 1.0
    assert tenure.attempt_seconds(seconds(113)) == 0.0


@pytest.mark.parametrize(("lease", "margin"), [(0, 0.1), (10, 0.0), (10, -1.0), (10, 5.0)])
def test_terms_that_leave_no_time_for_acks_are_refused(lease: int, margin: float) -> None:
    with pytest.raises(ConfigError):
        LeaseTerms(lease, margin)


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans(), st.floats(0, 5)), max_size=30))
def test_nothing_is_ever_acked_when_the_store_may_have_ended_the_lease(
    story: list[tuple[float, bool, float]],
) -> None:
    """Holds for all replies, lost renewals and suspensions of the process."""
    now = 0.0
    tenure = Tenure(TERMS, seconds(now))
    store_ends = now + TERMS.seconds
    for pause, answered, delay in story:
        now += pause
        if tenure.decide(seconds(now)).step is LeaseStep.END:
            break
        requested_ns = now
        now += delay
        if now >= store_ends:
            break
        if answered:
            # At worst the store got it at the moment it was asked.
            store_ends = max(store_ends, requested_ns + TERMS.seconds)
            tenure.renewed(seconds(requested_ns), TERMS.seconds)
        else:
            tenure.failed(seconds(now))
        assert tenure.valid_until_ns <= seconds(store_ends - TERMS.margin_seconds) + 1000
