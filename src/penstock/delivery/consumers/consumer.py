"""One consumer: carries out the decisions of its ledger on its stream.

An idle consumer has no task. A commit, a pull request, an ack or its timer makes it look for
messages to deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, Protocol

import structlog

from penstock.delivery.consumers.advisories import AckSample, samples_of
from penstock.delivery.consumers.consumer_rules import REDELIVER_ON_DISCONNECT, rules_of
from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.sending import InboxDeliveries, Parcel, Sender, block
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Tasks, Timer
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import PullRequest, RequestShare, Status
from penstock.ledger.rules import AckPolicy, PriorityPolicy
from penstock.ledger.settlement import Journal
from penstock.model.errors import PenstockError
from penstock.model.times import parse_time
from penstock.streams import Rows, Stream
from penstock.wire.jetstream.consumer_config import ConsumerConfig

_events = structlog.get_logger(__name__)


STEPS_MAX: Final = 4
"""The most deliveries of one consumer in one turn of the event loop."""


class _Step(Enum):
    MORE = "there may be more"
    WAIT = "something has to be read or counted first"
    REST = "nothing can go out"


class Pump:
    """Runs the deliveries of one consumer: at once from memory, otherwise in one task."""

    def __init__(self, consumer: Consumer, clock: Clock) -> None:
        self._consumer, self._clock = consumer, clock
        self._tasks = Tasks()
        self._working: asyncio.Task[None] | None = None
        self._look_again = False

    def look(self) -> None:
        """Deliver what can be delivered now; a task continues with what is not in memory."""
        consumer = self._consumer
        if consumer.closed or not len(consumer.ledger.waiting):
            return
        if self._working is not None:
            self._look_again = True
            return
        step, steps = _Step.MORE, 0
        while step is _Step.MORE and steps < STEPS_MAX:
            step, steps = self._step(), steps + 1
        if step is not _Step.REST:
            self._working = self._tasks.start(self._work(full=step is _Step.MORE))
        else:
            consumer.rest(None)

    def stop(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def _step(self) -> _Step:
        """Make one delivery from memory, if possible."""
        consumer = self._consumer
        ahead = consumer.feed.ahead()
        if ahead is None:
            return _Step.WAIT
        now_ns = self._clock.monotonic_ns()
        plan = consumer.ledger.plan(ahead, now_ns, self._fresh_pin())
        if plan.again:
            return _Step.WAIT
        if not plan.fresh or not ahead:
            return self._idle()
        rows = consumer.feed.peek(plan.fresh)
        if rows is None:
            return _Step.WAIT
        if not rows.count:
            return self._idle()
        self._deliver(rows, ahead, now_ns, limited=plan.limited)
        return _Step.MORE if len(consumer.ledger.waiting) else _Step.REST

    async def _work(self, *, full: bool) -> None:
        consumer, failed = self._consumer, None
        try:
            if full:
                self._look_again = True
                await consumer.drained()
                return
            while not consumer.closed and len(consumer.ledger.waiting) and await self._slow_step():
                self._look_again = True
        except PenstockError as error:
            failed = error
        finally:
            self._working = None
            self._worked(failed)

    def _worked(self, failed: PenstockError | None) -> None:
        again, self._look_again = self._look_again, False
        self._consumer.rest(failed)
        if again and failed is None:
            self.look()

    async def _slow_step(self) -> bool:
        """Make one delivery from disk or object store; returns whether there may be more."""
        consumer, feed = self._consumer, self._consumer.feed
        ahead = feed.ahead()
        if ahead is None:
            ahead = await feed.count()
        plan = consumer.ledger.plan(ahead, self._clock.monotonic_ns(), self._fresh_pin())
        if plan.again:
            await self._read_again(plan.again)
            return True
        rows = await feed.read(plan.fresh) if plan.fresh and ahead else None
        if feed is not consumer.feed:
            return True
        if rows is None or not rows.count:
            self._idle()
            return False
        # Requests may have ended and messages arrived during the read.
        now_ns, ahead = self._clock.monotonic_ns(), max(feed.ahead() or 0, rows.count)
        plan = consumer.ledger.plan(ahead, now_ns, self._fresh_pin())
        if plan.fresh and rows.offsets[0] >= feed.next_offset:
            kept = rows if plan.fresh >= rows.count else rows.part(0, plan.fresh)
            self._deliver(kept, ahead, now_ns, limited=plan.limited)
            await consumer.drained()
        return True

    async def _read_again(self, seqs: Sequence[int]) -> None:
        consumer, wanted = self._consumer, sorted(seqs)
        rows = await consumer.stream.read_intact([seq - 1 for seq in wanted])
        found = {offset + 1 for offset in rows.offsets}
        consumer.ledger.gone(seq for seq in wanted if seq not in found)
        now_ns, ahead = self._clock.monotonic_ns(), consumer.feed.ahead() or 0
        plan = consumer.ledger.plan(ahead, now_ns, self._fresh_pin())
        still = set(plan.again)
        places = [place for place, offset in enumerate(rows.offsets) if offset + 1 in still]
        if places:
            kept = rows if len(places) == rows.count else rows.take(places)
            self._deliver(kept, ahead, now_ns, limited=plan.limited, again=True)

    def _deliver(
        self, rows: Rows, ahead: int, now_ns: int, *, limited: bool, again: bool = False
    ) -> None:
        consumer, count = self._consumer, rows.count
        ledger = consumer.ledger
        seqs = rows.seqs
        counts = [ledger.pending.count(seq) + 1 for seq in seqs] if again else [1] * count
        pendings = [ahead] * count if again else range(ahead - 1, ahead - 1 - count, -1)
        parcel = consumer.parcel(rows, counts, pendings)
        given, statuses = ledger.offer(seqs, parcel.sizes() if limited else None, ahead, now_ns)
        missed = self._send(given, parcel, seqs)
        reached = sum(len(item.positions) for item in given)
        while missed and missed[-1] == reached - 1:
            missed.pop()
            reached -= 1
        if reached:
            consumer.went_out(seqs[:reached], [seqs[place] for place in missed], again=again)
        consumer.tell(statuses)

    def _send(
        self, given: Sequence[RequestShare], parcel: Parcel, seqs: Sequence[int]
    ) -> list[int]:
        """Send to each request; returns the positions of messages nobody received, ascending."""
        missed: list[int] = []
        holders = self._consumer.holders
        for request, positions in given:
            if holders is not None:
                holders.given(request.inbox, [seqs[place] for place in positions])
            sent = self._consumer.send(request, parcel.take(positions))
            if sent < len(positions):
                missed += positions[sent:]
                self._consumer.withdraw(request)
        return sorted(missed)

    def _idle(self) -> _Step:
        self._consumer.tell(self._consumer.ledger.idle())
        return _Step.REST

    def _fresh_pin(self) -> str:
        ledger = self._consumer.ledger
        if ledger.rules.priority_policy is not PriorityPolicy.PINNED or ledger.pin.id:
            return ""
        return unique_name()[:22]


RETRY_NS: Final = 1_000_000_000
"""The delay before a failed read is retried."""
DRAIN_SECONDS: Final = 1.0
_SECOND_NS: Final = 1_000_000_000


class ConsumerObserver(Protocol):
    """Receives the events of a stream's consumers."""

    def changed(self, consumer: Consumer) -> None:
        """The consumer's journal has changes to write."""

    def settled(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """The consumer has settled these messages."""

    def exhausted(self, consumer: Consumer, seqs: Iterable[int]) -> None:
        """These messages exceeded max_deliver and are not delivered again."""

    def sampled(self, consumer: Consumer, samples: Iterable[AckSample]) -> None:
        """Ack times to publish."""

    def unpinned(self, consumer: Consumer) -> None:
        """The pinned client exceeded its priority timeout."""

    def inactive(self, consumer: Consumer) -> None:
        """The consumer exceeded its inactive threshold."""


class Consumer:
    """Delivers and redelivers messages and applies acks, by the rules of its configuration."""

    def __init__(
        self,
        host: DeliveryHost,
        stream: Stream,
        name: str,
        config: ConsumerConfig,
        created_us: int,
        feed: Feed,
        listener: ConsumerObserver,
    ) -> None:
        """`name` is given apart, because a generated name is not part of the configuration."""
        self.name, self.config, self.created_us = name, config, created_us
        self.stream, self.feed = stream, feed
        self.ledger = ConsumerLedger(rules_of(config), feed.next_offset + 1)
        self.journal = Journal(self.ledger, name, created_us)
        """Collects the ledger's changes to write."""
        self.delivered_us = self.acked_us = 0
        """Times of the last delivery and the last ack, 0 for never."""
        self.pinned_us = 0
        """The time at which the current client was pinned."""
        self.closed = False
        self._pinned = ""
        self._outlet, self._listener = host.outlet, listener
        self._sender = self._make_sender()
        self._samples = samples_of(config.sample_freq)
        self.holders = self._make_holders()
        self._clock = host.clock
        self._pump = Pump(self, host.clock)
        self._timer = Timer(self._tick)
        self._timer_ns = 0
        self._retry_ns: int | None = None
        self._active_ns: int = self._clock.monotonic_ns()
        self._watches: dict[PullRequest, Callable[[], None]] = {}
        self.ledger.paused = self.pause_remaining_ns > 0

    def begin(self) -> None:
        """Start the timer; called once the consumer is recorded and registered."""
        self._clock.jumps.watch(self._arm)
        self._arm()

    # -- asking

    def request(self, request: PullRequest) -> None:
        """Serve a pull request as far as possible now; a refused one receives a status."""
        if not self._outlet.has_interest(request.inbox):
            return
        now_ns = self._clock.monotonic_ns()
        self._active_ns = now_ns
        ahead = self.feed.ahead()
        refused = self.ledger.request(request, now_ns, 1 if ahead is None else ahead)
        if refused is not None:
            self._tell_refused(request, refused)
            return
        self._watch(request)
        if self.ledger.rules.priority_policy is PriorityPolicy.PRIORITIZED:
            # The same read may contain a request of higher priority behind this one.
            asyncio.get_running_loop().call_soon(self._pump.look)
        else:
            self._pump.look()
        if request in self.ledger.waiting:
            self._arm()

    def withdraw(self, request: PullRequest) -> None:
        """End a request whose inbox has no subscriber any more."""
        self._watches.pop(request, None)
        self.ledger.withdraw(request)
        self._active_ns = self._clock.monotonic_ns()
        self._arm()

    def tell(self, statuses: Iterable[Status]) -> None:
        """Send statuses to their inboxes."""
        for status in statuses:
            self._outlet.send(status.inbox, b"", block(status), b"")
        if len(self._watches) > len(self.ledger.waiting):
            for request in [item for item in self._watches if item not in self.ledger.waiting]:
                self._watches.pop(request)()

    # -- acks

    def ack(self, seqs: Sequence[int]) -> None:
        """Settle messages that a client acked."""
        blocked = not self.ledger.room
        settled = self.ledger.ack(seqs)
        self._active_ns = now_ns = self._clock.monotonic_ns()
        if self._samples is not None:
            self._listener.sampled(self, self._samples.acked(settled, now_ns))
        self._acked(settled)
        if blocked:
            self._pump.look()

    def put_aside(self, seqs: Sequence[int]) -> None:
        """Settle messages that were copied to the dead-letter subject."""
        self.ledger.terminate(seqs)
        self._acked(list(seqs))

    def terminate(self, seqs: Sequence[int]) -> list[int]:
        """Settle messages without redelivery; returns those that were in flight."""
        settled = self.ledger.terminate(seqs)
        self._acked(settled)
        self._pump.look()
        return settled

    def refuse(self, seq: int, delay_ns: int) -> None:
        """Redeliver a message after a delay."""
        self._give_up(self.ledger.refuse(seq, delay_ns, self._clock.monotonic_ns()))
        self._pump.look()
        self._arm()

    def progress(self, seqs: Iterable[int]) -> None:
        """Restart the ack wait of messages, because a client reports progress on them."""
        self._active_ns = now_ns = self._clock.monotonic_ns()
        self.ledger.progress(seqs, now_ns)

    def knows(self, seq: int) -> bool:
        """Whether the message has been delivered at least once."""
        return seq <= self.ledger.stream_seq

    async def ahead(self) -> int:
        """The number of matching messages that were never delivered."""
        known = self.feed.ahead()
        return await self.feed.count() if known is None else known

    def wants(self, subject: bytes) -> bool:
        return self.feed.wants(subject)

    @property
    def settled_seq(self) -> int:
        """The sequence up to which every message is settled."""
        return self.ledger.settled_stream_seq

    @property
    def reached_seq(self) -> int:
        """The highest sequence that was delivered."""
        return self.ledger.stream_seq

    def needs(self, seq: int) -> bool:
        """Whether a message is unsettled, provided that its subject matches."""
        pending = self.ledger.pending
        if seq > self.ledger.stream_seq or seq in pending.consumer_seqs:
            return True
        # A message that exceeded max_deliver was never settled.
        return seq in pending.deliveries

    # -- delivering

    def look(self) -> None:
        """Deliver what can be delivered now."""
        self._pump.look()

    def dropped(self) -> None:
        """Settle the messages that were removed from the start of the stream."""
        stream, ledger = self.stream, self.ledger
        if ledger.settled_stream_seq < stream.first_offset and ledger.dropped(
            stream.first_offset + 1, all_gone=not stream.messages
        ):
            self.acked_us = self._clock.now_us()
            self._listener.changed(self)

    def parcel(self, rows: Rows, counts: Sequence[int], pendings: Sequence[int]) -> Parcel:
        ledger, pin = self.ledger, self.ledger.pin.id
        if pin and pin != self._pinned:
            self._pinned, self.pinned_us = pin, self._clock.now_us()
        return self._sender.parcel(rows, counts, ledger.consumer_seq + 1, pendings, pin)

    def send(self, request: PullRequest, parcel: Parcel) -> int:
        """Send messages to a request; returns how many were received, from the first."""
        return self._sender.send(request.inbox, parcel)

    async def drained(self) -> None:
        """Wait until the clients with pending requests have read most of their output.

        The wait is bounded, so that a client that does not read holds up no others.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                for request in list(self.ledger.waiting):
                    await self._outlet.drained(request.inbox)

    def went_out(self, seqs: Sequence[int], missed: Sequence[int], *, again: bool) -> None:
        """Record a delivery of `seqs`; nobody received those in `missed`."""
        self.delivered_us = self._clock.now_us()
        self._active_ns = now_ns = self._clock.monotonic_ns()
        if self._samples is not None:
            self._samples.delivered(seqs, self.ledger.consumer_seq + 1, now_ns)
        if again:
            self.ledger.repeated(seqs, now_ns)
        else:
            self.ledger.delivered(seqs, now_ns)
            self.feed.advance(seqs[-1], len(seqs))
            self.ledger.missed(missed)
            if self.ledger.rules.ack_policy is AckPolicy.NONE:
                self._listener.settled(self, seqs)
        self._listener.changed(self)

    def rest(self, error: PenstockError | None) -> None:
        """Record that nothing more can be delivered now; after an error, retry later."""
        if error is not None:
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
            name = f"{self.stream.name}.{self.name}"
            _events.warning("consumer_read_failed", consumer=name, reason=str(error))
        self._arm()

    # -- changing

    def update(self, config: ConsumerConfig, feed: Feed) -> None:
        """Apply another configuration, with the feed that belongs to it."""
        if feed.next_offset < self.feed.next_offset:
            # Messages were delivered while the feed was created.
            feed.advance(self.feed.next_offset, 0)
        self.config, self.feed = config, feed
        self.ledger.change(rules_of(config))
        self._sender = self._make_sender()
        self._samples = samples_of(config.sample_freq)
        self.holders = self._make_holders()
        self.ledger.paused = self.pause_remaining_ns > 0
        self._pump.look()
        self._arm()

    def reset(self, feed: Feed) -> None:
        """Restart delivery where `feed` begins."""
        self.feed = feed
        self.ledger.reset(feed.next_offset + 1)
        self.journal.begin()
        self._listener.changed(self)
        self._pump.look()

    @property
    def pause_remaining_ns(self) -> int:
        """How long the consumer remains paused."""
        if not self.config.pause_until:
            return 0
        return max(0, parse_time(self.config.pause_until) - self._clock.now_us() * 1000)

    def unpin(self) -> None:
        """Unpin the client, so that the next one is pinned."""
        self.ledger.pin.id = ""
        self._pump.look()

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        """Stop; pending pull requests receive a status with the reason."""
        self.closed = True
        self._clock.jumps.unwatch(self._arm)
        self.tell(self.ledger.waiting.end_all(code, text, counts=counts))
        self._timer.stop()
        self._pump.stop()

    # -- time

    def _tick(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._retry_ns is not None and self._retry_ns <= now_ns:
            self._retry_ns = None
        if self.ledger.paused:
            self.ledger.paused = self.pause_remaining_ns > 0
        due = self.ledger.tick(now_ns)
        if due.statuses:
            self._active_ns = now_ns
        self.tell(due.statuses)
        self._give_up(due.exhausted)
        if due.unpinned:
            self._listener.unpinned(self)
        unused_ns = self._unused_ns()
        if unused_ns is not None and unused_ns <= now_ns:
            self._listener.inactive(self)
            return
        self._pump.look()
        self._arm()

    def _arm(self) -> None:
        """Set the timer to the next deadline or earlier."""
        times = [self.ledger.next_deadline(), self._retry_ns, self._unused_ns()]
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

    def _unused_ns(self) -> int | None:
        """The time at which the consumer exceeds its inactive threshold, if it has one."""
        if not self.config.inactive_threshold or len(self.ledger.waiting):
            return None
        return self._active_ns + self.config.inactive_threshold

    # -- details

    def _make_sender(self) -> Sender:
        config = self.config
        return Sender(self._outlet, self.stream.name, self.name, headers_only=config.headers_only)

    def _make_holders(self) -> InboxDeliveries | None:
        wanted = self.config.metadata.get(REDELIVER_ON_DISCONNECT) == "true"
        return InboxDeliveries(self._outlet, self._abandoned) if wanted else None

    def _abandoned(self, seqs: list[int]) -> None:
        self._give_up(self.ledger.abandoned(seqs))
        self._pump.look()

    def _acked(self, settled: list[int]) -> None:
        self.acked_us = self._clock.now_us()
        if self.holders is not None:
            self.holders.settled(settled)
        if settled:
            self._listener.settled(self, settled)
            self._listener.changed(self)

    def _give_up(self, exhausted: list[int]) -> None:
        if self.holders is not None:
            self.holders.settled(exhausted)
        if exhausted:
            self._listener.exhausted(self, exhausted)
            self._listener.changed(self)

    def _watch(self, request: PullRequest) -> None:
        cancel = self._outlet.on_no_interest(request.inbox, lambda: self.withdraw(request))
        self._watches[request] = cancel

    def _tell_refused(self, request: PullRequest, refused: Status) -> None:
        # A client with heartbeats notices their absence and sends the request again.
        if refused.text == "Exceeded MaxWaiting" and request.heartbeat_ns:
            return
        self.tell([refused])
