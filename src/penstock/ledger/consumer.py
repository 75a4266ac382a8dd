"""The state of one consumer: waiting requests, messages in flight, ack floors and counters.

It has no clock and does no I/O: callers pass monotonic nanoseconds and receive statuses to send.
Messages are identified by stream sequence (offset + 1), so that 0 means "before the first". To
deliver, a caller

    plan             asks how many messages may be delivered: redeliveries first, then new ones
                     (and reads them)
    offer            passes the messages read, in order, and learns which request receives which
    record_delivery  records what was sent, or `record_redelivery`
    end_no_wait      ends the requests that do not wait, when nothing more can be delivered

and calls `tick` at `next_deadline`. Methods take runs of messages, so that the cost is per run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.ledger.pending import Pending
from penstock.ledger.pins import Pin
from penstock.ledger.requests import Offer, PullRequest, RequestShare, Status, WaitingRequests
from penstock.ledger.rules import AckPolicy, PriorityPolicy, Rules

_UNLIMITED = 1 << 62


class Plan(NamedTuple):
    """The messages that may be delivered now."""

    redeliver: list[int]
    """Sequences to redeliver, in this order."""
    new_count: int
    """The number of messages to deliver for the first time."""
    limited: bool
    """Whether the sizes of the messages are needed to assign them."""


class DueActions(NamedTuple):
    """The effects of deadlines that have passed."""

    statuses: list[Status]
    exhausted: list[int]
    """Messages that exceeded their deliveries and are not delivered again."""
    unpinned: bool = False


class ConsumerLedger:
    """The state of one consumer: its requests, deliveries and settlements."""

    def __init__(self, rules: Rules, first_seq: int = 1) -> None:
        self.rules = rules
        self.waiting = WaitingRequests(rules.priority_policy)
        self.pending = Pending(rules)
        self.pin = Pin(rules.pin_ns)
        self.paused = False
        self.consumer_seq = 0
        """The consumer sequence of the last delivery."""
        self.stream_seq = first_seq - 1
        """The stream sequence of the last message that was delivered."""
        self.floor_consumer_seq = 0
        self.floor_stream_seq = first_seq - 1
        """The sequence up to which everything is settled."""
        self.settled: list[int] = []
        """Sequences settled since the journal's last settlement; those above the floor matter."""

    def set_rules(self, rules: Rules) -> None:
        """Apply other rules; messages in flight keep their deadlines."""
        self.rules = self.pending.rules = rules
        self.waiting.set_policy(rules.priority_policy)
        self.pin.limit_ns = rules.pin_ns

    # -- requests

    def request(self, request: PullRequest, now_ns: int, ahead: int) -> Status | None:
        """Add a request to those that wait; returns a status if it is refused.

        `ahead` is the number of matching messages that were never delivered.
        """
        refusal = self._refusal(request, ahead)
        if refusal is not None:
            return refusal
        self.pin.extend(request, now_ns)
        self.waiting.add(request)
        return None

    def withdraw(self, request: PullRequest) -> None:
        """Remove a request whose inbox has no subscriber any more."""
        self.waiting.remove(request)

    # -- delivering

    def plan(self, ahead: int, now_ns: int, pin: str = "") -> Plan:
        """The messages that may be delivered now; `pin` is the id for a client to be pinned."""
        serving = self._serving(ahead, now_ns, pin)
        requested = sum(request.left for request in serving)
        redeliver = self.pending.take(requested)
        new_count = min(requested - len(redeliver), self.room)
        return Plan(redeliver, new_count, any(request.limited for request in serving))

    @property
    def room(self) -> int:
        """How many more messages may be in flight."""
        if not self.rules.pending_max:
            return _UNLIMITED
        return max(0, self.rules.pending_max - self.pending.counted)

    def offer(
        self, seqs: Sequence[int], sizes: Sequence[int] | None, ahead: int, now_ns: int
    ) -> tuple[list[RequestShare], list[Status]]:
        """Assign messages to requests; returns the shares, and the statuses of ended requests.

        Messages are assigned in order, so only a tail may remain unassigned. The n-th message has
        the consumer sequence `consumer_seq` + 1 + n. The caller records the delivery in the same
        turn of the event loop.
        """
        offer = Offer(seqs, sizes, now_ns, [])
        serving = self._serving(ahead, now_ns, "")
        shares = self.waiting.share(serving, offer) if serving else []
        return shares, offer.statuses

    def record_delivery(self, seqs: Sequence[int], now_ns: int) -> None:
        """Record the first delivery of messages, in this order."""
        first = self.consumer_seq + 1
        self.consumer_seq += len(seqs)
        self.stream_seq = seqs[-1]
        if self.rules.ack_policy is AckPolicy.NONE:
            self.floor_consumer_seq, self.floor_stream_seq = self.consumer_seq, self.stream_seq
        else:
            self.pending.add(seqs, first, now_ns)

    def record_redelivery(self, seqs: Sequence[int], now_ns: int) -> None:
        """Record the redelivery of messages."""
        self.consumer_seq += len(seqs)
        self.pending.repeat(seqs, now_ns)

    def undo_delivery(self, seqs: Sequence[int]) -> None:
        """Undo the first delivery of messages that nobody received."""
        pending = [seq for seq in seqs if seq in self.pending.consumer_seqs]
        self.pending.undo_delivery(pending)
        self.pending.queue(pending)

    def end_no_wait(self) -> list[Status]:
        """End requests that do not wait, because nothing can be delivered now."""
        return self.waiting.end_no_wait(blocked=not self.room)

    # -- settling

    def ack(self, seqs: Sequence[int]) -> list[int]:
        """Settle messages; returns those that were in flight."""
        if self.rules.ack_policy is AckPolicy.ALL and seqs:
            highest = max((seq for seq in seqs if seq <= self.stream_seq), default=0)
            seqs = self.pending.up_to(highest)
        return self._settle(seqs)

    def terminate(self, seqs: Iterable[int]) -> list[int]:
        """Settle messages without redelivery; returns those that were in flight."""
        return self._settle(seqs)

    def nak(self, seq: int, delay_ns: int, now_ns: int) -> list[int]:
        """Queue a message for redelivery; returns it if it exceeded its deliveries instead."""
        if seq in self.pending.consumer_seqs and self.pending.nak(seq, delay_ns, now_ns):
            return self._queue([seq])
        return []

    def requeue(self, seqs: Iterable[int]) -> list[int]:
        """Redeliver messages of a disconnected client; returns those past their deliveries."""
        return self._queue([seq for seq in seqs if seq in self.pending.consumer_seqs])

    def progress(self, seqs: Iterable[int], now_ns: int) -> None:
        """Restart the ack wait of messages."""
        for seq in seqs:
            self.pending.restart(seq, now_ns)

    def settle_missing(self, seqs: Iterable[int]) -> None:
        """Settle messages that the stream does not have any more."""
        self._settle(seqs)

    def settle_before(self, first_seq: int, *, stream_empty: bool) -> bool:
        """Settle everything before a new start of the stream; returns whether it changed."""
        settled = self._settle(self.pending.up_to(first_seq - 1))
        self.pending.remove_counts(first_seq)
        if stream_empty and self.stream_seq < first_seq - 1:
            self.stream_seq = first_seq - 1
            self._floor()
            return True
        return bool(settled)

    def reset(self, first_seq: int) -> None:
        """Restart at a message, with nothing in flight."""
        self.pending.clear()
        self.settled.clear()
        self.consumer_seq = self.floor_consumer_seq = 0
        self.stream_seq = self.floor_stream_seq = first_seq - 1

    # -- time

    def tick(self, now_ns: int) -> DueActions:
        """Apply the deadlines of requests, heartbeats, messages and pins that have passed."""
        statuses = self.waiting.end_expired(now_ns)
        statuses += self.waiting.heartbeats(now_ns, self.consumer_seq, self.stream_seq)
        return DueActions(
            statuses, self._queue(self.pending.overdue(now_ns)), self.pin.expire(now_ns)
        )

    def next_deadline(self) -> int | None:
        times = [self.waiting.next_deadline(), self.pending.next_deadline()]
        if self.pin.id:
            times.append(self.pin.until_ns)
        return min((time for time in times if time is not None), default=None)

    # -- state

    @property
    def settled_stream_seq(self) -> int:
        """The stream sequence up to which every message is settled."""
        first = next(iter(self.pending.consumer_seqs), None)
        return self.stream_seq if first is None else first - 1

    def exhausted(self) -> list[int]:
        """Messages that exceeded their deliveries and are not settled."""
        pending = self.pending
        return [seq for seq in pending.deliveries if seq not in pending.consumer_seqs]

    def stall_reason(self, ahead: int, now_ns: int) -> str:
        """Why pending messages are not delivered; empty if they are."""
        if not ahead and not self.pending.queued:
            return ""
        if self.paused:
            return "paused"
        if not len(self.waiting):
            return "no requests wait"
        if not self.pending.queued and not self.room:
            return "max_ack_pending is reached"
        if not self.waiting.serving(ahead, len(self.pending), now_ns):
            return "no waiting request may be served"
        return ""

    # -- details

    def _serving(self, ahead: int, now_ns: int, pin: str) -> list[PullRequest]:
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
            # A late ack of a message past its deliveries: it no longer counts as redelivered.
            for seq in seqs:
                self.pending.remove_count(seq)
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

    def _refusal(self, request: PullRequest, ahead: int) -> Status | None:
        rules = self.rules
        if rules.priority_policy is PriorityPolicy.PINNED and self.pin.refuses(request):
            return request.status(423, "Nats-Pin-Id mismatch")
        if request.no_wait and (refused := self._no_wait_refusal(request, ahead)):
            return refused
        if rules.waiting_max and len(self.waiting) >= rules.waiting_max:
            return request.status(409, "Exceeded MaxWaiting")
        return None

    def _no_wait_refusal(self, request: PullRequest, ahead: int) -> Status | None:
        """The status of a request that does not wait and can receive nothing now.

        One that waits for its first message is accepted.
        """
        available = 0 if self.paused else min(ahead, self.room) + self.pending.queued
        requested = sum(max(0, item.left) for item in self.waiting)
        if requested and requested > ahead + self.pending.queued > 0:
            return request.status(408, "Requests Pending")
        if (not available or request.left <= 0) and not request.waits_for_first:
            return request.status(404, "No Messages")
        return None
