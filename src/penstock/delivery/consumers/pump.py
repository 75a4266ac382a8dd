"""The deliveries of one consumer: from memory at once, from elsewhere by one task at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, Protocol

from penstock.delivery.consumers.feed import Feed
from penstock.delivery.consumers.holders import Holders
from penstock.delivery.consumers.sending import Parcel
from penstock.host.clock import Clock
from penstock.host.entropy import unique_name
from penstock.ledger.consumer import ConsumerLedger
from penstock.ledger.requests import Given, Request, Status
from penstock.ledger.rules import PriorityPolicy
from penstock.model.errors import PenstockError
from penstock.topics.streams.rows import Rows
from penstock.topics.streams.stream import Stream

STEPS_MAX: Final = 4
"""Deliveries in one turn of the loop; then others have theirs, and the client takes what it got."""


class Carrier(Protocol):
    """The consumer that a pump works for."""

    stream: Stream
    ledger: ConsumerLedger
    feed: Feed
    closed: bool
    holders: Holders | None
    """Who has which message, where that matters."""

    def parcel(self, rows: Rows, counts: Sequence[int], pendings: Sequence[int]) -> Parcel: ...

    def send(self, request: Request, parcel: Parcel) -> int:
        """How many of them somebody got."""
        ...

    def tell(self, statuses: Iterable[Status]) -> None: ...

    async def drained(self) -> None:
        """Wait until those who are served have taken most of what was sent."""

    def withdraw(self, request: Request) -> None: ...

    def went_out(self, seqs: Sequence[int], missed: Sequence[int], *, again: bool) -> None:
        """These were sent; nobody got those that were `missed`."""

    def rest(self, error: PenstockError | None) -> None:
        """Nothing more goes out now; with an error, it is to be tried again later."""


class _Step(Enum):
    MORE = "there may be more"
    WAIT = "something has to be read or counted first"
    REST = "nothing can go out"


class Pump:
    """Delivers for one consumer whenever it is told to look."""

    def __init__(self, carrier: Carrier, clock: Clock) -> None:
        self._carrier, self._clock = carrier, clock
        self._working: asyncio.Task[None] | None = None
        self._look_again = False

    def look(self) -> None:
        """Deliver what can go out now; returns with the rest, if any, under way."""
        carrier = self._carrier
        if carrier.closed or not len(carrier.ledger.waiting):
            return
        if self._working is not None:
            self._look_again = True
            return
        step, steps = _Step.MORE, 0
        while step is _Step.MORE and steps < STEPS_MAX:
            step, steps = self._step(), steps + 1
        if step is not _Step.REST:
            work = self._work(full=step is _Step.MORE)
            self._working = asyncio.get_running_loop().create_task(work)
        else:
            carrier.rest(None)

    def stop(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def _step(self) -> _Step:
        """One delivery, if it can be had from memory."""
        carrier = self._carrier
        ahead = carrier.feed.ahead()
        if ahead is None:
            return _Step.WAIT
        now_ns = self._clock.monotonic_ns()
        plan = carrier.ledger.plan(ahead, now_ns, self._fresh_pin())
        if plan.again:
            return _Step.WAIT
        if not plan.fresh or not ahead:
            return self._idle()
        rows = carrier.feed.peek(plan.fresh)
        if rows is None:
            return _Step.WAIT
        if not rows.count:
            return self._idle()
        self._deliver(rows, ahead, now_ns, limited=plan.limited)
        return _Step.MORE if len(carrier.ledger.waiting) else _Step.REST

    async def _work(self, *, full: bool) -> None:
        carrier, failed = self._carrier, None
        try:
            if full:
                self._look_again = True
                await carrier.drained()
                return
            while not carrier.closed and len(carrier.ledger.waiting) and await self._slow_step():
                self._look_again = True
        except PenstockError as error:
            failed = error
        finally:
            self._working = None
            self._worked(failed)

    def _worked(self, failed: PenstockError | None) -> None:
        again, self._look_again = self._look_again, False
        self._carrier.rest(failed)
        if again and failed is None:
            self.look()

    async def _slow_step(self) -> bool:
        """One delivery from wherever it is; whether there may be more."""
        carrier, feed = self._carrier, self._carrier.feed
        ahead = feed.ahead()
        if ahead is None:
            ahead = await feed.count()
        plan = carrier.ledger.plan(ahead, self._clock.monotonic_ns(), self._fresh_pin())
        if plan.again:
            await self._read_again(plan.again)
            return True
        rows = await feed.read(plan.fresh) if plan.fresh and ahead else None
        if feed is not carrier.feed:
            return True
        if rows is None or not rows.count:
            self._idle()
            return False
        # Meanwhile requests may have gone, and messages may have come.
        now_ns, ahead = self._clock.monotonic_ns(), max(feed.ahead() or 0, rows.count)
        plan = carrier.ledger.plan(ahead, now_ns, self._fresh_pin())
        if plan.fresh and rows.offsets[0] >= feed.next_offset:
            kept = rows if plan.fresh >= rows.count else rows.part(0, plan.fresh)
            self._deliver(kept, ahead, now_ns, limited=plan.limited)
            await carrier.drained()
        return True

    async def _read_again(self, seqs: Sequence[int]) -> None:
        carrier, wanted = self._carrier, sorted(seqs)
        rows = await carrier.stream.read_intact([seq - 1 for seq in wanted])
        found = {offset + 1 for offset in rows.offsets}
        carrier.ledger.gone(seq for seq in wanted if seq not in found)
        now_ns, ahead = self._clock.monotonic_ns(), carrier.feed.ahead() or 0
        plan = carrier.ledger.plan(ahead, now_ns, self._fresh_pin())
        still = set(plan.again)
        places = [place for place, offset in enumerate(rows.offsets) if offset + 1 in still]
        if places:
            kept = rows if len(places) == rows.count else rows.take(places)
            self._deliver(kept, ahead, now_ns, limited=plan.limited, again=True)

    def _deliver(
        self, rows: Rows, ahead: int, now_ns: int, *, limited: bool, again: bool = False
    ) -> None:
        carrier, count = self._carrier, rows.count
        ledger = carrier.ledger
        seqs = rows.seqs
        counts = [ledger.pending.count(seq) + 1 for seq in seqs] if again else [1] * count
        pendings = [ahead] * count if again else range(ahead - 1, ahead - 1 - count, -1)
        parcel = carrier.parcel(rows, counts, pendings)
        given, statuses = ledger.offer(seqs, parcel.sizes() if limited else None, ahead, now_ns)
        missed = self._send(given, parcel, seqs)
        reached = sum(len(item.positions) for item in given)
        while missed and missed[-1] == reached - 1:
            missed.pop()
            reached -= 1
        if reached:
            carrier.went_out(seqs[:reached], [seqs[place] for place in missed], again=again)
        carrier.tell(statuses)

    def _send(self, given: Sequence[Given], parcel: Parcel, seqs: Sequence[int]) -> list[int]:
        """Positions of messages that nobody got, ascending."""
        missed: list[int] = []
        holders = self._carrier.holders
        for request, positions in given:
            if holders is not None:
                holders.given(request.inbox, [seqs[place] for place in positions])
            sent = self._carrier.send(request, parcel.take(positions))
            if sent < len(positions):
                missed += positions[sent:]
                self._carrier.withdraw(request)
        return sorted(missed)

    def _idle(self) -> _Step:
        self._carrier.tell(self._carrier.ledger.idle())
        return _Step.REST

    def _fresh_pin(self) -> str:
        ledger = self._carrier.ledger
        if ledger.rules.priority_policy is not PriorityPolicy.PINNED or ledger.pin.id:
            return ""
        return unique_name()[:22]
