"""One consumer: serves pull requests and acks by the rules of its configuration.

A `DeliveryLoop` delivers from a `Feed` through an `Outbox`; `InFlight` settles and redelivers what
was delivered. All of them act on one ledger, which decides. A commit, a pull request, an ack or the
consumer's timer starts a delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import structlog

from penstock.delivery.consumers.advisories import AckSample
from penstock.delivery.consumers.consumer_rules import rules_of
from penstock.delivery.consumers.delivery_loop import DeliveryLoop
from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.in_flight import Activity, InFlight, InFlightEvents
from penstock.delivery.consumers.outbox import Outbox
from penstock.host.tasks import Timer
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import PullRequest, Status
from penstock.ledger.rules import PriorityPolicy
from penstock.ledger.settlement import Journal
from penstock.model.errors import PenstockError
from penstock.model.times import parse_time
from penstock.streams import Stream
from penstock.wire.jetstream.consumer_config import ConsumerConfig

_events = structlog.get_logger(__name__)

_SECOND_NS: Final = 1_000_000_000


class ConsumerObserver(NamedTuple):
    """The functions that a consumer calls on its events."""

    changed: Callable[[Consumer], None]
    """The consumer's journal has changes to write."""
    settled: Callable[[Consumer, Sequence[int]], None]
    """The consumer has settled these messages."""
    exhausted: Callable[[Consumer, Iterable[int]], None]
    """These messages exceeded max_deliver and are not delivered again."""
    sampled: Callable[[Consumer, Iterable[AckSample]], None]
    """Ack times to publish."""
    inactive: Callable[[Consumer], None]
    """The consumer exceeded its inactive threshold."""


class Consumer:
    """A pull consumer; `PushConsumer` adds the deliver subject."""

    def __init__(
        self,
        host: DeliveryHost,
        stream: Stream,
        name: str,
        config: ConsumerConfig,
        created_us: int,
        feed: Feed,
        observer: ConsumerObserver,
        scope: str = "",
    ) -> None:
        """`name` is an argument because a generated name is not part of the configuration.

        `scope` is a prefix that distinguishes the consumers of the streams of one topic.
        """
        self.stream, self.name, self.config, self.created_us = stream, name, config, created_us
        self.ledger = ConsumerLedger(rules_of(config), feed.next_offset + 1)
        self.journal = Journal(self.ledger, scope + name, created_us)
        """Collects the ledger's changes to write."""
        self.closed = False
        self._observer, self._clock = observer, host.clock
        self.activity = Activity(host.clock.monotonic_ns())
        self._outbox = self._create_outbox(host)
        events = InFlightEvents(
            changed=partial(observer.changed, self),
            settled=partial(observer.settled, self),
            exhausted=partial(observer.exhausted, self),
            sampled=partial(observer.sampled, self),
            deliverable=self.deliver,
        )
        self._in_flight = InFlight(
            self.ledger, config, host.outlet, host.clock, self.activity, events
        )
        self._loop = DeliveryLoop(
            stream,
            feed,
            self.ledger,
            self._outbox,
            self._in_flight,
            host.clock,
            self._delivered,
            host.limits.steps_per_turn,
        )
        self._timer = Timer(self._tick)
        self._timer_ns = 0
        self._retry_ns: int | None = None
        self._retry_delay_ns = round(host.limits.retry_seconds * _SECOND_NS)
        self.ledger.paused = self.pause_remaining_ns > 0

    def begin(self) -> None:
        """Start the timer; called once the consumer is recorded and registered."""
        self._clock.jumps.watch(self._arm)
        self._arm()

    # -- pull requests

    def request(self, request: PullRequest) -> None:
        """Serve a pull request as far as possible now; a refused one receives a status."""
        if not self._outbox.has_subscriber(request):
            return
        self.activity.active_ns = now_ns = self._clock.monotonic_ns()
        ahead = self.feed.ahead()
        refusal = self.ledger.request(request, now_ns, 1 if ahead is None else ahead)
        if refusal is not None:
            self._refuse(request, refusal)
            return
        self._outbox.watch(request)
        if self.ledger.rules.priority_policy is PriorityPolicy.PRIORITIZED:
            # The same read may contain a request of higher priority behind this one.
            asyncio.get_running_loop().call_soon(self.deliver)
        else:
            self.deliver()
        if request in self.ledger.waiting:
            self._arm()

    def send_statuses(self, statuses: Iterable[Status]) -> None:
        """Send statuses to their inboxes."""
        self._outbox.send_statuses(statuses)

    def unpin(self) -> None:
        """Unpin the client, so that the next one is pinned."""
        self.ledger.pin.id = ""
        self.deliver()

    # -- acks

    def ack(self, seqs: Sequence[int]) -> None:
        """Settle messages that a client acked."""
        blocked = not self.ledger.room
        self._in_flight.ack(seqs)
        if blocked:
            self.deliver()

    def nak(self, seq: int, delay_ns: int) -> None:
        """Redeliver a message after a delay."""
        self._in_flight.nak(seq, delay_ns)
        self.deliver()
        self._arm()

    def progress(self, seqs: Iterable[int]) -> None:
        """Restart the ack wait of messages, because a client reports progress on them."""
        self._in_flight.progress(seqs)

    def terminate(self, seqs: Sequence[int]) -> list[int]:
        """Settle messages without redelivery; returns those that were in flight."""
        settled = self._in_flight.terminate(seqs)
        self.deliver()
        return settled

    def settle_dead_letters(self, seqs: Sequence[int]) -> None:
        """Settle messages that were copied to the dead-letter subject."""
        self._in_flight.settle_dead_letters(seqs)

    def settle_deleted(self) -> None:
        """Settle the messages that were removed from the start of the stream."""
        stream_empty = not self.stream.messages
        self._in_flight.settle_deleted(self.stream.first_offset + 1, stream_empty=stream_empty)

    # -- state

    @property
    def feed(self) -> Feed:
        """The messages to deliver next."""
        return self._loop.feed

    async def ahead(self) -> int:
        """The number of matching messages that were never delivered."""
        count = self.feed.ahead()
        return await self.feed.count() if count is None else count

    @property
    def settled_seq(self) -> int:
        """The sequence up to which every message is settled."""
        return self.ledger.settled_stream_seq

    @property
    def reached_seq(self) -> int:
        """The highest sequence that was delivered."""
        return self.ledger.stream_seq

    def wants(self, subject: bytes) -> bool:
        return self.feed.wants(subject)

    def needs(self, seq: int) -> bool:
        """Whether a message is unsettled, provided that its subject matches."""
        pending = self.ledger.pending
        if seq > self.ledger.stream_seq or seq in pending.consumer_seqs:
            return True
        # A message that exceeded max_deliver was never settled.
        return seq in pending.deliveries

    @property
    def pause_remaining_ns(self) -> int:
        """How long the consumer remains paused."""
        if not self.config.pause_until:
            return 0
        return max(0, parse_time(self.config.pause_until) - self._clock.now_us() * 1000)

    # -- changes

    def update(self, config: ConsumerConfig, feed: Feed) -> None:
        """Apply another configuration, with the feed that belongs to it."""
        if feed.next_offset < self.feed.next_offset:
            # Messages were delivered while the feed was created.
            feed.advance(self.feed.next_offset, 0)
        self.config, self._loop.feed = config, feed
        self.ledger.set_rules(rules_of(config))
        self._outbox.configure(config)
        self._in_flight.configure(config)
        self.ledger.paused = self.pause_remaining_ns > 0
        self.deliver()
        self._arm()

    def reset(self, feed: Feed) -> None:
        """Restart delivery where `feed` begins."""
        self._loop.feed = feed
        self.ledger.reset(feed.next_offset + 1)
        self.journal.require_whole()
        self._observer.changed(self)
        self.deliver()

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        """Stop; pending pull requests receive a status with the reason."""
        self.closed = True
        self._clock.jumps.unwatch(self._arm)
        self._outbox.send_statuses(self.ledger.waiting.end_all(code, text, counts=counts))
        self._timer.stop()
        self._loop.stop()

    # -- delivery and time

    def deliver(self) -> None:
        """Deliver what can be delivered now."""
        self._loop.deliver()

    def _delivered(self, failure: PenstockError | None) -> None:
        """Wait for the next deadline; nothing can be delivered before, or a read failed."""
        if failure is not None:
            self._retry_ns = self._clock.monotonic_ns() + self._retry_delay_ns
            name = f"{self.stream.name}.{self.name}"
            _events.warning("consumer_read_failed", consumer=name, reason=str(failure))
        self._arm()

    def _tick(self) -> None:
        """Apply the deadlines that have passed."""
        now_ns = self._clock.monotonic_ns()
        if self._retry_ns is not None and self._retry_ns <= now_ns:
            self._retry_ns = None
        if self.ledger.paused:
            self.ledger.paused = self.pause_remaining_ns > 0
        due = self.ledger.tick(now_ns)
        if due.statuses:
            self.activity.active_ns = now_ns
        self._outbox.send_statuses(due.statuses)
        self._in_flight.give_up(due.exhausted)
        if due.unpinned:
            _events.info("consumer_unpinned", stream=self.stream.name, consumer=self.name)
        inactive_ns = self._inactive_ns()
        if inactive_ns is not None and inactive_ns <= now_ns:
            self._observer.inactive(self)
            return
        self.deliver()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the next deadline or earlier."""
        times = [self.ledger.next_deadline(), self._retry_ns, self._inactive_ns()]
        if self.ledger.paused:
            times.append(self._clock.monotonic_ns() + self.pause_remaining_ns)
        deadline = min((time for time in times if time is not None), default=None)
        if deadline is None or self.closed:
            return
        if self._timer.when is not None and self._timer_ns <= deadline:
            return
        self._timer_ns = deadline
        wait = max(0, deadline - self._clock.monotonic_ns()) / _SECOND_NS
        self._timer.after(wait)

    def _inactive_ns(self) -> int | None:
        """The time at which the consumer exceeds its inactive threshold, if it has one."""
        if not self.config.inactive_threshold or len(self.ledger.waiting):
            return None
        return self.activity.active_ns + self.config.inactive_threshold

    # -- details

    def _create_outbox(self, host: DeliveryHost) -> Outbox:
        return Outbox(
            host,
            self.stream.name,
            self.name,
            self.config,
            self.ledger,
            self.activity,
            self._request_ended,
        )

    def _request_ended(self) -> None:
        """Begin the inactive threshold, because a request lost its subscriber."""
        self.activity.active_ns = self._clock.monotonic_ns()
        self._arm()

    def _refuse(self, request: PullRequest, refusal: Status) -> None:
        # A client with heartbeats notices their absence and sends the request again.
        if refusal.text == "Exceeded MaxWaiting" and request.heartbeat_ns:
            return
        self._outbox.send_statuses([refusal])
