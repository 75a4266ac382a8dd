import pytest

from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import PullRequest, Status
from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules

AHEAD = 100


def pull(ledger: ConsumerLedger, count: int, now_ns: int = 0) -> list[int]:
    """Serve one request at once; returns the sequences it received."""
    assert ledger.request(PullRequest(b"in", count), now_ns, AHEAD) is None
    got = serve(ledger, now_ns)
    for request in list(ledger.waiting):
        ledger.withdraw(request)
    return got


def serve(ledger: ConsumerLedger, now_ns: int = 0) -> list[int]:
    plan = ledger.plan(AHEAD, now_ns)
    got = list(plan.redeliver)
    if plan.redeliver:
        ledger.offer(plan.redeliver, None, AHEAD, now_ns)
        ledger.record_redelivery(plan.redeliver, now_ns)
    fresh = range(ledger.stream_seq + 1, ledger.stream_seq + 1 + plan.new_count)
    if fresh:
        ledger.offer(fresh, None, AHEAD, now_ns)
        ledger.record_delivery(fresh, now_ns)
    return got + list(fresh)


def floors(ledger: ConsumerLedger) -> tuple[int, int, int, int]:
    return (
        ledger.consumer_seq,
        ledger.stream_seq,
        ledger.floor_consumer_seq,
        ledger.floor_stream_seq,
    )


# -- acks


@pytest.mark.feature("P11")
def test_the_floor_is_below_the_first_message_in_flight() -> None:
    ledger = ConsumerLedger(Rules())
    pull(ledger, 5)
    assert ledger.ack([2, 3]) == [2, 3]
    assert floors(ledger) == (5, 5, 0, 0)
    assert ledger.ack([1]) == [1]
    assert floors(ledger) == (5, 5, 3, 3)
    ledger.ack([4, 5])
    assert floors(ledger) == (5, 5, 5, 5)


def test_a_repeated_ack_or_one_beyond_the_last_delivery_changes_nothing() -> None:
    ledger = ConsumerLedger(Rules())
    pull(ledger, 2)
    assert ledger.ack([1, 1, 9]) == [1]
    assert ledger.ack([1]) == []
    assert len(ledger.pending) == 1


@pytest.mark.feature("P11")
def test_with_policy_all_an_ack_settles_everything_before() -> None:
    ledger = ConsumerLedger(Rules(ack_policy=AckPolicy.ALL))
    pull(ledger, 5)
    assert ledger.ack([3]) == [1, 2, 3]
    assert ledger.ack([99]) == []
    assert floors(ledger) == (5, 5, 3, 3)


@pytest.mark.feature("P11")
def test_with_policy_none_delivery_settles() -> None:
    ledger = ConsumerLedger(Rules(ack_policy=AckPolicy.NONE))
    pull(ledger, 3)
    assert floors(ledger) == (3, 3, 3, 3)
    assert len(ledger.pending) == 0
    assert ledger.next_deadline() is None


@pytest.mark.feature("P11")
def test_a_naked_message_is_redelivered_before_new_ones() -> None:
    ledger = ConsumerLedger(Rules())
    pull(ledger, 3)
    ledger.ack([1, 2])
    ledger.nak(3, 0, 0)
    assert ledger.pending.redelivered == 0
    assert pull(ledger, 2) == [3, 4]
    assert floors(ledger) == (5, 4, 2, 2)
    assert ledger.pending.redelivered == 1
    ledger.ack([3])
    assert floors(ledger) == (5, 4, 4, 3)
    assert ledger.pending.redelivered == 0


@pytest.mark.feature("P11")
def test_an_unacked_message_is_due_for_redelivery_after_its_ack_wait() -> None:
    ledger = ConsumerLedger(Rules(ack_wait_ns=10))
    pull(ledger, 2)
    assert ledger.next_deadline() == 10
    assert ledger.tick(10).exhausted == []
    assert ledger.pending.queued == 2
    assert pull(ledger, 3, 11) == [1, 2, 3]


@pytest.mark.feature("P11")
def test_after_its_last_delivery_a_message_is_exhausted() -> None:
    ledger = ConsumerLedger(Rules(deliveries_max=2, ack_wait_ns=10))
    pull(ledger, 1)
    ledger.tick(10)
    pull(ledger, 1, 10)
    assert ledger.tick(20).exhausted == [1]
    assert floors(ledger) == (2, 1, 0, 0)
    assert (len(ledger.pending), ledger.pending.redelivered) == (0, 1)
    assert ledger.ack([1]) == []
    assert ledger.pending.redelivered == 0
    assert floors(ledger) == (2, 1, 0, 0)


def test_a_nak_of_the_last_delivery_exhausts_the_message() -> None:
    ledger = ConsumerLedger(Rules(deliveries_max=1))
    pull(ledger, 1)
    assert ledger.nak(1, 0, 0) == [1]
    assert ledger.nak(1, 0, 0) == []
    assert ledger.exhausted() == [1]
    ledger.terminate([1])
    assert ledger.exhausted() == []


def test_messages_of_a_disconnected_client_are_redelivered() -> None:
    ledger = ConsumerLedger(Rules(deliveries_max=2))
    pull(ledger, 3)
    ledger.ack([2])
    assert ledger.requeue([1, 2]) == []
    assert pull(ledger, 1) == [1]
    assert ledger.requeue([1, 3]) == [1]
    assert pull(ledger, 1) == [3]


@pytest.mark.feature("P11")
def test_terminated_messages_are_never_redelivered() -> None:
    ledger = ConsumerLedger(Rules(ack_wait_ns=10))
    pull(ledger, 1)
    assert ledger.terminate([1]) == [1]
    ledger.tick(100)
    assert pull(ledger, 1) == [2]


@pytest.mark.feature("P11")
def test_new_deliveries_respect_max_ack_pending_but_redeliveries_do_not() -> None:
    ledger = ConsumerLedger(Rules(pending_max=2))
    assert pull(ledger, 5) == [1, 2]
    assert pull(ledger, 5) == []
    ledger.nak(1, 0, 0)
    assert pull(ledger, 5) == [1]
    ledger.ack([1])
    assert pull(ledger, 5) == [3]


def test_a_delayed_nak_counts_against_the_limit_unless_configured() -> None:
    for free, expected in ((False, []), (True, [2])):
        ledger = ConsumerLedger(Rules(pending_max=1, delayed_free=free))
        pull(ledger, 1)
        ledger.nak(1, 100, 0)
        assert pull(ledger, 1) == expected


# -- requests


@pytest.mark.feature("P07")
def test_a_no_wait_request_is_always_answered_at_once() -> None:
    nothing = Status(b"in", 404, "No Messages")
    empty = ConsumerLedger(Rules())
    assert empty.request(PullRequest(b"in", no_wait=True), 0, 0) == nothing
    with_expiry = PullRequest(b"in", no_wait=True, expires_ns=99)
    assert empty.request(with_expiry, 0, 0) == nothing
    full = ConsumerLedger(Rules(pending_max=1))
    pull(full, 1)
    assert full.request(PullRequest(b"in", no_wait=True), 0, AHEAD) == nothing
    paused = ConsumerLedger(Rules())
    paused.paused = True
    assert paused.request(PullRequest(b"in", no_wait=True), 0, AHEAD) == nothing


@pytest.mark.feature("P07")
def test_a_request_that_waits_for_its_first_message_ends_after_the_last_one_that_is_there() -> None:
    ledger = ConsumerLedger(Rules())
    request = PullRequest(b"in", 5, no_wait=True, waits_for_first=True, expires_ns=99)
    assert ledger.request(request, 0, 0) is None
    assert ledger.end_no_wait() == []
    ledger.offer([1, 2], None, 2, 0)
    ledger.record_delivery([1, 2], 0)
    assert ledger.end_no_wait() == [Status(b"in", 404, "No Messages")]


@pytest.mark.feature("P07")
def test_a_request_that_waits_for_its_first_message_waits_for_acknowledgements_too() -> None:
    ledger = ConsumerLedger(Rules(pending_max=1))
    request = PullRequest(b"in", 5, no_wait=True, waits_for_first=True, expires_ns=99)
    assert ledger.request(request, 0, AHEAD) is None
    ledger.offer([1], None, AHEAD, 0)
    ledger.record_delivery([1], 0)
    assert ledger.end_no_wait() == []
    ledger.ack([1])
    assert ledger.end_no_wait() == [Status(b"in", 404, "No Messages")]


def test_a_request_that_does_not_wait_stands_back_behind_those_that_do() -> None:
    ledger = ConsumerLedger(Rules(pending_max=1))
    pull(ledger, 1)
    ledger.request(PullRequest(b"other", 10), 0, 1)
    answer = ledger.request(PullRequest(b"in", no_wait=True), 0, 1)
    assert answer == Status(b"in", 408, "Requests Pending")


@pytest.mark.feature("P07")
def test_a_partly_filled_no_wait_request_ends_when_no_message_is_left() -> None:
    ledger = ConsumerLedger(Rules())
    assert ledger.request(PullRequest(b"in", 500, no_wait=True), 0, AHEAD) is None
    ledger.offer(range(1, 101), None, AHEAD, 0)
    ledger.record_delivery(range(1, 101), 0)
    assert ledger.end_no_wait() == [Status(b"in", 404, "No Messages")]


@pytest.mark.feature("P10")
def test_a_request_beyond_max_waiting_is_refused_until_another_ends() -> None:
    ledger = ConsumerLedger(Rules(waiting_max=2))
    first = PullRequest(b"a", expires_ns=5)
    assert [ledger.request(item, 0, 0) for item in (first, PullRequest(b"b"))] == [None, None]
    too_many = Status(b"c", 409, "Exceeded MaxWaiting")
    assert ledger.request(PullRequest(b"c"), 0, 0) == too_many
    ledger.withdraw(first)
    assert len(ledger.waiting) == 1
    expiring = PullRequest(b"d", expires_ns=5)
    assert ledger.request(expiring, 0, 0) is None
    assert [status.code for status in ledger.tick(5).statuses] == [408]
    assert len(ledger.waiting) == 1


def test_a_paused_consumer_delivers_nothing() -> None:
    ledger = ConsumerLedger(Rules())
    ledger.paused = True
    assert pull(ledger, 3) == []
    ledger.paused = False
    assert pull(ledger, 3) == [1, 2, 3]


def test_only_the_pinned_client_is_served() -> None:
    rules = Rules(priority_policy=PriorityPolicy.PINNED, pin_ns=10)
    ledger = ConsumerLedger(rules)
    first, second = PullRequest(b"a", 2), PullRequest(b"b", 2)
    ledger.request(first, 0, AHEAD)
    ledger.request(second, 0, AHEAD)
    assert ledger.plan(AHEAD, 0, "p1").new_count == 2
    given, _ = ledger.offer([1, 2], None, AHEAD, 0)
    assert [(item.request, list(item.positions)) for item in given] == [(first, [0, 1])]
    mismatch = Status(b"c", 423, "Nats-Pin-Id mismatch")
    assert ledger.request(PullRequest(b"c", pin="other"), 0, AHEAD) == mismatch
    assert ledger.plan(AHEAD, 5, "p2").new_count == 0
    assert ledger.next_deadline() == 10
    assert ledger.tick(10).unpinned
    assert ledger.plan(AHEAD, 10, "p2").new_count == 2


@pytest.mark.feature("P12")
def test_an_overflow_request_waits_for_its_minimum() -> None:
    ledger = ConsumerLedger(Rules(priority_policy=PriorityPolicy.OVERFLOW))
    ledger.request(PullRequest(b"a", 1, min_pending=1000), 0, AHEAD)
    assert ledger.plan(AHEAD, 0).new_count == 0
    assert ledger.plan(1000, 0).new_count == 1


# -- what nobody got


@pytest.mark.feature("P09")
def test_undelivered_messages_are_delivered_again_without_counting() -> None:
    ledger = ConsumerLedger(Rules(deliveries_max=1))
    ledger.request(PullRequest(b"a", 2), 0, AHEAD)
    ledger.request(PullRequest(b"b", 2), 0, AHEAD)
    ledger.offer([1, 2, 3, 4], None, AHEAD, 0)
    ledger.record_delivery([1, 2, 3], 0)
    ledger.undo_delivery([2])
    assert pull(ledger, 2) == [2, 4]
    assert ledger.pending.count(2) == 1


# -- streams that shrink


def test_deleted_messages_are_settled_and_an_empty_stream_advances_the_consumer() -> None:
    ledger = ConsumerLedger(Rules())
    pull(ledger, 2)
    assert ledger.settle_before(6, stream_empty=True)
    assert floors(ledger) == (2, 5, 2, 5)
    assert not ledger.settle_before(6, stream_empty=True)
    ledger = ConsumerLedger(Rules())
    pull(ledger, 4)
    assert ledger.settle_before(3, stream_empty=False)
    assert floors(ledger) == (4, 4, 2, 2)
    assert not ledger.settle_before(3, stream_empty=False)


def test_changed_rules_apply_from_now_on() -> None:
    ledger = ConsumerLedger(Rules(pending_max=1))
    pull(ledger, 1)
    ledger.set_rules(
        Rules(pending_max=3, ack_wait_ns=5, priority_policy=PriorityPolicy.PRIORITIZED)
    )
    assert pull(ledger, 5) == [2, 3]
    assert ledger.next_deadline() == 5
    ledger.request(PullRequest(b"low", priority=2), 0, AHEAD)
    ledger.request(PullRequest(b"high", priority=1), 0, AHEAD)
    assert [request.inbox for request in ledger.waiting] == [b"high", b"low"]


def test_a_reset_restarts_the_consumer() -> None:
    ledger = ConsumerLedger(Rules())
    pull(ledger, 4)
    ledger.reset(3)
    assert floors(ledger) == (0, 2, 0, 2)
    assert pull(ledger, 1) == [3]


# -- looking


def test_the_stall_reason_says_why_nothing_is_delivered() -> None:
    ledger = ConsumerLedger(Rules(pending_max=1, priority_policy=PriorityPolicy.OVERFLOW))
    assert ledger.stall_reason(0, 0) == ""
    assert ledger.stall_reason(5, 0) == "no requests wait"
    ledger.request(PullRequest(b"a", 2, min_pending=50), 0, 5)
    assert ledger.stall_reason(5, 0) == "no waiting request may be served"
    assert ledger.stall_reason(50, 0) == ""
    ledger.record_delivery([1], 0)
    assert ledger.stall_reason(50, 0) == "max_ack_pending is reached"
    ledger.paused = True
    assert ledger.stall_reason(50, 0) == "paused"
