from __future__ import annotations

import msgspec
import pytest

from penstock.delivery.consumers.advisories import AckSample, AckSamples, Advisories, samples_of
from penstock.host.clock import Clock
from tests.broker.consumers import lab
from tests.broker.storage import World
from tests.unit.delivery.recording_outlet import RecordingOutlet


def test_every_sampled_ack_has_the_time_since_the_last_delivery() -> None:
    samples = AckSamples(100)
    samples.record_delivery([1, 2], 1, 10)
    samples.record_delivery([1], 3, 20)
    assert samples.acked([1, 2, 9], 25) == [AckSample(3, 1, 5, 2), AckSample(2, 2, 15, 1)]
    assert samples.acked([1], 30) == []


def test_a_percentage_of_the_acks_is_sampled() -> None:
    samples = AckSamples(25)
    samples.record_delivery(range(1, 101), 1, 0)
    assert len(samples.acked(range(1, 101), 1)) == 25


@pytest.mark.parametrize(
    ("text", "percent"),
    [
        ("", None),
        ("0", None),
        ("0050", 50),
        ("50", 50),
        ("150%", 100),
        ("9" * 5000, 100),
    ],
)
def test_a_frequency_is_a_percentage(text: str, percent: int | None) -> None:
    found = samples_of(text)
    assert (None if found is None else found._percent) == percent


async def test_subscribers_receive_the_ack_time(world: World) -> None:
    async with lab(world) as here:
        peer = await here.peer()
        await peer.stream("S", "s")
        await peer.stored("s", b"m0")
        await peer.consumer("S", "d", sample_freq="100")
        sid = peer.subscribe("$JS.EVENT.METRIC.>")
        first = await peer.next(peer.pull("S", "d"))
        peer.publish(first.reply, b"+ACK")
        told = await peer.next(sid)
        assert told.subject == "$JS.EVENT.METRIC.CONSUMER.ACK.S.d"
        assert told.payload.startswith(b'{"type":"io.nats.jetstream.metric.v1.consumer_ack","id":"')
        assert b'"stream":"S","consumer":"d","consumer_seq":1,"stream_seq":1,"ack_time":' in (
            told.payload
        )
        assert told.payload.endswith(b',"deliveries":1}')


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
            lambda tell: tell.acked("d", AckSample(9, 7, 500, 3)),
            "METRIC.CONSUMER.ACK",
            "metric.v1.consumer_ack",
            {"consumer_seq": 9, "stream_seq": 7, "ack_time": 500, "deliveries": 3},
        ),
    ],
)
def test_an_event_is_published_with_its_facts(event, subject, kind, facts) -> None:  # type: ignore[no-untyped-def]
    outlet = RecordingOutlet()
    event(Advisories(outlet, Clock(), "S"))
    [sent] = outlet.rows
    assert sent.subject.decode() == f"$JS.EVENT.{subject}.S.d"
    told = msgspec.json.decode(sent.payload)
    assert list(told)[:5] == ["type", "id", "timestamp", "stream", "consumer"]
    assert told.pop("type") == f"io.nats.jetstream.{kind}"
    assert len(told.pop("id")) == 22
    told.pop("timestamp")
    assert told == {"stream": "S", "consumer": "d", **facts}


def test_events_without_a_subscriber_are_not_published() -> None:
    class Silent(RecordingOutlet):
        def has_interest(self, subject: bytes) -> bool:
            return False

    outlet = Silent()
    tell = Advisories(outlet, Clock(), "S")
    tell.created("d")
    tell.acked("d", AckSample(1, 1, 1, 1))
    assert outlet.rows == []
