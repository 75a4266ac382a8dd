"""Events about consumers, published for whoever listens."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.delivery.consumers.outlet import Outlet
from penstock.delivery.consumers.samples import Sample
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.wire.jetstream.documents import advisory
from penstock.wire.jetstream.times import time_text_us


class Advisories:
    """Tells of what happens to the consumers of one stream; costs nothing when nobody listens."""

    def __init__(self, outlet: Outlet, clock: Clock, stream: str) -> None:
        self._outlet, self._clock, self._stream = outlet, clock, stream

    def max_deliveries(self, consumer: str, seq: int, deliveries: int) -> None:
        facts = {"stream_seq": seq, "deliveries": deliveries}
        self._tell("MAX_DELIVERIES", "max_deliver", consumer, facts)

    def naked(self, consumer: str, consumer_seq: int, seq: int, deliveries: int) -> None:
        facts = {"consumer_seq": consumer_seq, "stream_seq": seq, "deliveries": deliveries}
        self._tell("MSG_NAKED", "nak", consumer, facts)

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
        self._tell("MSG_TERMINATED", "terminated", consumer, facts)

    def created(self, consumer: str) -> None:
        self._tell("CREATED", "consumer_action", consumer, {"action": "create"})

    def deleted(self, consumer: str) -> None:
        self._tell("DELETED", "consumer_action", consumer, {"action": "delete"})

    def acked(self, consumer: str, sample: Sample) -> None:
        """A metric rather than an advisory: how long an ack took."""
        subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{self._stream}.{consumer}".encode()
        if self._outlet.has_interest(subject):
            told = {
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
            self._outlet.send(subject, b"", b"", msgspec.json.encode(told))

    def _tell(self, event: str, kind: str, consumer: str, facts: dict[str, Any]) -> None:
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{event}.{self._stream}.{consumer}".encode()
        if self._outlet.has_interest(subject):
            place = {"stream": self._stream, "consumer": consumer}
            time = time_text_us(self._clock.now_us())
            text = advisory(kind, unique_name()[:22], time, **place, **facts)
            self._outlet.send(subject, b"", b"", text)
