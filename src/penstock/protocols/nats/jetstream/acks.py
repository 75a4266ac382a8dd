"""What clients send to consumers beside the API: pull requests, acks and flow control replies.

Plain acks of one consumer that follow one another are settled as one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.delivery.consumers import (
    Consumer,
    Consumers,
    Deliveries,
    PushConsumer,
    parse_pull_request,
)
from penstock.host.clock import Clock
from penstock.ledger.requests import PullRequest
from penstock.ledger.rules import AckPolicy
from penstock.protocols.nats.client import ConnectedClient
from penstock.protocols.nats.exchange import Exchange
from penstock.wire import headers
from penstock.wire.jetstream import ack_subject, levels
from penstock.wire.jetstream.ack_subject import AckKind, Acks
from penstock.wire.parser import Publishes

NEXT: Final = b"$JS.API.CONSUMER.MSG.NEXT."
FLOW: Final = b"$JS.FC."
LEVEL_REQUIRED: Final = headers.status(412, b"Required Api Level")
PLAIN: Final = frozenset({b"", b"+ACK", b"+OK"})


class Requester:
    """Reads pull requests and hands them to consumers."""

    def __init__(self, clock: Clock, *, wait_for_first: bool) -> None:
        """`wait_for_first`: a `no_wait` request with `expires` waits for its first message."""
        self._clock, self._wait_for_first = clock, wait_for_first

    def pull(self, consumer: Consumer, body: bytes, inbox: bytes) -> None:
        """Request messages for `inbox`; a refused request receives a status."""
        now_ns = self._clock.monotonic_ns()
        request = parse_pull_request(consumer.config, body, inbox, now_ns, self._wait_for_first)
        if isinstance(request, PullRequest):
            consumer.request(request)
        else:
            consumer.send_statuses([request])


class PullTarget:
    """Passes pull requests to their consumers; a target of the exchange."""

    def __init__(self, exchange: Exchange, deliveries: Deliveries, requester: Requester) -> None:
        self._exchange, self._deliveries, self._requester = exchange, deliveries, requester

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        blocks = run.headers or [b""] * len(run.payloads)
        rows = zip(run.subjects, run.replies, blocks, run.payloads, strict=True)
        for subject, reply, block, body in rows:
            if reply and levels.refuses(block):
                self._exchange.send(reply, b"", LEVEL_REQUIRED, b"")
            elif reply:
                self._pull(sender, subject, reply, body)

    def _pull(self, sender: ConnectedClient, subject: bytes, reply: bytes, body: bytes) -> None:
        stream, _, name = subject[len(NEXT) :].decode("utf-8", "replace").partition(".")
        consumers = self._deliveries.get(stream)
        consumer = None if consumers is None else consumers.get(name)
        loading = self._deliveries.loading(stream) if consumer is None else None
        request = Publishes([subject], [reply], None, [body])
        if loading is not None:
            loading.add_done_callback(lambda _: self.take(sender, request))
        elif consumer is None:
            self._exchange.refuse(sender, request)
        else:
            self._requester.pull(consumer, body, reply)


class AckTarget:
    """Applies acks of every kind; a target of the exchange."""

    def __init__(self, exchange: Exchange, deliveries: Deliveries, requester: Requester) -> None:
        self._exchange, self._deliveries, self._requester = exchange, deliveries, requester

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        parsed = 0
        for acks in ack_subject.parse_acks(run.subjects):
            consumers = self._deliveries.get(acks.stream)
            consumer = None if consumers is None else consumers.get(acks.consumer)
            loading = self._deliveries.loading(acks.stream) if consumer is None else None
            if loading is not None:
                loading.add_done_callback(
                    partial(self._retry, sender, messages_at(run, acks.positions))
                )
            elif consumers is None or consumer is None or _ignores_acks(consumer):
                self._exchange.refuse(sender, messages_at(run, acks.positions))
            elif len(acks.seqs) == len(run.payloads) and not any(run.replies) and _plain(run):
                consumer.ack(acks.seqs)
            else:
                _AckRun(self._exchange, consumers, consumer, self._requester).take(run, acks)
            parsed += len(acks.seqs)
        if parsed < len(run.subjects):
            self._refuse_malformed(sender, run)

    def _retry(self, sender: ConnectedClient, run: Publishes, _: object) -> None:
        self.take(sender, run)

    def _refuse_malformed(self, sender: ConnectedClient, run: Publishes) -> None:
        """Refuse publishes whose subjects do not have the form of an ack subject."""
        acks = {at for acks in ack_subject.parse_acks(run.subjects) for at in acks.positions}
        others = [at for at in range(len(run.subjects)) if at not in acks]
        self._exchange.refuse(sender, messages_at(run, others))


class FlowTarget:
    """Passes flow control replies to push consumers; a target of the exchange."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def take(self, sender: ConnectedClient, run: Publishes) -> None:
        for subject in run.subjects:
            stream, name, *_ = *subject[len(FLOW) :].decode("utf-8", "replace").split("."), ""
            consumers = self._deliveries.get(stream)
            consumer = None if consumers is None else consumers.get(name)
            if isinstance(consumer, PushConsumer):
                consumer.end_flow_request(subject)


class _AckRun:
    """Applies acks of one consumer in order; sends replies once the settlements are durable."""

    def __init__(
        self, exchange: Exchange, consumers: Consumers, consumer: Consumer, requester: Requester
    ) -> None:
        self._exchange, self._consumers, self._consumer = exchange, consumers, consumer
        self._requester = requester
        self._acked: list[int] = []
        self._replies: list[bytes] = []

    def take(self, run: Publishes, acks: Acks) -> None:
        for at, seq in zip(acks.positions, acks.seqs, strict=True):
            if seq > self._consumer.reached_seq:
                continue
            payload, reply = run.payloads[at], run.replies[at]
            kind = ack_subject.kind_of(payload)
            if kind is AckKind.ACK:
                self._acked.append(seq)
                if reply:
                    self._replies.append(reply)
            elif kind is not None:
                self._settle()
                self._apply(kind, seq, run.subjects[at], payload, reply)
        self._settle()

    def _settle(self) -> None:
        if self._acked:
            self._consumer.ack(self._acked)
        if self._replies:
            self._consumers.settlements.when_durable(self._consumer, self._reply_to(self._replies))
        self._acked, self._replies = [], []

    def _apply(self, kind: AckKind, seq: int, subject: bytes, payload: bytes, reply: bytes) -> None:
        """Apply a nak, progress, termination or ack with a pull request."""
        consumer, advisories = self._consumer, self._consumers.advisories
        count, consumer_seq = (int(subject.split(b".")[token]) for token in (-5, -3))
        if kind is AckKind.NAK:
            advisories.naked(consumer.name, consumer_seq, seq, count)
            consumer.nak(seq, ack_subject.nak_delay_ns(payload))
        elif kind is AckKind.PROGRESS:
            consumer.progress([seq])
        elif kind is AckKind.TERM:
            consumer.terminate([seq])
            reason = ack_subject.term_reason(payload)
            advise = partial(advisories.terminated, consumer.name, consumer_seq, seq, count, reason)
            self._consumers.settlements.when_durable(
                consumer, self._reply_to([reply] if reply else [], advise)
            )
            return
        else:
            consumer.ack([seq])
            if reply:
                self._requester.pull(consumer, payload[len(b"+NXT") :].strip(), reply)
            return
        if reply:
            self._exchange.send(reply, b"", b"", b"")

    def _reply_to(
        self, replies: list[bytes], then: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """A function that sends empty replies, then calls `then`."""

        def reply() -> None:
            if replies:
                self._exchange.answer(replies, [b""] * len(replies))
            then()

        return reply


def messages_at(run: Publishes, positions: Sequence[int]) -> Publishes:
    """The messages of a run at these positions, without their headers."""
    return Publishes(
        [run.subjects[at] for at in positions],
        [run.replies[at] for at in positions],
        None,
        [run.payloads[at] for at in positions],
    )


def _plain(run: Publishes) -> bool:
    return PLAIN.issuperset(run.payloads)


def _ignores_acks(consumer: Consumer) -> bool:
    return consumer.ledger.rules.ack_policy is AckPolicy.NONE
