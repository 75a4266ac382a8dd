import pytest

from penstock.delivery.consumers.terms import DELAYED_FREE, NAK_BACKOFF, cover, filters_of, rules_of
from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules
from penstock.wire.jetstream.consumer_config import ConsumerConfig, normalised
from penstock.wire.jetstream.stream_config import ConsumerLimits


def test_a_plain_consumer_has_the_usual_rules() -> None:
    config = normalised(ConsumerConfig(durable_name="d", ack_policy="explicit"), ConsumerLimits())
    assert rules_of(config) == Rules(pending_max=1000, waiting_max=512)


def test_everything_that_is_configured_becomes_a_rule() -> None:
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
        refusal_backoff=True,
    )


def test_no_limit_is_zero_whatever_way_it_is_written() -> None:
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
