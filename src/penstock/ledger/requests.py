"""Pull requests that wait, and the assignment of messages to them.

Requests form a ring: each receives one message in its turn, so that several clients share a
consumer fairly. A single request receives a whole run. With priorities, the requests of the lowest
number share first. A request ends when it is filled, expires, is withdrawn, or cannot accept the
next message; except for a withdrawal, its inbox may receive a status.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.ledger.rules import PriorityPolicy

REPEAT_NS: Final = 100_000_000
"""Delay of the status for another request that cannot accept the same message, which slows a client
that requests again at once.
"""


class Status(NamedTuple):
    """A status to send to the inbox of a request."""

    inbox: bytes
    code: int
    text: str
    fields: tuple[tuple[str, int], ...] = ()


class PullRequest:
    """A request of a client: how many messages `inbox` still accepts, and until when."""

    __slots__ = (
        "beat_ns",
        "bytes_left",
        "expires_ns",
        "group",
        "heartbeat_ns",
        "inbox",
        "left",
        "limited",
        "min_ack_pending",
        "min_pending",
        "no_wait",
        "pin",
        "priority",
        "received_ns",
        "started",
        "waits_for_first",
    )

    def __init__(
        self,
        inbox: bytes,
        batch: int = 1,
        *,
        expires_ns: int | None = None,
        no_wait: bool = False,
        waits_for_first: bool = False,
        bytes_max: int = 0,
        heartbeat_ns: int = 0,
        group: str = "",
        min_pending: int = 0,
        min_ack_pending: int = 0,
        priority: int = 0,
        pin: str = "",
        now_ns: int = 0,
    ) -> None:
        self.inbox = inbox
        self.left = batch
        self.expires_ns = expires_ns
        """When the request ends, on the monotonic clock; None means never."""
        self.no_wait = no_wait
        self.waits_for_first = waits_for_first
        """With `no_wait`: the request ends for lack of messages only after it received one."""
        self.started = False
        """Whether it has received a message."""
        self.limited = bytes_max > 0
        self.bytes_left = bytes_max
        self.heartbeat_ns = heartbeat_ns
        self.beat_ns = now_ns + heartbeat_ns
        """When the next heartbeat is due, unless a message is sent before."""
        self.group = group
        self.min_pending = min_pending
        self.min_ack_pending = min_ack_pending
        self.priority = priority
        self.pin = pin
        self.received_ns = now_ns

    def record_delivery(self, now_ns: int) -> None:
        """Record that the request received messages now."""
        self.started = True
        self.beat_ns = now_ns + self.heartbeat_ns

    def end_status(self, code: int, text: str) -> Status:
        """A status with the remaining messages and bytes of the request."""
        return self.status(
            code,
            text,
            ("Nats-Pending-Messages", self.left),
            ("Nats-Pending-Bytes", self.bytes_left),
        )

    def status(self, code: int, text: str, *fields: tuple[str, int]) -> Status:
        return Status(self.inbox, code, text, fields)

    def serves(self, policy: PriorityPolicy, ahead: int, pending: int, now_ns: int) -> bool:
        """Whether the request accepts messages now.

        `ahead` messages were never delivered and `pending` ones are not settled.
        """
        if self.left <= 0 or (self.expires_ns is not None and self.expires_ns <= now_ns):
            return False
        if policy is not PriorityPolicy.OVERFLOW:
            return True
        if not self.min_pending and not self.min_ack_pending:
            return True
        return 0 < self.min_pending <= ahead or 0 < self.min_ack_pending <= pending


class RequestShare(NamedTuple):
    """The messages of an offer that one request receives, by their positions in it."""

    request: PullRequest
    positions: Sequence[int]


class Offer(NamedTuple):
    """Messages to assign in order, and the statuses that result."""

    seqs: Sequence[int]
    sizes: Sequence[int] | None
    """Sizes as counted against `max_bytes`; None if no request has such a limit."""
    now_ns: int
    statuses: list[Status]
    """Statuses for the requests that ended."""


class WaitingRequests:
    """The pending pull requests of one consumer."""

    def __init__(self, policy: PriorityPolicy) -> None:
        self._policy = policy
        self._ring: dict[PullRequest, None] = {}
        self._oversized_seq = 0
        """The last message that did not fit a request."""
        self._oversized_until_ns = 0
        """Until this time another request that it does not fit receives its status with delay."""
        self._delayed_statuses: list[tuple[int, Status]] = []

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[PullRequest]:
        return iter(self._ring)

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._ring

    def set_policy(self, policy: PriorityPolicy) -> None:
        self._policy = policy
        self._order()

    def add(self, request: PullRequest) -> None:
        self._ring[request] = None
        self._order()

    def remove(self, request: PullRequest) -> None:
        self._ring.pop(request, None)

    def serving(self, ahead: int, pending: int, now_ns: int) -> list[PullRequest]:
        """The requests that accept messages now, in the order of their turns."""
        policy = self._policy
        serving = [item for item in self._ring if item.serves(policy, ahead, pending, now_ns)]
        if policy is PriorityPolicy.PRIORITIZED and serving:
            return [item for item in serving if item.priority == serving[0].priority]
        return serving

    def share(self, serving: Sequence[PullRequest], offer: Offer) -> list[RequestShare]:
        """Assign messages to requests in order, so that only a tail may remain unassigned."""
        if len(serving) == 1:
            run = self._assign_run(serving[0], offer)
            return [RequestShare(serving[0], run)] if run else []
        ring, count, position = deque(serving), len(offer.seqs), 0
        turns: dict[PullRequest, list[int]] = {request: [] for request in serving}
        while ring and position < count:
            request = ring.popleft()
            if request.limited and not self._fits(request, offer, position):
                continue
            turns[request].append(position)
            request.left -= 1
            position += 1
            if request.left:
                ring.append(request)
            else:
                self._end_filled(request, offer)
        shares = [
            RequestShare(request, positions) for request, positions in turns.items() if positions
        ]
        for request, _ in shares:
            request.record_delivery(offer.now_ns)
        for request in ring:
            del self._ring[request]
            self._ring[request] = None
        self._order()
        return shares

    def end_expired(self, now_ns: int) -> list[Status]:
        """End the requests whose expiry has passed."""
        expired = [r for r in self._ring if r.expires_ns is not None and r.expires_ns <= now_ns]
        for request in expired:
            del self._ring[request]
        statuses = [request.end_status(408, "Request Timeout") for request in expired]
        if self._delayed_statuses:
            statuses += [status for until, status in self._delayed_statuses if until <= now_ns]
            self._delayed_statuses = [item for item in self._delayed_statuses if item[0] > now_ns]
        return statuses

    def heartbeats(self, now_ns: int, consumer_seq: int, stream_seq: int) -> list[Status]:
        """Heartbeats for the requests that have received nothing for their interval.

        A blocked `no_wait` request that has received a message ends instead, as in nats-server.
        """
        due = [r for r in self._ring if r.heartbeat_ns and r.beat_ns <= now_ns]
        ended = [request for request in due if request.no_wait and request.started]
        for request in ended:
            del self._ring[request]
        silent = [request for request in due if request in self._ring]
        for request in silent:
            missed = (now_ns - request.beat_ns) // request.heartbeat_ns
            request.beat_ns += (missed + 1) * request.heartbeat_ns
        last = (("Nats-Last-Consumer", consumer_seq), ("Nats-Last-Stream", stream_seq))
        return [
            *(request.status(404, "No Messages") for request in ended),
            *(request.status(100, "Idle Heartbeat", *last) for request in silent),
        ]

    def end_all(self, code: int, text: str, *, counts: bool = False) -> list[Status]:
        """End every request; with `counts` the statuses have the remaining messages and bytes."""
        ended = list(self._ring)
        self._ring.clear()
        self._delayed_statuses.clear()
        return [
            item.end_status(code, text) if counts else item.status(code, text) for item in ended
        ]

    def end_no_wait(self, *, blocked: bool = False) -> list[Status]:
        """End the `no_wait` requests, because nothing can be delivered now.

        Those that wait for their first message remain until they have it, and while delivery is
        `blocked` by unacknowledged messages.
        """
        ended = [
            item
            for item in self._ring
            if item.no_wait and (not item.waits_for_first or (item.started and not blocked))
        ]
        for request in ended:
            del self._ring[request]
        return [request.status(404, "No Messages") for request in ended]

    def next_deadline(self) -> int | None:
        times = [item.expires_ns for item in self._ring if item.expires_ns is not None]
        times += [item.beat_ns for item in self._ring if item.heartbeat_ns]
        times += [until for until, _ in self._delayed_statuses]
        return min(times, default=None)

    def _assign_run(self, request: PullRequest, offer: Offer) -> range:
        """Assign to a single request as many messages as it accepts."""
        requested = count = min(len(offer.seqs), request.left)
        if request.limited:
            assert offer.sizes is not None
            sums = list(accumulate(offer.sizes[:requested]))
            count = bisect_right(sums, request.bytes_left)
            request.bytes_left -= sums[count - 1] if count else 0
        request.left -= count
        if count:
            request.record_delivery(offer.now_ns)
        if count < requested:
            self._end_oversized(request, offer, count)
        elif not request.left:
            self._end_filled(request, offer)
        return range(count)

    def _fits(self, request: PullRequest, offer: Offer, position: int) -> bool:
        assert offer.sizes is not None
        if offer.sizes[position] > request.bytes_left:
            self._end_oversized(request, offer, position)
            return False
        request.bytes_left -= offer.sizes[position]
        return True

    def _end_oversized(self, request: PullRequest, offer: Offer, position: int) -> None:
        """End a request that the next message does not fit; its status names the size."""
        assert offer.sizes is not None
        del self._ring[request]
        status = request.end_status(409, "Message Size Exceeds MaxBytes")
        needed = ("Nats-Msg-Size", offer.sizes[position])
        status = status._replace(fields=(*status.fields, needed))
        seq, until = offer.seqs[position], self._oversized_until_ns
        if seq == self._oversized_seq and offer.now_ns < until:
            self._delayed_statuses.append((until, status))
        else:
            offer.statuses.append(status)
        self._oversized_seq, self._oversized_until_ns = seq, offer.now_ns + REPEAT_NS

    def _end_filled(self, request: PullRequest, offer: Offer) -> None:
        del self._ring[request]
        if request.limited and request.bytes_left:
            offer.statuses.append(request.end_status(409, "Batch Completed"))

    def _order(self) -> None:
        if self._policy is PriorityPolicy.PRIORITIZED:
            self._ring = dict.fromkeys(sorted(self._ring, key=lambda item: item.priority))
