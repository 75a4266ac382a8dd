from typing import Any

import pytest

from penstock.delivery.consumers.pulls import asked
from penstock.ledger.requests import Request, Status
from penstock.wire.jetstream.consumer_config import ConsumerConfig

PLAIN = ConsumerConfig(durable_name="d", max_waiting=512)
LIMITED = ConsumerConfig(max_batch=5, max_expires=1_000_000_000, max_bytes=1000)
GROUPED = ConsumerConfig(priority_groups=("A",), priority_policy="overflow")
RANKED = ConsumerConfig(priority_groups=("A",), priority_policy="prioritized")


def wanted(body: bytes, config: ConsumerConfig = PLAIN) -> Any:
    return asked(config, body, b"in", 100)


@pytest.mark.feature("P05", "P06")
@pytest.mark.parametrize(
    ("body", "batch"), [(b"", 1), (b"7", 7), (b"abc", 1), (b'{"batch":3}', 3), (b"-1", -1)]
)
def test_a_body_says_how_many(body: bytes, batch: int) -> None:
    request = wanted(body)
    assert isinstance(request, Request)
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
def test_what_a_consumer_does_not_allow_is_refused(
    config: ConsumerConfig, body: bytes, code: int, text: str
) -> None:
    assert wanted(body, config) == Status(b"in", code, text)


@pytest.mark.feature("P19")
@pytest.mark.parametrize("body", [b"{bad", b'{"batch":"x"}'])
def test_what_cannot_be_read_is_refused_with_the_reason(body: bytes) -> None:
    status = wanted(body)
    assert status.code == 400
    assert status.text.startswith("Bad Request - ")


@pytest.mark.feature("P08")
def test_a_time_that_is_over_already_ends_the_pull_at_once() -> None:
    left = (("Nats-Pending-Messages", 1), ("Nats-Pending-Bytes", 0))
    assert wanted(b'{"batch":1,"expires":-5}') == Status(b"in", 408, "Request Timeout", left)
