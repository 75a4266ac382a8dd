"""One consumer at work: its ledger carried out over its stream.

There is no task while nothing happens. A commit, a request, an ack or the one timer calls `pump`,
which delivers at once whatever is in memory; only what must be read or counted elsewhere makes a
task, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import structlog

from penstock.delivery.feed import Feed
from penstock.delivery.host import DeliveryHost
from penstock.delivery.sending import Parcel, Sender
from penstock.delivery.statuses import block
from penstock.delivery.terms import rules_of
from penstock.host.entropy import unique_name
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import Given, Request, Status
from penstock.ledger.rules import AckPolicy, PriorityPolicy
from penstock.ledger.settlement import Journal
from penstock.model.errors import PenstockError
from penstock.topics.rows import Rows
from penstock.topics.stream import Stream
from penstock.wire.jetstream.consumer_config import ConsumerConfig
from penstock.wire.jetstream.times import parse_time

RETRY_NS: Final = 1_000_000_000
"""After a read that failed, it is tried again so much later."""
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
        config: ConsumerConfig,
        created_us: int,
        feed: Feed,
        listener: Listener,
    ) -> None:
        self.name, self.config, self.created_us = config.name, config, created_us
        self.stream, self.feed = stream, feed
        self.ledger = ConsumerLedger(rules_of(config), feed.next_offset + 1)
        self.journal = Journal(self.ledger, config.name, created_us)
        self.delivered_us = self.acked_us = 0
        """When something was last delivered or acked, 0 for never."""
        self.closed = False
        self._host, self._listener = host, listener
        self._sender = self._make_sender()
        self._clock = host.clock
        self._working: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._retry_ns: int | None = None
        self._active_ns: int = self._clock.monotonic_ns()
        self._watches: dict[Request, Callable[[], None]] = {}
        self._start_seq = feed.next_offset + 1
        self.pause()

    # -- asking

    def request(self, request: Request) -> None:
        """Take a pull; it is served at once as far as possible, or told why not."""
        now_ns = self._clock.monotonic_ns()
        self._active_ns = now_ns
        ahead = self.feed.ahead()
        refused = self.ledger.request(request, now_ns, 1 if ahead is None else ahead)
        if refused is not None:
            self._tell_refused(request, refused)
            return
        self._watch(request)
        self.pump()

    def withdraw(self, request: Request) -> None:
        """Nobody listens any more."""
        self._watches.pop(request, None)
        self.ledger.withdraw(request)
        self._active_ns = self._clock.monotonic_ns()
        self._arm()

    def tell(self, statuses: Iterable[Status]) -> None:
        """Say to inboxes what there is to say."""
        for status in statuses:
            self._host.outlet.send(status.inbox, b"", block(status), b"")

    # -- acks

    def ack(self, seqs: Sequence[int]) -> None:
        """Messages are done."""
        blocked = not self.ledger.room
        settled = self.ledger.ack(seqs)
        self._active_ns = self._clock.monotonic_ns()
        self._acked(settled)
        if blocked and len(self.ledger.waiting):
            self.pump()

    def terminate(self, seqs: Sequence[int]) -> list[int]:
        """Messages are never to be delivered again; those that were in flight."""
        settled = self.ledger.terminate(seqs)
        self._acked(settled)
        self.pump()
        return settled

    def refuse(self, seq: int, delay_ns: int) -> None:
        """A message is to be delivered again."""
        self._give_up(self.ledger.refuse(seq, delay_ns, self._clock.monotonic_ns()))
        self.pump()

    def progress(self, seqs: Iterable[int]) -> None:
        """Somebody works on these."""
        self._active_ns = now_ns = self._clock.monotonic_ns()
        self.ledger.progress(seqs, now_ns)

    def knows(self, seq: int) -> bool:
        """Whether it was ever delivered."""
        return seq <= self.ledger.stream_seq

    def needs(self, seq: int) -> bool:
        """Whether it is in flight or yet to be delivered, should its subject be wanted."""
        return seq > self.ledger.stream_seq or seq in self.ledger.pending.consumer_seqs

    # -- delivering

    def pump(self) -> None:
        """Deliver what can go out now."""
        if self._working is not None or self.closed:
            return
        if len(self.ledger.waiting):
            while (more := self._step()) is True:
                pass
            if more is None:
                self._working = asyncio.get_running_loop().create_task(self._work())
        self._arm()

    def stream_changed(self) -> None:
        """Messages came, or went."""
        first = self.stream.first_seq
        if first - 1 > self.ledger.settled_stream_seq:
            self.ledger.purged(first)
            self._listener.changed(self)
        if self.feed.next_offset < first - 1:
            self.feed.advance(first - 1, 0)
        if len(self.ledger.waiting):
            self.pump()

    # -- changing

    def update(self, config: ConsumerConfig, filters_feed: Feed) -> None:
        """Go on by another configuration."""
        self.config, self.feed = config, filters_feed
        self.ledger.rules = self.ledger.pending.rules = rules_of(config)
        self._sender = self._make_sender()
        self.pause()
        self.pump()

    def reset(self, feed: Feed) -> None:
        """Begin anew where this feed begins."""
        self.feed = feed
        self.ledger.reset(feed.next_offset + 1)
        self.journal.begin()
        self._listener.changed(self)
        self.pump()

    def pause(self) -> None:
        """Deliver nothing until the time that the configuration names."""
        self.ledger.paused = self.pause_remaining_ns > 0
        self._arm()

    @property
    def pause_remaining_ns(self) -> int:
        if not self.config.pause_until:
            return 0
        return max(0, parse_time(self.config.pause_until) - self._clock.now_us() * 1000)

    def unpin(self) -> None:
        """Let the next client be pinned."""
        self.ledger.pin.id = ""
        self.pump()

    def close(self, code: int, text: str, *, counts: bool = False) -> None:
        """Do nothing more; whoever waits is told why."""
        self.closed = True
        self.tell(self.ledger.waiting.end_all(code, text, counts=counts))
        self._unwatch_ended()
        if self._timer is not None:
            self._timer.cancel()
        if self._working is not None:
            self._working.cancel()

    # -- steps

    def _step(self) -> bool | None:
        """One delivery from memory: whether there may be more; None when that takes a while."""
        ahead = self.feed.ahead()
        if ahead is None:
            return None
        now_ns = self._clock.monotonic_ns()
        plan = self.ledger.plan(ahead, now_ns, self._fresh_pin())
        if plan.again:
            return None
        rows = self.feed.peek(plan.fresh) if plan.fresh and ahead else None
        if rows is None and plan.fresh and ahead:
            return None
        if rows is None or not rows.count:
            self._idle()
            return False
        self._deliver(rows, ahead, now_ns, limited=plan.limited)
        return bool(len(self.ledger.waiting))

    async def _work(self) -> None:
        """The same where something has to be read or counted."""
        try:
            while not self.closed and len(self.ledger.waiting):
                if not await self._slow_step():
                    break
        except PenstockError as error:
            self._retry_ns = self._clock.monotonic_ns() + RETRY_NS
            _events.warning(
                "consumer_read_failed",
                stream=self.stream.name,
                consumer=self.name,
                reason=str(error),
            )
        finally:
            self._working = None
        self._arm()
        if self._retry_ns is None:
            self.pump()

    async def _slow_step(self) -> bool:
        """Whether the next step may need to wait as well."""
        feed = self.feed
        if feed.ahead() is None:
            await feed.count()
        ahead = feed.ahead() or 0
        plan = self.ledger.plan(ahead, self._clock.monotonic_ns(), self._fresh_pin())
        if plan.again:
            await self._read_again(plan.again)
            return True
        if not plan.fresh or not ahead:
            return False
        rows = await feed.read(plan.fresh)
        if not rows.count or feed is not self.feed:
            return False
        # Meanwhile requests may have gone, and a count may have changed.
        now_ns, ahead = self._clock.monotonic_ns(), max(feed.ahead() or 0, rows.count)
        plan = self.ledger.plan(ahead, now_ns, self._fresh_pin())
        if plan.fresh and rows.offsets[0] >= feed.next_offset:
            kept = rows if plan.fresh >= rows.count else rows.part(0, plan.fresh)
            self._deliver(kept, ahead, now_ns, limited=plan.limited)
        return True

    async def _read_again(self, seqs: Sequence[int]) -> None:
        wanted = sorted(seqs)
        rows = await self.stream.read_offsets([seq - 1 for seq in wanted])
        found = {offset + 1 for offset in rows.offsets}
        self.ledger.gone(seq for seq in wanted if seq not in found)
        now_ns, ahead = self._clock.monotonic_ns(), self.feed.ahead() or 0
        plan = self.ledger.plan(ahead, now_ns, self._fresh_pin())
        still = set(plan.again)
        places = [place for place, offset in enumerate(rows.offsets) if offset + 1 in still]
        if places:
            kept = rows if len(places) == rows.count else rows.take(places)
            self._deliver(kept, ahead, now_ns, limited=plan.limited, again=True)

    def _deliver(
        self, rows: Rows, ahead: int, now_ns: int, *, limited: bool, again: bool = False
    ) -> None:
        ledger, count = self.ledger, rows.count
        seqs: Sequence[int] = [offset + 1 for offset in rows.offsets]
        if isinstance(rows.offsets, range):
            seqs = range(rows.offsets.start + 1, rows.offsets.stop + 1)
        counts = [ledger.pending.count(seq) + 1 for seq in seqs] if again else [1] * count
        pendings = [ahead] * count if again else range(ahead - 1, ahead - 1 - count, -1)
        parcel = self._sender.parcel(rows, counts, ledger.consumer_seq + 1, pendings, ledger.pin.id)
        given, statuses = ledger.offer(seqs, parcel.sizes() if limited else None, ahead, now_ns)
        missed = self._send(given, parcel)
        reached = sum(len(item.positions) for item in given)
        while reached and missed and missed[-1] == reached - 1:
            missed.pop()
            reached -= 1
        if reached:
            self._note(seqs[:reached], now_ns, [seqs[place] for place in missed], again=again)
        self.tell(statuses)
        self._unwatch_ended()

    def _send(self, given: Sequence[Given], parcel: Parcel) -> list[int]:
        """Positions of messages that nobody got, ascending."""
        missed: list[int] = []
        for request, positions in given:
            sent = self.send(request, parcel.take(positions))
            if sent < len(positions):
                missed += positions[sent:]
                self.withdraw(request)
        return sorted(missed)

    def send(self, request: Request, parcel: Parcel) -> int:
        """How many of them somebody got."""
        return self._sender.send(request.inbox, parcel)

    def _note(self, seqs: Sequence[int], now_ns: int, missed: list[int], *, again: bool) -> None:
        self.delivered_us = self._clock.now_us()
        self._active_ns = now_ns
        if again:
            self.ledger.repeated(seqs, now_ns)
        else:
            self.ledger.delivered(seqs, now_ns)
            self.feed.advance(seqs[-1], len(seqs))
            if missed:
                self.ledger.missed(missed)
            if self.ledger.rules.ack_policy is AckPolicy.NONE:
                self._listener.settled(self, seqs)
        self._listener.changed(self)

    def _idle(self) -> None:
        self.tell(self.ledger.idle())
        self._unwatch_ended()

    # -- time

    def _tick(self) -> None:
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        if self._retry_ns is not None and self._retry_ns <= now_ns:
            self._retry_ns = None
        if self.ledger.paused:
            self.ledger.paused = self.pause_remaining_ns > 0
        due = self.ledger.tick(now_ns)
        self.tell(due.statuses)
        self._unwatch_ended()
        self._give_up(due.exhausted)
        if due.unpinned:
            self._listener.unpinned(self)
        if self._idle_ns() is not None and now_ns >= (self._idle_ns() or 0):
            self._listener.inactive(self)
            return
        self.pump()

    def _arm(self) -> None:
        """Have the timer ring at the next deadline, or before."""
        times = [self.ledger.next_deadline(), self._retry_ns, self._idle_ns()]
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

    def _idle_ns(self) -> int | None:
        """When it counts as unused."""
        if not self.config.inactive_threshold or len(self.ledger.waiting):
            return None
        return self._active_ns + self.config.inactive_threshold

    # -- details

    def _make_sender(self) -> Sender:
        config = self.config
        return Sender(
            self._host.outlet, self.stream.name, config.name, headers_only=config.headers_only
        )

    def _fresh_pin(self) -> str:
        if self.ledger.rules.priority_policy is not PriorityPolicy.PINNED:
            return ""
        return "" if self.ledger.pin.id else unique_name()[:22]

    def _acked(self, settled: list[int]) -> None:
        self.acked_us = self._clock.now_us()
        if settled:
            self._listener.settled(self, settled)
            self._listener.changed(self)

    def _give_up(self, exhausted: list[int]) -> None:
        if exhausted:
            self._listener.exhausted(self, exhausted)
            self._listener.changed(self)

    def _watch(self, request: Request) -> None:
        cancel = self._host.outlet.on_no_interest(request.inbox, lambda: self.withdraw(request))
        self._watches[request] = cancel

    def _unwatch_ended(self) -> None:
        for request in [item for item in self._watches if item not in self.ledger.waiting]:
            self._watches.pop(request)()

    def _tell_refused(self, request: Request, refused: Status) -> None:
        # A client with heartbeats finds out by their absence that it has to ask again.
        if refused.text == "Exceeded MaxWaiting" and request.heartbeat_ns:
            return
        self.tell([refused])
