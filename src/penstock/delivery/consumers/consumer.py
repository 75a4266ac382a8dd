"""One consumer at work: its ledger carried out over its stream.

There is no task while nothing happens: a commit, a request, an ack or the one timer has the pump
look for something to deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog

from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.holders import Holders
from penstock.delivery.consumers.host import DeliveryHost
from penstock.delivery.consumers.pump import Pump
from penstock.delivery.consumers.samples import Sample, samples_of
from penstock.delivery.consumers.sending import Parcel, Sender
from penstock.delivery.consumers.statuses import block
from penstock.delivery.consumers.terms import REDELIVER_ON_DISCONNECT, rules_of
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import Request, Status
from penstock.ledger.rules import AckPolicy, PriorityPolicy
from penstock.ledger.settlement import Journal
from penstock.model.errors import PenstockError
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.times import parse_time

RETRY_NS: Final = 1_000_000_000
"""After a read that failed, it is tried again so much later."""
DRAIN_SECONDS: Final = 1.0
_SECOND_NS: Final = 1_000_000_000

_events = structlog.get_logger(__name__)


class Listener(Protocol):
    """Who looks after a stream's consumers."""

    def changed(self, consumer: Consumer) -> None:
        """Something is to be kept, soon."""

    def settled(self, consumer: Consumer, seqs: Sequence[int]) -> None:
        """These are done with, for this consumer."""

    def exhausted(self, consumer: Consumer, seqs: Iterable[int]) -> None:
        """These were delivered too often and are given up."""

    def sampled(self, consumer: Consumer, samples: Iterable[Sample]) -> None:
        """So long their acks took."""

    def unpinned(self, consumer: Consumer) -> None:
        """The pinned client was silent for too long."""

    def inactive(self, consumer: Consumer) -> None:
        """Nobody has used it for longer than it may be kept."""


class Consumer:
    """Delivers, redelivers, and takes acks, by the rules of its configuration."""

    def __init__(
        self,
        host: DeliveryHost,
        stream: Stream,
        name: str,
        config: ConsumerConfig,
        created_us: int,
        feed: Feed,
        listener: Listener,
    ) -> None:
        """`name` stands apart: one that was made up is not shown in the configuration."""
        self.name, self.config, self.created_us = name, config, created_us
        self.stream, self.feed = stream, feed
        self.ledger = ConsumerLedger(rules_of(config), feed.next_offset + 1)
        self.journal = Journal(self.ledger, name, created_us)
        """What of it is to be kept."""
        self.delivered_us = self.acked_us = 0
        """When something was last delivered or acked, 0 for never."""
        self.pinned_us = 0
        """When the client was pinned that is."""
        self.closed = False
        self._pinned = ""
        self._outlet, self._listener = host.outlet, listener
        self._sender = self._make_sender()
        self._samples = samples_of(config.sample_freq)
        self.holders = self._make_holders()
        self._clock = host.clock
        self._pump = Pump(self, host.clock)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._retry_ns: int | None = None
        self._active_ns: int = self._clock.monotonic_ns()
        self._watches: dict[Request, Callable[[], None]] = {}
        self.ledger.paused = self.pause_remaining_ns > 0

    def begin(self) -> None:
        """Everything is in place: time counts from now on."""
        self._arm()

    # -- asking

    def request(self, request: Request) -> None:
        """Take a pull; it is served at once as far as possible, or told why not."""
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
            # One that goes before it may stand right behind it in what was read.
            asyncio.get_running_loop().call_soon(self._pump.look)
        else:
            self._pump.look()
        if request in self.ledger.waiting:
            self._arm()

    def withdraw(self, request: Request) -> None:
        """Nobody listens any more."""
        self._watches.pop(request, None)
        self.ledger.withdraw(request)
        self._active_ns = self._clock.monotonic_ns()
        self._arm()

    def tell(self, statuses: Iterable[Status]) -> None:
        """Say to inboxes what there is to say."""
        for status in statuses:
            self._outlet.send(status.inbox, b"", block(status), b"")
        if len(self._watches) > len(self.ledger.waiting):
            for request in [item for item in self._watches if item not in self.ledger.waiting]:
                self._watches.pop(request)()

    # -- acks

    def ack(self, seqs: Sequence[int]) -> None:
        """Messages are done."""
        blocked = not self.ledger.room
        settled = self.ledger.ack(seqs)
        self._active_ns = now_ns = self._clock.monotonic_ns()
        if self._samples is not None:
            self._listener.sampled(self, self._samples.acked(settled, now_ns))
        self._acked(settled)
        if blocked:
            self._pump.look()

    def put_aside(self, seqs: Sequence[int]) -> None:
        """Messages that were given up lie elsewhere now: they are done."""
        self.ledger.terminate(seqs)
        self._acked(list(seqs))

    def terminate(self, seqs: Sequence[int]) -> list[int]:
        """Messages are never to be delivered again; those that were in flight."""
        settled = self.ledger.terminate(seqs)
        self._acked(settled)
        self._pump.look()
        return settled

    def refuse(self, seq: int, delay_ns: int) -> None:
        """A message is to be delivered again."""
        self._give_up(self.ledger.refuse(seq, delay_ns, self._clock.monotonic_ns()))
        self._pump.look()
        self._arm()

    def progress(self, seqs: Iterable[int]) -> None:
        """Somebody works on these."""
        self._active_ns = now_ns = self._clock.monotonic_ns()
        self.ledger.progress(seqs, now_ns)

    def knows(self, seq: int) -> bool:
        """Whether it was ever delivered."""
        return seq <= self.ledger.stream_seq

    async def ahead(self) -> int:
        """Matching messages that were never delivered."""
        known = self.feed.ahead()
        return await self.feed.count() if known is None else known

    def wants(self, subject: bytes) -> bool:
        return self.feed.wants(subject)

    @property
    def settled_seq(self) -> int:
        """Nothing up to here will be delivered again."""
        return self.ledger.settled_stream_seq

    @property
    def reached_seq(self) -> int:
        """Nothing behind this was delivered."""
        return self.ledger.stream_seq

    def needs(self, seq: int) -> bool:
        """Whether it is in flight or yet to be delivered, should its subject be wanted."""
        pending = self.ledger.pending
        if seq > self.ledger.stream_seq or seq in pending.consumer_seqs:
            return True
        # One that was given up was never settled.
        return seq in pending.deliveries

    # -- delivering

    def look(self) -> None:
        """Deliver what can go out now."""
        self._pump.look()

    def dropped(self) -> None:
        """The stream begins later than before."""
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

    def send(self, request: Request, parcel: Parcel) -> int:
        """How many of them somebody got."""
        return self._sender.send(request.inbox, parcel)

    async def drained(self) -> None:
        """Wait until those who are served have taken most of what was sent, but not for ever: one
        that does not read must not keep messages from the others.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                for request in list(self.ledger.waiting):
                    await self._outlet.drained(request.inbox)

    def went_out(self, seqs: Sequence[int], missed: Sequence[int], *, again: bool) -> None:
        """These were sent; nobody got those that were `missed`."""
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
        """Nothing more goes out now; with an error, it is to be tried again later."""
        if error is not None:
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
            name = f"{self.stream.name}.{self.name}"
            _events.warning("consumer_read_failed", consumer=name, reason=str(error))
        self._arm()

    # -- changing

    def update(self, config: ConsumerConfig, feed: Feed) -> None:
        """Go on by another configuration."""
        if feed.next_offset < self.feed.next_offset:
            # Messages went out while this was made.
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
        """Begin anew where this feed begins."""
        self.feed = feed
        self.ledger.reset(feed.next_offset + 1)
        self.journal.begin()
        self._listener.changed(self)
        self._pump.look()

    @property
    def pause_remaining_ns(self) -> int:
        """How long nothing is delivered yet."""
        if not self.config.pause_until:
            return 0
        return max(0, parse_time(self.config.pause_until) - self._clock.now_us() * 1000)

    def unpin(self) -> None:
        """Let the next client be pinned."""
        self.ledger.pin.id = ""
        self._pump.look()

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        """Do nothing more; whoever waits is told why."""
        self.closed = True
        self.tell(self.ledger.waiting.end_all(code, text, counts=counts))
        if self._timer is not None:
            self._timer.cancel()
        self._pump.stop()

    # -- time

    def _tick(self) -> None:
        self._timer = None
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
        """Have the timer ring at the next deadline, or before."""
        times = [self.ledger.next_deadline(), self._retry_ns, self._unused_ns()]
        if self.ledger.paused:
            times.append(self._clock.monotonic_ns() + self.pause_remaining_ns)
        deadline = min((time for time in times if time is not None), default=None)
        if deadline is None or self.closed:
            return
        if self._timer is not None:
            if self._timer_ns <= deadline:
                return
            self._timer.cancel()
        self._timer_ns = deadline
        wait = max(0, deadline - self._clock.monotonic_ns()) / _SECOND_NS
        self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _unused_ns(self) -> int | None:
        """When it counts as unused."""
        if not self.config.inactive_threshold or len(self.ledger.waiting):
            return None
        return self._active_ns + self.config.inactive_threshold

    # -- details

    def _make_sender(self) -> Sender:
        config = self.config
        return Sender(self._outlet, self.stream.name, self.name, headers_only=config.headers_only)

    def _make_holders(self) -> Holders | None:
        wanted = self.config.metadata.get(REDELIVER_ON_DISCONNECT) == "true"
        return Holders(self._outlet, self._abandoned) if wanted else None

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

    def _watch(self, request: Request) -> None:
        cancel = self._outlet.on_no_interest(request.inbox, lambda: self.withdraw(request))
        self._watches[request] = cancel

    def _tell_refused(self, request: Request, refused: Status) -> None:
        # A client with heartbeats finds out by their absence that it has to ask again.
        if refused.text == "Exceeded MaxWaiting" and request.heartbeat_ns:
            return
        self.tell([refused])
