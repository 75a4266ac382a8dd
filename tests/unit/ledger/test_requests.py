import pytest

from penstock.ledger.requests import (
    REPEAT_NS,
    Offer,
    PullRequest,
    RequestShare,
    Status,
    WaitingRequests,
)
from penstock.ledger.rules import PriorityPolicy


def waiting(
    *requests: PullRequest, policy: PriorityPolicy = PriorityPolicy.NONE
) -> WaitingRequests:
    ring = WaitingRequests(policy)
    for request in requests:
        ring.add(request)
    return ring


def share(
    ring: WaitingRequests, count: int, sizes: list[int] | None = None, now_ns: int = 0
) -> Offer:
    offer = Offer(range(1, count + 1), sizes, now_ns, [])
    ring.share(ring.serving(0, 0, 0), offer)
    return offer


def given(
    ring: WaitingRequests, count: int, sizes: list[int] | None = None
) -> dict[bytes, list[int]]:
    offer = Offer(range(1, count + 1), sizes, 0, [])
    shared = ring.share(ring.serving(0, 0, 0), offer)
    return {item.request.inbox: list(item.positions) for item in shared}


@pytest.mark.feature("P06")
def test_one_request_alone_gets_a_run_up_to_its_batch() -> None:
    request = PullRequest(b"a", 3)
    ring = waiting(request)
    assert ring.share([request], Offer(range(1, 6), None, 0, [])) == [
        RequestShare(request, range(3))
    ]
    assert len(ring) == 0


def test_several_requests_get_one_message_each_in_turn() -> None:
    ring = waiting(PullRequest(b"a", 2), PullRequest(b"b", 2), PullRequest(b"c", 2))
    assert given(ring, 6) == {b"a": [0, 3], b"b": [1, 4], b"c": [2, 5]}
    assert len(ring) == 0


def test_the_next_round_begins_where_the_last_one_stopped() -> None:
    ring = waiting(PullRequest(b"a", 5), PullRequest(b"b", 5), PullRequest(b"c", 5))
    assert given(ring, 4) == {b"a": [0, 3], b"b": [1], b"c": [2]}
    assert given(ring, 2) == {b"b": [0], b"c": [1]}
    assert given(ring, 1) == {b"a": [0]}


def test_a_batch_below_one_is_never_served_and_just_expires() -> None:
    ring = waiting(PullRequest(b"a", 0, expires_ns=5), PullRequest(b"b", -1, expires_ns=5))
    assert ring.serving(9, 9, 0) == []
    assert [status.fields[0] for status in ring.end_expired(5)] == [
        ("Nats-Pending-Messages", 0),
        ("Nats-Pending-Messages", -1),
    ]


@pytest.mark.feature("P08")
def test_a_request_expires_exactly_on_time_with_its_remaining_counts() -> None:
    ring = waiting(PullRequest(b"a", 3, expires_ns=10, bytes_max=1000))
    share(ring, 1, [46])
    assert ring.next_deadline() == 10
    assert ring.end_expired(9) == []
    left = (("Nats-Pending-Messages", 2), ("Nats-Pending-Bytes", 954))
    assert ring.end_expired(10) == [Status(b"a", 408, "Request Timeout", left)]
    assert len(ring) == 0
    assert ring.next_deadline() is None


def test_an_expired_request_receives_no_message() -> None:
    ring = waiting(PullRequest(b"late", 3, expires_ns=10), PullRequest(b"early", 3, expires_ns=20))
    assert [item.inbox for item in ring.serving(9, 9, 10)] == [b"early"]


@pytest.mark.feature("P12")
def test_a_filled_batch_with_bytes_left_receives_a_status() -> None:
    offer = share(waiting(PullRequest(b"a", 1, bytes_max=1000)), 2, [45, 45])
    left = (("Nats-Pending-Messages", 0), ("Nats-Pending-Bytes", 955))
    assert offer.statuses == [Status(b"a", 409, "Batch Completed", left)]


def test_a_filled_batch_without_a_byte_limit_receives_no_status() -> None:
    assert share(waiting(PullRequest(b"a", 1)), 2).statuses == []


@pytest.mark.feature("P12")
def test_a_message_that_does_not_fit_ends_the_request_and_names_its_size() -> None:
    ring = waiting(PullRequest(b"a", 10, bytes_max=160))
    assert given(ring, 4, [46, 46, 46, 46]) == {b"a": [0, 1, 2]}
    ring = waiting(PullRequest(b"a", 10, bytes_max=160))
    fields = (("Nats-Pending-Messages", 7), ("Nats-Pending-Bytes", 22), ("Nats-Msg-Size", 46))
    status = Status(b"a", 409, "Message Size Exceeds MaxBytes", fields)
    assert share(ring, 4, [46] * 4).statuses == [status]


def test_a_message_that_does_not_fit_a_request_is_assigned_to_the_next() -> None:
    ring = waiting(PullRequest(b"a", 5, bytes_max=10), PullRequest(b"b", 5))
    assert given(ring, 2, [11, 11]) == {b"b": [0, 1]}
    assert [request.inbox for request in ring] == [b"b"]


def test_a_repeated_request_for_an_oversized_message_is_answered_with_delay() -> None:
    ring = WaitingRequests(PriorityPolicy.NONE)
    answers = []
    for now_ns in (0, 1, 2):
        ring.add(PullRequest(b"a", 5, bytes_max=10))
        answers += share(ring, 1, [46], now_ns).statuses
    assert len(answers) == 1
    assert ring.next_deadline() == REPEAT_NS
    assert [status.code for status in ring.end_expired(REPEAT_NS + 1)] == [409, 409]


@pytest.mark.feature("P12")
def test_heartbeats_are_due_while_nothing_is_delivered() -> None:
    ring = waiting(PullRequest(b"a", 9, heartbeat_ns=10, expires_ns=100))
    assert ring.next_deadline() == 10
    last = (("Nats-Last-Consumer", 3), ("Nats-Last-Stream", 4))
    assert ring.heartbeats(10, 3, 4) == [Status(b"a", 100, "Idle Heartbeat", last)]
    share(ring, 1, None, 15)
    assert ring.heartbeats(20, 3, 4) == []
    assert len(ring.heartbeats(25, 3, 4)) == 1
    assert len(ring.heartbeats(79, 3, 4)) == 1
    assert ring.next_deadline() == 85


def test_priorities_are_served_lowest_number_first() -> None:
    low, high = PullRequest(b"low", 2, priority=5), PullRequest(b"high", 1, priority=1)
    ring = waiting(low, high, policy=PriorityPolicy.PRIORITIZED)
    assert ring.serving(0, 0, 0) == [high]
    assert given(ring, 3) == {b"high": [0]}
    assert ring.serving(0, 0, 0) == [low]


@pytest.mark.feature("P12")
def test_an_overflow_request_is_served_when_either_minimum_is_reached() -> None:
    ring = waiting(
        PullRequest(b"a", 1, min_pending=10, min_ack_pending=5), policy=PriorityPolicy.OVERFLOW
    )
    assert [bool(ring.serving(*at, 0)) for at in ((9, 4), (10, 0), (0, 5))] == [False, True, True]
    assert waiting(PullRequest(b"a"), policy=PriorityPolicy.OVERFLOW).serving(0, 0, 0)


def test_requests_that_do_not_wait_end_when_there_is_nothing() -> None:
    ring = waiting(PullRequest(b"a", no_wait=True), PullRequest(b"b"))
    assert ring.end_no_wait() == [Status(b"a", 404, "No Messages")]
    assert [request.inbox for request in ring] == [b"b"]


def test_all_requests_end_with_or_without_their_counts() -> None:
    ring = waiting(PullRequest(b"a", 2))
    assert ring.end_all(409, "Consumer Deleted") == [Status(b"a", 409, "Consumer Deleted")]
    ring = waiting(PullRequest(b"a", 2))
    left = (("Nats-Pending-Messages", 2), ("Nats-Pending-Bytes", 0))
    ended = ring.end_all(409, "Server Shutdown", counts=True)
    assert ended == [Status(b"a", 409, "Server Shutdown", left)]


def test_a_begun_request_that_does_not_wait_ends_at_its_heartbeat() -> None:
    request = PullRequest(
        b"a", 5, no_wait=True, waits_for_first=True, expires_ns=99, heartbeat_ns=10, now_ns=0
    )
    ring = waiting(request)
    assert [status.code for status in ring.heartbeats(10, 0, 0)] == [100]
    request.record_delivery(12)
    assert ring.heartbeats(22, 0, 0) == [Status(b"a", 404, "No Messages")]
    assert not len(ring)
