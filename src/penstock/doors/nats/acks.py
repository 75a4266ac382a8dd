"""What clients send to consumers beside the API: pulls, acks, and answers of flow control.

Runs stay runs: acks of one consumer that say nothing else settle together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock.delivery.consumers import pulls
from penstock.delivery.consumers.consumer import Consumer
from penstock.delivery.consumers.consumers import Consumers
from penstock.delivery.consumers.deliveries import Deliveries
from penstock.delivery.consumers.push import PushConsumer
from penstock.doors.nats.client import Client
from penstock.doors.nats.exchange import Exchange
from penstock.host.clock import Clock
from penstock.ledger.requests import Request
from penstock.ledger.rules import AckPolicy
from penstock.wire import headers
from penstock.wire.jetstream import ack_subject, levels
from penstock.wire.jetstream.ack_subject import AckKind, Acks
from penstock.wire.parser import Publishes

NEXT: Final = b"$JS.API.CONSUMER.MSG.NEXT."
FLOW: Final = b"$JS.FC."
LEVEL_REQUIRED: Final = headers.status(412, b"Required Api Level")
PLAIN: Final = frozenset({b"", b"+ACK", b"+OK"})


class Pulls:
    """Takes requests for messages."""

    def __init__(self, exchange: Exchange, deliveries: Deliveries, clock: Clock) -> None:
        self._exchange, self._deliveries, self._clock = exchange, deliveries, clock

    def take(self, sender: Client, run: Publishes) -> None:
        blocks = run.headers or [b""] * len(run.payloads)
        rows = zip(run.subjects, run.replies, blocks, run.payloads, strict=True)
        for subject, reply, block, body in rows:
            if reply and levels.refuses(block):
                self._exchange.send(reply, b"", LEVEL_REQUIRED, b"")
            elif reply:
                self._pull(sender, subject, reply, body)

    def _pull(self, sender: Client, subject: bytes, reply: bytes, body: bytes) -> None:
        stream, _, name = subject[len(NEXT) :].decode("utf-8", "replace").partition(".")
        consumers = self._deliveries.get(stream)
        consumer = None if consumers is None else consumers.get(name)
        loading = self._deliveries.loading(stream) if consumer is None else None
        asked = Publishes([subject], [reply], None, [body])
        if loading is not None:
            loading.add_done_callback(lambda _: self.take(sender, asked))
        elif consumer is None:
            self._exchange.refuse(sender, asked)
        else:
            pull(consumer, body, reply, self._clock)


class AckTarget:
    """Takes acks of every kind."""

    def __init__(self, exchange: Exchange, deliveries: Deliveries, clock: Clock) -> None:
        self._exchange, self._deliveries, self._clock = exchange, deliveries, clock

    def take(self, sender: Client, run: Publishes) -> None:
        known = 0
        for acks in ack_subject.parse_acks(run.subjects):
            consumers = self._deliveries.get(acks.stream)
            consumer = None if consumers is None else consumers.get(acks.consumer)
            loading = self._deliveries.loading(acks.stream) if consumer is None else None
            if loading is not None:
                loading.add_done_callback(partial(self._retry, sender, chosen(run, acks.places)))
            elif consumers is None or consumer is None or _unacked(consumer):
                self._exchange.refuse(sender, chosen(run, acks.places))
            elif len(acks.seqs) == len(run.payloads) and not any(run.replies) and _plain(run):
                consumer.ack(acks.seqs)
            else:
                _Answers(self._exchange, consumers, consumer, self._clock).take(run, acks)
            known += len(acks.seqs)
        if known < len(run.subjects):
            self._strangers(sender, run)

    def _retry(self, sender: Client, run: Publishes, _: object) -> None:
        self.take(sender, run)

    def _strangers(self, sender: Client, run: Publishes) -> None:
        """Subjects that are of no ack's form."""
        places = {place for acks in ack_subject.parse_acks(run.subjects) for place in acks.places}
        others = [place for place in range(len(run.subjects)) if place not in places]
        self._exchange.refuse(sender, chosen(run, others))


class FlowTarget:
    """Takes what clients answer to flow control."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    def take(self, sender: Client, run: Publishes) -> None:
        for subject in run.subjects:
            stream, _, rest = subject[len(FLOW) :].decode("utf-8", "replace").partition(".")
            consumers = self._deliveries.get(stream)
            consumer = None if consumers is None else consumers.get(rest.partition(".")[0])
            if isinstance(consumer, PushConsumer):
                consumer.answered(subject)


class _Answers:
    """Acks of one consumer, of all kinds, in order; replies go out when what they say is safe."""

    def __init__(
        self, exchange: Exchange, consumers: Consumers, consumer: Consumer, clock: Clock
    ) -> None:
        self._exchange, self._consumers, self._consumer = exchange, consumers, consumer
        self._clock = clock
        self._acked: list[int] = []
        self._replies: list[bytes] = []

    def take(self, run: Publishes, acks: Acks) -> None:
        for place, seq in zip(acks.places, acks.seqs, strict=True):
            if not self._consumer.knows(seq):
                continue
            payload, reply = run.payloads[place], run.replies[place]
            kind = ack_subject.kind_of(payload)
            if kind is AckKind.ACK:
                self._acked.append(seq)
                if reply:
                    self._replies.append(reply)
            elif kind is not None:
                self._settle()
                self._other(kind, seq, run.subjects[place], payload, reply)
        self._settle()

    def _settle(self) -> None:
        if self._acked:
            self._consumer.ack(self._acked)
        if self._replies:
            self._consumers.durable(self._consumer, self._reply_to(self._replies))
        self._acked, self._replies = [], []

    def _other(self, kind: AckKind, seq: int, subject: bytes, payload: bytes, reply: bytes) -> None:
        consumer, tell = self._consumer, self._consumers.advisories
        count, consumer_seq = (int(subject.split(b".")[place]) for place in (-5, -3))
        if kind is AckKind.NAK:
            tell.naked(consumer.name, consumer_seq, seq, count)
            consumer.refuse(seq, ack_subject.nak_delay_ns(payload))
        elif kind is AckKind.PROGRESS:
            consumer.progress([seq])
        elif kind is AckKind.TERM:
            consumer.terminate([seq])
            reason = ack_subject.term_reason(payload)
            told = partial(tell.terminated, consumer.name, consumer_seq, seq, count, reason)
            self._consumers.durable(consumer, self._reply_to([reply] if reply else [], told))
            return
        else:
            consumer.ack([seq])
            if reply:
                pull(consumer, payload[len(b"+NXT") :].strip(), reply, self._clock)
            return
        if reply:
            self._exchange.send(reply, b"", b"", b"")

    def _reply_to(
        self, replies: list[bytes], then: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        def reply() -> None:
            if replies:
                self._exchange.answer(replies, [b""] * len(replies))
            then()

        return reply


def pull(consumer: Consumer, body: bytes, inbox: bytes, clock: Clock) -> None:
    """Ask a consumer for messages."""
    wanted = pulls.asked(consumer.config, body, inbox, clock.monotonic_ns())
    if isinstance(wanted, Request):
        consumer.request(wanted)
    else:
        consumer.tell([wanted])


def chosen(run: Publishes, places: Sequence[int]) -> Publishes:
    """Some of a run."""
    return Publishes(
        [run.subjects[place] for place in places],
        [run.replies[place] for place in places],
        None,
        [run.payloads[place] for place in places],
    )


def _plain(run: Publishes) -> bool:
    return PLAIN.issuperset(run.payloads)


def _unacked(consumer: Consumer) -> bool:
    return consumer.ledger.rules.ack_policy is AckPolicy.NONE
