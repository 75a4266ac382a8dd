"""Messages that were delivered and are not settled, and when each is due for redelivery.

A run that was delivered together has one deadline and is one entry of a heap. A message whose
deadline was moved since (nak, progress, redelivery) has its own deadline in a dict. When an entry
of the heap comes due, it applies to those of its messages whose deadline it still is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count, islice, takewhile
from math import isqrt
from typing import Final

from penstock.ledger.rules import Rules

ENTRIES_KEPT: Final = 64
"""The heap is not tidied below this number of entries."""
HOLES_KEPT: Final = 256
"""The table is rebuilt after this many removals, later if it is large."""

_NOT_DUE: Final = -1
"""The deadline of a message that waits for redelivery."""


class Pending:
    """The messages in flight, as numbers, without an object for each."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.consumer_seqs: dict[int, int] = {}
        """By stream sequence, ascending: the consumer sequence of the first delivery."""
        self.deliveries: dict[int, int] = {}
        """The number of deliveries of unsettled messages, if it is not 1, and of messages that
        exceeded max_deliver.
        """
        self.recounted: set[int] = set()
        """Messages whose number of deliveries changed since the journal's last settlement."""
        self._queued: dict[int, None] = {}
        self._moved: dict[int, int] = {}
        self._delayed: set[int] = set()
        self._due: list[tuple[int, int, Sequence[int]]] = []
        self._entries_max = ENTRIES_KEPT
        self._turn = 0
        self._holes = 0

    def __len__(self) -> int:
        return len(self.consumer_seqs)

    @property
    def counted(self) -> int:
        """The number of messages that count against the limit."""
        return len(self.consumer_seqs) - len(self._delayed)

    @property
    def redelivered(self) -> int:
        """The number of unsettled messages that were delivered more than once."""
        return sum(count > 1 for count in self.deliveries.values())

    @property
    def queued(self) -> int:
        """The number of messages that wait for redelivery."""
        return len(self._queued)

    def add(self, seqs: Sequence[int], consumer_seq: int, now_ns: int) -> None:
        """Record first deliveries, in ascending order."""
        self.consumer_seqs.update(zip(seqs, count(consumer_seq), strict=False))
        self._wait(seqs, now_ns + self.rules.wait_ns(1))

    def repeat(self, seqs: Iterable[int], now_ns: int) -> None:
        """Record redeliveries."""
        for seq in seqs:
            deliveries = self.count(seq) + 1
            self._recount(seq, deliveries)
            self._queued.pop(seq, None)
            self._move(seq, now_ns + self.rules.wait_ns(deliveries))

    def undo_delivery(self, seqs: Iterable[int]) -> None:
        """Undo first deliveries that nobody received."""
        for seq in seqs:
            self._recount(seq, 0)

    def count(self, seq: int) -> int:
        """The number of deliveries of a pending message."""
        return self.deliveries.get(seq, 1)

    def settle(self, seqs: Iterable[int]) -> list[int]:
        """Remove settled messages; returns those that were pending."""
        pop = self.consumer_seqs.pop
        settled = [seq for seq in seqs if pop(seq, None) is not None]
        self._forget(settled)
        self._holes += len(settled)
        if self._holes > HOLES_KEPT + isqrt(128 * len(self.consumer_seqs)):
            # Finding the first entry of a dict skips every entry that was removed before it.
            self.consumer_seqs, self._holes = dict(self.consumer_seqs), 0
        return settled

    def remove_count(self, seq: int) -> None:
        """Remove the number of deliveries of a message."""
        if self.deliveries.pop(seq, None) is not None:
            self.recounted.add(seq)

    def remove_counts(self, first_seq: int) -> None:
        """Remove the numbers of deliveries of messages before `first_seq`."""
        for seq in [seq for seq in self.deliveries if seq < first_seq]:
            self.remove_count(seq)

    def up_to(self, seq: int) -> list[int]:
        """The pending messages up to and including a sequence."""
        return list(takewhile(lambda item: item <= seq, self.consumer_seqs))

    def nak(self, seq: int, delay_ns: int, now_ns: int) -> bool:
        """Make a message due after a delay; returns True if it is due now."""
        if delay_ns <= 0 and self.rules.nak_backoff:
            delay_ns = self.rules.wait_ns(self.count(seq))
        self._queued.pop(seq, None)
        if delay_ns <= 0:
            return True
        if self.rules.delayed_free:
            self._delayed.add(seq)
        self._move(seq, now_ns + delay_ns)
        return False

    def restart(self, seq: int, now_ns: int) -> None:
        """Restart the ack wait of a message."""
        if seq in self.consumer_seqs and seq not in self._queued:
            self._move(seq, now_ns + self.rules.wait_ns(self.count(seq)))

    def queue(self, seqs: Iterable[int]) -> list[int]:
        """Queue messages for redelivery; returns those that exceeded max_deliver instead."""
        most = self.rules.deliveries_max
        exhausted = []
        for seq in seqs:
            self._delayed.discard(seq)
            if most and self.deliveries.get(seq, 1) >= most:
                exhausted.append(seq)
                # Its number of deliveries distinguishes it from a settled message.
                self._recount(seq, self.count(seq))
                del self.consumer_seqs[seq]
                self._queued.pop(seq, None)
                self._moved.pop(seq, None)
            else:
                self._queued[seq] = None
                self._moved[seq] = _NOT_DUE
        return exhausted

    def overdue(self, now_ns: int) -> list[int]:
        """Return, once and in ascending order, the messages whose deadline has passed."""
        overdue: set[int] = set()
        while self._due and self._due[0][0] <= now_ns:
            deadline, _, seqs = heappop(self._due)
            overdue.update(
                seq
                for seq in seqs
                if seq in self.consumer_seqs and self._moved.get(seq, deadline) == deadline
            )
        return sorted(overdue)

    def take(self, most: int) -> list[int]:
        """The next messages to redeliver; they stay queued until they are delivered."""
        return list(islice(self._queued, most))

    def next_deadline(self) -> int | None:
        return self._due[0][0] if self._due else None

    def deadline(self, seq: int) -> int | None:
        """The deadline of a message; None if it waits for redelivery."""
        if seq in self._queued:
            return None
        moved = self._moved.get(seq)
        if moved is not None:
            return moved
        return next((deadline for deadline, _, seqs in self._due if seq in seqs), None)

    def restore(
        self, consumer_seqs: dict[int, int], deliveries: dict[int, int], now_ns: int
    ) -> None:
        """Restore recorded messages; their deadlines start now."""
        self.clear()
        self.consumer_seqs, self.deliveries = consumer_seqs, deliveries
        waits: dict[int, list[int]] = {}
        for seq in consumer_seqs:
            waits.setdefault(self.rules.wait_ns(self.count(seq)), []).append(seq)
        for wait_ns, seqs in waits.items():
            self._wait(seqs, now_ns + wait_ns)

    def clear(self) -> None:
        self.consumer_seqs.clear()
        self.deliveries.clear()
        self.recounted.clear()
        self._queued.clear()
        self._moved.clear()
        self._delayed.clear()
        self._due.clear()

    def _forget(self, settled: list[int]) -> None:
        if self.deliveries or self._queued or self._moved:
            for seq in settled:
                self.remove_count(seq)
                self._queued.pop(seq, None)
                self._moved.pop(seq, None)
                self._delayed.discard(seq)
        if not self.consumer_seqs:
            self._due.clear()

    def _recount(self, seq: int, count: int) -> None:
        self.deliveries[seq] = count
        self.recounted.add(seq)

    def _move(self, seq: int, deadline: int) -> None:
        self._moved[seq] = deadline
        self._wait((seq,), deadline)

    def _wait(self, seqs: Sequence[int], deadline: int) -> None:
        self._turn += 1
        heappush(self._due, (deadline, self._turn, seqs))
        if len(self._due) > self._entries_max:
            self._tidy()

    def _tidy(self) -> None:
        """Remove the entries of the heap that apply to no pending message."""
        known, moved = self.consumer_seqs, self._moved
        self._due = [
            entry
            for entry in self._due
            if any(seq in known and moved.get(seq, entry[0]) == entry[0] for seq in entry[2])
        ]
        heapify(self._due)
        self._entries_max = max(ENTRIES_KEPT, 2 * len(self._due))
