import msgspec
import pytest

from penstock.delivery.consumers.advisories import Advisories
from penstock.delivery.consumers.samples import Sample
from penstock.host.clock import Clock
from tests.unit.delivery.heard import Heard


@pytest.mark.parametrize(
    ("event", "subject", "kind", "facts"),
    [
        (
            lambda tell: tell.max_deliveries("d", 7, 3),
            "ADVISORY.CONSUMER.MAX_DELIVERIES",
            "advisory.v1.max_deliver",
            {"stream_seq": 7, "deliveries": 3},
        ),
        (
            lambda tell: tell.naked("d", 9, 7, 3),
            "ADVISORY.CONSUMER.MSG_NAKED",
            "advisory.v1.nak",
            {"consumer_seq": 9, "stream_seq": 7, "deliveries": 3},
        ),
        (
            lambda tell: tell.terminated("d", 9, 7, 3, ""),
            "ADVISORY.CONSUMER.MSG_TERMINATED",
            "advisory.v1.terminated",
            {"consumer_seq": 9, "stream_seq": 7, "deliveries": 3},
        ),
        (
            lambda tell: tell.terminated("d", 9, 7, 3, "bad"),
            "ADVISORY.CONSUMER.MSG_TERMINATED",
            "advisory.v1.terminated",
            {"consumer_seq": 9, "stream_seq": 7, "deliveries": 3, "reason": "bad"},
        ),
        (
            lambda tell: tell.created("d"),
            "ADVISORY.CONSUMER.CREATED",
            "advisory.v1.consumer_action",
            {"action": "create"},
        ),
        (
            lambda tell: tell.deleted("d"),
            "ADVISORY.CONSUMER.DELETED",
            "advisory.v1.consumer_action",
            {"action": "delete"},
        ),
        (
            lambda tell: tell.acked("d", Sample(9, 7, 500, 3)),
            "METRIC.CONSUMER.ACK",
            "metric.v1.consumer_ack",
            {"consumer_seq": 9, "stream_seq": 7, "ack_time": 500, "deliveries": 3},
        ),
    ],
)
def test_an_event_is_told_with_its_facts(event, subject, kind, facts) -> None:  # type: ignore[no-untyped-def]
    heard = Heard()
    event(Advisories(heard, Clock(), "S"))
    [sent] = heard.rows
    assert sent.subject.decode() == f"$JS.EVENT.{subject}.S.d"
    told = msgspec.json.decode(sent.payload)
    assert list(told)[:5] == ["type", "id", "timestamp", "stream", "consumer"]
    assert told.pop("type") == f"io.nats.jetstream.{kind}"
    assert len(told.pop("id")) == 22
    told.pop("timestamp")
    assert told == {"stream": "S", "consumer": "d", **facts}


def test_nothing_is_told_when_nobody_listens() -> None:
    class Silent(Heard):
        def has_interest(self, subject: bytes) -> bool:
            return False

    heard = Silent()
    tell = Advisories(heard, Clock(), "S")
    tell.created("d")
    tell.acked("d", Sample(1, 1, 1, 1))
    assert heard.rows == []
