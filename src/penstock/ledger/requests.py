"""Pull requests that wait, and who gets the next message.

Requests stand in a ring: each gets one message in its turn, so that several clients share a
consumer fairly. One request alone gets a whole run. Those with a priority form one ring for each.
A request ends when it is filled, expires, is withdrawn, or cannot take the next message; all but a
withdrawal are told to its inbox.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from penstock.ledger.rules import PriorityPolicy

REPEAT_NS: Final = 100_000_000
"""A request that cannot take the same message again is told so after this pause: a client that asks
at once would turn in circles."""


class Status(NamedTuple):
    """A status to send to the inbox of a request."""

    inbox: bytes
    code: int
    text: str
    fields: tuple[tuple[str, int], ...] = ()


class PullRequest:
    """One pull: how much may still be delivered to `inbox`, and until when."""

    __slots__ = (
        "asked_ns",
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
        """When it ends, on the monotonic clock; None: never."""
        self.no_wait = no_wait
        self.waits_for_first = waits_for_first
        """With `no_wait`: it ends for lack of messages only after it got one."""
        self.started = False
        """Whether it has received a message."""
        self.limited = bytes_max > 0
        self.bytes_left = bytes_max
        self.heartbeat_ns = heartbeat_ns
        self.beat_ns = now_ns + heartbeat_ns
        """When a heartbeat is due, if nothing else is sent before."""
        self.group = group
        self.min_pending = min_pending
        self.min_ack_pending = min_ack_pending
        self.priority = priority
        self.pin = pin
        self.asked_ns = now_ns

    def served(self, now_ns: int) -> None:
        """Record that the request received messages now."""
        self.started = True
        self.beat_ns = now_ns + self.heartbeat_ns

    def ended(self, code: int, text: str) -> Status:
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
        """Whether it takes messages now, with so many ahead of the consumer and so many pending."""
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
    """Messages to be shared out in order, and what came of it."""

    seqs: Sequence[int]
    sizes: Sequence[int] | None
    """As counted against `max_bytes`; may be missing when no serving request is limited."""
    now_ns: int
    statuses: list[Status]
    """Statuses for the requests that ended."""


class WaitingRequests:
    """The pending pull requests of one consumer."""

    def __init__(self, policy: PriorityPolicy) -> None:
        self._policy = policy
        self._ring: dict[PullRequest, None] = {}
        self._stuck_seq = 0
        """The message that did not fit last, and until when to be slow about it."""
        self._stuck_ns = 0
        self._held: list[tuple[int, Status]] = []

    def __len__(self) -> int:
        return len(self._ring)

    def __iter__(self) -> Iterator[PullRequest]:
        return iter(self._ring)

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._ring

    def change(self, policy: PriorityPolicy) -> None:
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
        found = [item for item in self._ring if item.serves(policy, ahead, pending, now_ns)]
        if policy is PriorityPolicy.PRIORITIZED and found:
            return [item for item in found if item.priority == found[0].priority]
        return found

    def share(self, serving: Sequence[PullRequest], offer: Offer) -> list[RequestShare]:
        """Who gets which messages; they are given in order, so what is left over is a tail."""
        if len(serving) == 1:
            positions = self._run(serving[0], offer)
            return [RequestShare(serving[0], positions)] if positions else []
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
                self._filled(request, offer)
        given = [RequestShare(request, places) for request, places in turns.items() if places]
        for request, _ in given:
            request.served(offer.now_ns)
        for request in ring:
            del self._ring[request]
            self._ring[request] = None
        self._order()
        return given

    def expired(self, now_ns: int) -> list[Status]:
        """End the requests whose expiry has passed."""
        over = [r for r in self._ring if r.expires_ns is not None and r.expires_ns <= now_ns]
        for request in over:
            del self._ring[request]
        statuses = [request.ended(408, "Request Timeout") for request in over]
        if self._held:
            statuses += [status for until, status in self._held if until <= now_ns]
            self._held = [item for item in self._held if item[0] > now_ns]
        return statuses

    def beats(self, now_ns: int, consumer_seq: int, stream_seq: int) -> list[Status]:
        """Heartbeats of requests that got nothing for a while.

        A `no_wait` request that has begun and is blocked ends instead, as in nats-server.
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
        """Ends every request; with `counts` they hear what was left of them."""
        ended = list(self._ring)
        self._ring.clear()
        self._held.clear()
        return [item.ended(code, text) if counts else item.status(code, text) for item in ended]

    def end_no_wait(self, *, blocked: bool = False) -> list[Status]:
        """End the `no_wait` requests: there is nothing to deliver now.

        Those that wait for their first message stay until they have it, and while delivery is
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
        times += [until for until, _ in self._held]
        return min(times, default=None)

    def _run(self, request: PullRequest, offer: Offer) -> range:
        """Assign to a single request as many messages as it accepts."""
        wanted = taken = min(len(offer.seqs), request.left)
        if request.limited:
            assert offer.sizes is not None
            sums = list(accumulate(offer.sizes[:wanted]))
            taken = bisect_right(sums, request.bytes_left)
            request.bytes_left -= sums[taken - 1] if taken else 0
        request.left -= taken
        if taken:
            request.served(offer.now_ns)
        if taken < wanted:
            self._too_big(request, offer, taken)
        elif not request.left:
            self._filled(request, offer)
        return range(taken)

    def _fits(self, request: PullRequest, offer: Offer, position: int) -> bool:
        assert offer.sizes is not None
        if offer.sizes[position] > request.bytes_left:
            self._too_big(request, offer, position)
            return False
        request.bytes_left -= offer.sizes[position]
        return True

    def _too_big(self, request: PullRequest, offer: Offer, position: int) -> None:
        """The next message does not fit: the request ends, and hears which size would do."""
        assert offer.sizes is not None
        del self._ring[request]
        status = request.ended(409, "Message Size Exceeds MaxBytes")
        needed = ("Nats-Msg-Size", offer.sizes[position])
        status = status._replace(fields=(*status.fields, needed))
        seq, until = offer.seqs[position], self._stuck_ns
        if seq == self._stuck_seq and offer.now_ns < until:
            self._held.append((until, status))
        else:
            offer.statuses.append(status)
        self._stuck_seq, self._stuck_ns = seq, offer.now_ns + REPEAT_NS

    def _filled(self, request: PullRequest, offer: Offer) -> None:
        del self._ring[request]
        if request.limited and request.bytes_left:
            offer.statuses.append(request.ended(409, "Batch Completed"))

    def _order(self) -> None:
        if self._policy is PriorityPolicy.PRIORITIZED:
            self._ring = dict.fromkeys(sorted(self._ring, key=lambda item: item.priority))
