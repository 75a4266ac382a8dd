from __future__ import annotations

from typing import Any

import pytest

from penstock.delivery.consumers.consumer_rules import (
    DELAYED_FREE,
    NAK_BACKOFF,
    cover,
    filters_of,
    parse_pull_request,
    rules_of,
)
from penstock.ledger.requests import PullRequest, Status
from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules
from penstock.wire.jetstream.consumer_config import ConsumerConfig, normalised
from penstock.wire.jetstream.stream_config import ConsumerLimits

PLAIN = ConsumerConfig(durable_name="d", max_waiting=512)
LIMITED = ConsumerConfig(max_batch=5, max_expires=1_000_000_000, max_bytes=1000)
GROUPED = ConsumerConfig(priority_groups=("A",), priority_policy="overflow")
RANKED = ConsumerConfig(priority_groups=("A",), priority_policy="prioritized")


def wanted(body: bytes, config: ConsumerConfig = PLAIN) -> Any:
    return parse_pull_request(config, body, b"in", 100)


@pytest.mark.feature("P05", "P06")
@pytest.mark.parametrize(
    ("body", "batch"), [(b"", 1), (b"7", 7), (b"abc", 1), (b'{"batch":3}', 3), (b"-1", -1)]
)
def test_a_body_names_the_number_of_messages(body: bytes, batch: int) -> None:
    request = wanted(body)
    assert isinstance(request, PullRequest)
    assert (request.left, request.expires_ns, request.no_wait) == (batch, None, False)


def test_everything_a_body_may_say_is_in_the_request() -> None:
    body = b'{"batch":3,"expires":50,"no_wait":true,"max_bytes":9,"idle_heartbeat":20}'
    request = wanted(body)
    assert (request.expires_ns, request.no_wait, request.bytes_left) == (150, True, 9)
    assert (request.heartbeat_ns, request.beat_ns, request.limited) == (20, 120, True)
    group = b'{"batch":1,"group":"A","min_pending":4,"min_ack_pending":5}'
    request = wanted(group, GROUPED)
    assert (request.min_pending, request.min_ack_pending) == (4, 5)
    assert wanted(b'{"batch":1,"group":"A","priority":9}', RANKED).priority == 9


@pytest.mark.feature("P07")
@pytest.mark.parametrize(
    ("body", "waits"),
    [
        (b'{"no_wait":true,"expires":50}', True),
        (b'{"no_wait":true}', False),
        (b'{"expires":50}', False),
    ],
)
def test_no_wait_with_an_expiry_waits_for_the_first_message_where_that_is_set(
    body: bytes, waits: bool
) -> None:
    assert parse_pull_request(PLAIN, body, b"in", 100, wait_for_first=True).waits_for_first is waits  # type: ignore[union-attr]
    assert wanted(body).waits_for_first is False


@pytest.mark.feature("P12")
@pytest.mark.parametrize(
    ("config", "body", "code", "text"),
    [
        (ConsumerConfig(deliver_subject="to"), b"", 409, "Consumer is push based"),
        (LIMITED, b'{"batch":6}', 409, "Exceeded MaxRequestBatch of 5"),
        (LIMITED, b'{"expires":2000000000}', 409, "Exceeded MaxRequestExpires of 1s"),
        (LIMITED, b'{"max_bytes":2000}', 409, "Exceeded MaxRequestMaxBytes of 1000"),
        (
            PLAIN,
            b'{"expires":9,"idle_heartbeat":5}',
            400,
            "Bad Request - heartbeat value too large",
        ),
        (PLAIN, b'{"idle_heartbeat":5}', 400, "Bad Request - heartbeat value too large"),
        (GROUPED, b'{"batch":1}', 400, "Bad Request - Priority Group missing"),
        (GROUPED, b'{"group":"B"}', 400, "Bad Request - Invalid Priority Group"),
        (PLAIN, b'{"min_pending":5}', 400, "Bad Request - Not a Overflow Priority consumer"),
        (PLAIN, b'{"id":"x"}', 400, "Bad Request - Not a Pinned Client Priority consumer"),
        (
            RANKED,
            b'{"group":"A","priority":50}',
            400,
            "Bad Request - Priority must be between 0 and 9",
        ),
    ],
)
def test_pulls_beyond_the_limits_of_a_consumer_are_refused(
    config: ConsumerConfig, body: bytes, code: int, text: str
) -> None:
    assert wanted(body, config) == Status(b"in", code, text)


@pytest.mark.feature("P19")
@pytest.mark.parametrize("body", [b"{bad", b'{"batch":"x"}'])
def test_invalid_documents_are_refused_with_the_reason(body: bytes) -> None:
    status = wanted(body)
    assert status.code == 400
    assert status.text.startswith("Bad Request - ")


@pytest.mark.feature("P08")
def test_a_time_that_is_over_already_ends_the_pull_at_once() -> None:
    left = (("Nats-Pending-Messages", 1), ("Nats-Pending-Bytes", 0))
    assert wanted(b'{"batch":1,"expires":-5}') == Status(b"in", 408, "Request Timeout", left)


def test_a_plain_consumer_has_the_usual_rules() -> None:
    config = normalised(ConsumerConfig(durable_name="d", ack_policy="explicit"), ConsumerLimits())
    assert rules_of(config) == Rules(pending_max=1000, waiting_max=512)


def test_every_option_becomes_a_rule() -> None:
    config = ConsumerConfig(
        ack_policy="all",
        ack_wait=5,
        backoff=(5, 9),
        max_deliver=4,
        max_ack_pending=7,
        max_waiting=3,
        priority_policy="pinned_client",
        priority_timeout=11,
        metadata={DELAYED_FREE: "true", NAK_BACKOFF: "true"},
    )
    assert rules_of(config) == Rules(
        ack_policy=AckPolicy.ALL,
        ack_wait_ns=5,
        backoff_ns=(5, 9),
        deliveries_max=4,
        pending_max=7,
        waiting_max=3,
        priority_policy=PriorityPolicy.PINNED,
        pin_ns=11,
        delayed_free=True,
        nak_backoff=True,
    )


def test_every_notation_of_no_limit_is_normalised() -> None:
    rules = rules_of(ConsumerConfig(max_deliver=-1, max_ack_pending=-1, deliver_subject="to"))
    assert (rules.deliveries_max, rules.pending_max, rules.waiting_max) == (0, 0, 0)


def test_filters_are_those_of_the_configuration() -> None:
    assert filters_of(ConsumerConfig()) == ()
    config = ConsumerConfig(filter_subjects=("a", "b.*"))
    assert [str(chosen) for chosen in filters_of(config)] == ["a", "b.*"]


@pytest.mark.parametrize(
    ("filters", "subjects", "all_of_it"),
    [
        (["s.>"], ["s.>"], True),
        (["s.>"], ["s.*.x", "s.a"], True),
        ([">"], ["s.>", "t"], True),
        (["s.*"], ["s.>"], False),
        (["s.a"], ["s.*"], False),
        (["s.a.b"], ["s.a"], False),
        (["s.>"], ["s.>", "t"], False),
        (["s.a", "s.b"], ["s.a", "s.b"], True),
        (["s.>"], ["s"], False),
        (["s.>"], [], False),
    ],
)
def test_filters_cover_a_stream_when_they_leave_out_nothing(
    filters: list[str], subjects: list[str], all_of_it: bool
) -> None:
    assert cover(filters, subjects) is all_of_it
