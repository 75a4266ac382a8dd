"""Advisories and ack metrics of consumers, published on `$JS.EVENT.` subjects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from penstock.delivery.consumers.host import Outlet
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.model.times import time_text_us
from penstock.wire.jetstream.documents import advisory

PERCENT_DIGITS: Final = 3


class AckSample(NamedTuple):
    """A sampled message, with the time from its last delivery to its ack."""

    consumer_seq: int
    stream_seq: int
    ack_time_ns: int
    deliveries: int


class AckSamples:
    """Measures the time from last delivery to ack for a percentage of the acked messages."""

    def __init__(self, percent: int) -> None:
        self._percent = percent
        self._owed_percent = 0
        """100 for every sample that is due."""
        self._delivered: dict[int, tuple[int, int, int]] = {}
        """Consumer sequence, time and number of the last delivery of each message."""

    def record_delivery(self, seqs: Sequence[int], consumer_seq: int, now_ns: int) -> None:
        """Record a delivery of `seqs`; the first of them has the given consumer sequence."""
        for number, seq in enumerate(seqs, consumer_seq):
            count = self._delivered.get(seq, (0, 0, 0))[2]
            self._delivered[seq] = (number, now_ns, count + 1)

    def acked(self, seqs: Iterable[int], now_ns: int) -> list[AckSample]:
        """Record acks; returns the samples to publish."""
        samples = []
        for seq in seqs:
            delivery = self._delivered.pop(seq, None)
            self._owed_percent += self._percent
            if delivery is not None and self._owed_percent >= 100:
                self._owed_percent -= 100
                number, sent_ns, count = delivery
                samples.append(AckSample(number, seq, now_ns - sent_ns, count))
        return samples


def samples_of(frequency: str) -> AckSamples | None:
    """The sampler for a `sample_freq` such as `50` or `50%`; None if it is zero or empty."""
    digits = frequency.removesuffix("%").lstrip("0")
    # A consumer of an earlier version may have been recorded with any number of digits.
    percent = int(digits or 0) if len(digits) <= PERCENT_DIGITS else 100
    return AckSamples(min(percent, 100)) if percent > 0 else None


class Advisories:
    """Publishes events of the consumers of one stream.

    An event without a subscriber is not encoded.
    """

    def __init__(self, outlet: Outlet, clock: Clock, stream: str) -> None:
        self._outlet, self._clock, self._stream = outlet, clock, stream

    def max_deliveries(self, consumer: str, seq: int, deliveries: int) -> None:
        facts = {"stream_seq": seq, "deliveries": deliveries}
        self._publish("MAX_DELIVERIES", "max_deliver", consumer, facts)

    def naked(self, consumer: str, consumer_seq: int, seq: int, deliveries: int) -> None:
        facts = {"consumer_seq": consumer_seq, "stream_seq": seq, "deliveries": deliveries}
        self._publish("MSG_NAKED", "nak", consumer, facts)

    def terminated(
        self, consumer: str, consumer_seq: int, seq: int, deliveries: int, reason: str
    ) -> None:
        facts: dict[str, Any] = {
            "consumer_seq": consumer_seq,
            "stream_seq": seq,
            "deliveries": deliveries,
        }
        if reason:
            facts["reason"] = reason
        self._publish("MSG_TERMINATED", "terminated", consumer, facts)

    def created(self, consumer: str) -> None:
        self._publish("CREATED", "consumer_action", consumer, {"action": "create"})

    def deleted(self, consumer: str) -> None:
        self._publish("DELETED", "consumer_action", consumer, {"action": "delete"})

    def acked(self, consumer: str, sample: AckSample) -> None:
        """Publish the metric of one sampled ack: how long it took."""
        subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{self._stream}.{consumer}".encode()
        if self._outlet.has_interest(subject):
            metric = {
                "type": "io.nats.jetstream.metric.v1.consumer_ack",
                "id": unique_name()[:22],
                "timestamp": time_text_us(self._clock.now_us()),
                "stream": self._stream,
                "consumer": consumer,
                "consumer_seq": sample.consumer_seq,
                "stream_seq": sample.stream_seq,
                "ack_time": sample.ack_time_ns,
                "deliveries": sample.deliveries,
            }
            self._outlet.send(subject, b"", b"", msgspec.json.encode(metric))

    def _publish(self, event: str, kind: str, consumer: str, facts: dict[str, Any]) -> None:
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{event}.{self._stream}.{consumer}".encode()
        if self._outlet.has_interest(subject):
            origin = {"stream": self._stream, "consumer": consumer}
            time = time_text_us(self._clock.now_us())
            text = advisory(kind, unique_name()[:22], time, **origin, **facts)
            self._outlet.send(subject, b"", b"", text)
