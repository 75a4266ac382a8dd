"""The table of one consumer: requests that wait, messages in flight, floors and counters.

No clock and no I/O: monotonic nanoseconds come in, deliveries and statuses go out. Numbers of
messages are stream sequences (offset + 1), so that 0 means "before the first". A turn of whoever
carries this out is

    plan   how many messages may go out now: first again, then new ones
    read   (not here)
    offer  the messages that were read, in order; who gets which
    idle   when nothing more can go out: requests that do not wait are told so

and `tick` at `next_deadline`. Everything takes runs: the cost is per run wherever it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.ledger.pending import Pending
from penstock.ledger.pins import Pin
from penstock.ledger.requests import Given, Offer, Request, Status, Waiting
from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules

_UNLIMITED = 1 << 62


class Plan(NamedTuple):
    """What may go out now."""

    again: list[int]
    """To be delivered again, in this order."""
    fresh: int
    """So many that were not delivered yet."""
    limited: bool
    """Whether sizes are needed to share them out."""


class Due(NamedTuple):
    """What time brought."""

    statuses: list[Status]
    exhausted: list[int]
    """Messages that were delivered too often and are given up."""
    unpinned: bool = False


class ConsumerLedger:
    """What one consumer was given and what it settled."""

    def __init__(self, rules: Rules, first_seq: int = 1) -> None:
        self.rules = rules
        self.waiting = Waiting(rules.priority_policy)
        self.pending = Pending(rules)
        self.pin = Pin(rules.pin_ns)
        self.paused = False
        self.consumer_seq = 0
        """Of the last delivery."""
        self.stream_seq = first_seq - 1
        """Of the last message that was delivered."""
        self.floor_consumer_seq = 0
        self.floor_stream_seq = first_seq - 1
        """Everything up to here is settled."""
        self.settled: list[int] = []
        """Settled since the journal was taken; those above the floor matter."""

    def change(self, rules: Rules) -> None:
        """Go on by other rules; what is in flight keeps its deadline."""
        self.rules = self.pending.rules = rules
        self.waiting.change(rules.priority_policy)
        self.pin.limit_ns = rules.pin_ns

    # -- asking

    def request(self, request: Request, now_ns: int, ahead: int) -> Status | None:
        """Take a request in, or say why not. `ahead` messages match that were never delivered."""
        refused = self._refusal(request, ahead)
        if refused is not None:
            return refused
        self.pin.heard(request, now_ns)
        self.waiting.add(request)
        return None

    def withdraw(self, request: Request) -> None:
        """Nobody listens to its inbox any more."""
        self.waiting.remove(request)

    # -- delivering

    def plan(self, ahead: int, now_ns: int, pin: str = "") -> Plan:
        """What may go out now; `pin` is an id for a client that is to be pinned."""
        serving = self._serving(ahead, now_ns, pin)
        wanted = sum(request.left for request in serving)
        again = self.pending.take(wanted)
        fresh = min(wanted - len(again), self.room)
        return Plan(again, fresh, any(request.limited for request in serving))

    @property
    def room(self) -> int:
        """So many more may be in flight."""
        if not self.rules.pending_max:
            return _UNLIMITED
        return max(0, self.rules.pending_max - self.pending.counted)

    def offer(
        self, seqs: Sequence[int], sizes: Sequence[int] | None, ahead: int, now_ns: int
    ) -> tuple[list[Given], list[Status]]:
        """Share out what was read: who gets which, and what requests that ended are told.

        It is all in order, so a tail may be left over. The n-th message has the consumer sequence
        `consumer_seq` + 1 + n. To be followed by `delivered`, in the same turn.
        """
        offer = Offer(seqs, sizes, now_ns, [])
        serving = self._serving(ahead, now_ns, "")
        given = self.waiting.share(serving, offer) if serving else []
        return given, offer.statuses

    def delivered(self, seqs: Sequence[int], now_ns: int) -> None:
        """These went out for the first time, in this order."""
        first = self.consumer_seq + 1
        self.consumer_seq += len(seqs)
        self.stream_seq = seqs[-1]
        if self.rules.ack_policy is AckPolicy.NONE:
            self.floor_consumer_seq, self.floor_stream_seq = self.consumer_seq, self.stream_seq
        else:
            self.pending.add(seqs, first, now_ns)

    def repeated(self, seqs: Sequence[int], now_ns: int) -> None:
        """These went out again."""
        self.consumer_seq += len(seqs)
        self.pending.repeat(seqs, now_ns)

    def missed(self, seqs: Sequence[int]) -> None:
        """Of those that just went out for the first time, nobody was there for these."""
        found = [seq for seq in seqs if seq in self.pending.consumer_seqs]
        self.pending.missed(found)
        self.pending.queue(found)

    def idle(self) -> list[Status]:
        """Nothing can go out now: requests that do not wait end."""
        return self.waiting.end_no_wait()

    # -- settling

    def ack(self, seqs: Sequence[int]) -> list[int]:
        """Messages are done; those of them that were in flight."""
        if self.rules.ack_policy is AckPolicy.ALL and seqs:
            highest = max((seq for seq in seqs if seq <= self.stream_seq), default=0)
            seqs = self.pending.up_to(highest)
        return self._settle(seqs)

    def terminate(self, seqs: Iterable[int]) -> list[int]:
        """Never to be delivered again; those that were in flight."""
        return self._settle(seqs)

    def refuse(self, seq: int, delay_ns: int, now_ns: int) -> list[int]:
        """To be delivered again; what is exhausted instead."""
        if seq in self.pending.consumer_seqs and self.pending.refuse(seq, delay_ns, now_ns):
            return self._queue([seq])
        return []

    def abandoned(self, seqs: Iterable[int]) -> list[int]:
        """Whoever had these is gone: they are to be delivered again; what is exhausted instead."""
        return self._queue([seq for seq in seqs if seq in self.pending.consumer_seqs])

    def progress(self, seqs: Iterable[int], now_ns: int) -> None:
        """Somebody works on these: their time begins anew."""
        for seq in seqs:
            self.pending.restart(seq, now_ns)

    def gone(self, seqs: Iterable[int]) -> None:
        """These are not in the stream any more."""
        self._settle(seqs)

    def dropped(self, first_seq: int, *, all_gone: bool) -> bool:
        """The stream begins here now, or will; whether that changed anything."""
        settled = self._settle(self.pending.up_to(first_seq - 1))
        self.pending.forget_counts(first_seq)
        if all_gone and self.stream_seq < first_seq - 1:
            self.stream_seq = first_seq - 1
            self._floor()
            return True
        return bool(settled)

    def reset(self, first_seq: int) -> None:
        """Begin anew, at this message."""
        self.pending.clear()
        self.settled.clear()
        self.consumer_seq = self.floor_consumer_seq = 0
        self.stream_seq = self.floor_stream_seq = first_seq - 1

    # -- time

    def tick(self, now_ns: int) -> Due:
        """What is over by now: requests, heartbeats, messages that are due again, pins."""
        statuses = self.waiting.expired(now_ns)
        statuses += self.waiting.beats(now_ns, self.consumer_seq, self.stream_seq)
        return Due(statuses, self._queue(self.pending.overdue(now_ns)), self.pin.expire(now_ns))

    def next_deadline(self) -> int | None:
        times = [self.waiting.next_deadline(), self.pending.next_deadline()]
        if self.pin.id:
            times.append(self.pin.until_ns)
        return min((time for time in times if time is not None), default=None)

    # -- showing

    @property
    def settled_stream_seq(self) -> int:
        """Nothing up to here will be delivered again."""
        first = next(iter(self.pending.consumer_seqs), None)
        return self.stream_seq if first is None else first - 1

    def given_up(self) -> list[int]:
        """Messages that were delivered too often, and nobody settled since."""
        pending = self.pending
        return [seq for seq in pending.deliveries if seq not in pending.consumer_seqs]

    def stalled(self, ahead: int, now_ns: int) -> str:
        """Why nothing goes out although there is something to deliver; empty when it does."""
        if not ahead and not self.pending.again:
            return ""
        if self.paused:
            return "paused"
        if not len(self.waiting):
            return "no requests wait"
        if not self.pending.again and not self.room:
            return "max_ack_pending is reached"
        if not self.waiting.serving(ahead, len(self.pending), now_ns):
            return "no waiting request may be served"
        return ""

    # -- details

    def _serving(self, ahead: int, now_ns: int, pin: str) -> list[Request]:
        if self.paused or not len(self.waiting):
            return []
        serving = self.waiting.serving(ahead, len(self.pending), now_ns)
        if self.rules.priority_policy is PriorityPolicy.PINNED:
            return self.pin.choose(serving, pin, now_ns) if self.pin.id or pin else []
        return serving

    def _settle(self, seqs: Iterable[int]) -> list[int]:
        settled = self.pending.settle(seqs)
        if settled:
            self.settled += settled
            self._floor()
        elif self.pending.deliveries:
            # A late answer to one that was given up: it does not count as delivered again.
            for seq in seqs:
                self.pending.forget_count(seq)
        return settled

    def _floor(self) -> None:
        first = next(iter(self.pending.consumer_seqs.items()), None)
        if first is None:
            self.floor_consumer_seq, self.floor_stream_seq = self.consumer_seq, self.stream_seq
            self.settled.clear()
        elif first[0] - 1 > self.floor_stream_seq:
            self.floor_stream_seq, self.floor_consumer_seq = first[0] - 1, first[1] - 1

    def _queue(self, seqs: Iterable[int]) -> list[int]:
        exhausted = self.pending.queue(seqs)
        self.settled += exhausted
        return exhausted

    def _refusal(self, request: Request, ahead: int) -> Status | None:
        rules = self.rules
        if rules.priority_policy is PriorityPolicy.PINNED and self.pin.refuses(request):
            return request.status(423, "Nats-Pin-Id mismatch")
        if request.no_wait and (refused := self._no_wait_refusal(request, ahead)):
            return refused
        if rules.waiting_max and len(self.waiting) >= rules.waiting_max:
            return request.status(409, "Exceeded MaxWaiting")
        return None

    def _no_wait_refusal(self, request: Request, ahead: int) -> Status | None:
        """A request that does not wait is answered at once, whatever stands in its way."""
        fresh = min(ahead, self.room)
        available = 0 if self.paused else fresh + self.pending.again
        wanted = sum(max(0, item.left) for item in self.waiting)
        if wanted and wanted > ahead + self.pending.again > 0:
            return request.status(408, "Requests Pending")
        if not available or request.left <= 0:
            return request.status(404, "No Messages")
        return None
