"""Reads the messages that one consumer may deliver, and sends them to its waiting requests.

An idle consumer has no task. Messages in memory are delivered in the turn of the event loop in
which `deliver` is called; one task reads the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum

from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.in_flight import InFlight
from penstock.delivery.consumers.outbox import Outbox
from penstock.delivery.consumers.sending import Parcel
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.host.tasks import Tasks
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import Status
from penstock.ledger.rules import PriorityPolicy
from penstock.model.errors import PenstockError
from penstock.streams import Rows, Stream


class _Step(Enum):
    """The result of one delivery from memory."""

    MORE = "there may be more messages in memory"
    READ = "messages must be read or counted first"
    IDLE = "nothing can be delivered"


class DeliveryLoop:
    """Delivers from a feed to the requests of one consumer until nothing can be delivered."""

    def __init__(
        self,
        stream: Stream,
        feed: Feed,
        ledger: ConsumerLedger,
        outbox: Outbox,
        in_flight: InFlight,
        clock: Clock,
        idle: Callable[[PenstockError | None], None],
        steps_max: int,
    ) -> None:
        """`idle` is called when nothing can be delivered, with the error if a read failed.

        `steps_max` is the most deliveries in one turn of the event loop.
        """
        self.feed = feed
        self._stream, self._ledger, self._clock = stream, ledger, clock
        self._outbox, self._in_flight, self._idle = outbox, in_flight, idle
        self._steps_max = steps_max
        self._tasks = Tasks()
        self._reading: asyncio.Task[None] | None = None
        self._deliver_again = False
        self._stopped = False

    @property
    def reading(self) -> bool:
        """Whether a task is reading messages."""
        return self._reading is not None

    def deliver(self) -> None:
        """Deliver what can be delivered now; a task reads what is not in memory."""
        if not self._has_requests():
            return
        if self._reading is not None:
            self._deliver_again = True
            return
        step, steps = _Step.MORE, 0
        while step is _Step.MORE and steps < self._steps_max:
            step, steps = self._deliver_from_memory(), steps + 1
        if step is not _Step.IDLE:
            yields = step is _Step.MORE
            self._reading = self._tasks.start(self._read_and_deliver(yields=yields))
        else:
            self._idle(None)

    def stop(self) -> None:
        self._stopped = True
        if self._reading is not None:
            self._reading.cancel()

    def _has_requests(self) -> bool:
        return not self._stopped and len(self._ledger.waiting) > 0

    def _deliver_from_memory(self) -> _Step:
        ahead = self.feed.ahead()
        if ahead is None:
            return _Step.READ
        now_ns = self._clock.monotonic_ns()
        plan = self._ledger.plan(ahead, now_ns, self._new_pin())
        if plan.redeliver:
            return _Step.READ
        if not plan.new_count or not ahead:
            return self._end_no_wait()
        rows = self.feed.peek(plan.new_count)
        if rows is None:
            return _Step.READ
        if not rows.count:
            return self._end_no_wait()
        self._deliver_new(rows, ahead, now_ns, limited=plan.limited)
        return _Step.MORE if len(self._ledger.waiting) else _Step.IDLE

    async def _read_and_deliver(self, *, yields: bool) -> None:
        """Deliver messages that are not in memory; with `yields`, only let clients read first."""
        failure = None
        try:
            if yields:
                self._deliver_again = True
                await self._outbox.drained()
                return
            while self._has_requests() and await self._deliver_from_storage():
                self._deliver_again = True
        except PenstockError as error:
            failure = error
        finally:
            self._reading = None
            self._end_read(failure)

    def _end_read(self, failure: PenstockError | None) -> None:
        again, self._deliver_again = self._deliver_again, False
        self._idle(failure)
        if again and failure is None:
            self.deliver()

    async def _deliver_from_storage(self) -> bool:
        """Make one delivery from disk or object store; returns whether there may be more."""
        feed = self.feed
        ahead = feed.ahead()
        if ahead is None:
            ahead = await feed.count()
        plan = self._ledger.plan(ahead, self._clock.monotonic_ns(), self._new_pin())
        if plan.redeliver:
            await self._redeliver(plan.redeliver)
            return True
        rows = await feed.read(plan.new_count) if plan.new_count and ahead else None
        if feed is not self.feed:
            return True
        if rows is None or not rows.count:
            self._end_no_wait()
            return False
        # Requests may have ended and messages arrived during the read.
        now_ns, ahead = self._clock.monotonic_ns(), max(feed.ahead() or 0, rows.count)
        plan = self._ledger.plan(ahead, now_ns, self._new_pin())
        if plan.new_count and rows.offsets[0] >= feed.next_offset:
            first = rows if plan.new_count >= rows.count else rows.part(0, plan.new_count)
            self._deliver_new(first, ahead, now_ns, limited=plan.limited)
            await self._outbox.drained()
        return True

    async def _redeliver(self, queued: Sequence[int]) -> None:
        """Deliver messages again; those that the stream has deleted are settled."""
        seqs = sorted(queued)
        rows = await self._stream.read_intact([seq - 1 for seq in seqs])
        intact = {offset + 1 for offset in rows.offsets}
        self._ledger.settle_missing(seq for seq in seqs if seq not in intact)
        now_ns, ahead = self._clock.monotonic_ns(), self.feed.ahead() or 0
        plan = self._ledger.plan(ahead, now_ns, self._new_pin())
        # Messages may have been acked during the read.
        unsettled = set(plan.redeliver)
        positions = [at for at, offset in enumerate(rows.offsets) if offset + 1 in unsettled]
        if not positions:
            return
        if len(positions) < rows.count:
            rows = rows.take(positions)
        pending = self._ledger.pending
        counts = [pending.count(seq) + 1 for seq in rows.seqs]
        parcel = self._outbox.parcel(rows, counts, [ahead] * rows.count)
        reached, _, statuses = self._send(rows.seqs, parcel, ahead, now_ns, limited=plan.limited)
        if reached:
            self._in_flight.redeliver(rows.seqs[:reached])
        self._outbox.send_statuses(statuses)

    def _deliver_new(self, rows: Rows, ahead: int, now_ns: int, *, limited: bool) -> None:
        """Deliver messages for the first time; `ahead` counts them and all later matches."""
        count, seqs = rows.count, rows.seqs
        parcel = self._outbox.parcel(rows, [1] * count, range(ahead - 1, ahead - 1 - count, -1))
        reached, undelivered, statuses = self._send(seqs, parcel, ahead, now_ns, limited=limited)
        if reached:
            self._in_flight.deliver(seqs[:reached], undelivered)
            self.feed.advance(seqs[reached - 1], reached)
        self._outbox.send_statuses(statuses)

    def _send(
        self, seqs: Sequence[int], parcel: Parcel, ahead: int, now_ns: int, *, limited: bool
    ) -> tuple[int, list[int], list[Status]]:
        """Share out messages among the requests that wait, and send them.

        Returns how many messages were sent up to the last one that a client received, which of
        these nobody received, and the statuses of the requests that ended.
        """
        sizes = parcel.sizes() if limited else None
        shares, statuses = self._ledger.offer(seqs, sizes, ahead, now_ns)
        undelivered: list[int] = []
        reached = 0
        for request, positions in shares:
            self._in_flight.assign(request.inbox, seqs, positions)
            received = self._outbox.send(request, parcel.take(positions))
            reached += len(positions)
            if received < len(positions):
                undelivered += positions[received:]
                self._outbox.withdraw(request)
        undelivered.sort()
        while undelivered and undelivered[-1] == reached - 1:
            undelivered.pop()
            reached -= 1
        return reached, [seqs[position] for position in undelivered], statuses

    def _end_no_wait(self) -> _Step:
        """End the requests that do not wait, because nothing can be delivered."""
        self._outbox.send_statuses(self._ledger.end_no_wait())
        return _Step.IDLE

    def _new_pin(self) -> str:
        """An id for the next client to pin; empty unless a client must be pinned."""
        ledger = self._ledger
        if ledger.rules.priority_policy is not PriorityPolicy.PINNED or ledger.pin.id:
            return ""
        return unique_name()[:22]
