"""Which schedules a stream has and when each is due; only so many, of those that are due first.

Of a subject only the last schedule counts. When there are too many, those that are due last are
forgotten, and the time is remembered from which on somebody has to look for them again.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

SCHEDULES_MAX: Final = 100_000


class Due(NamedTuple):
    """A schedule, and when it fires; they sort by that."""

    us: int
    offset: int
    subject: bytes


class ScheduleTable:
    """Of one stream."""

    def __init__(self) -> None:
        self._known: dict[bytes, Due] = {}
        self._heap: list[Due] = []
        self.beyond_us: int | None = None
        """From here on there may be others that were forgotten."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, subject: bytes) -> Due | None:
        return self._known.get(subject)

    def put(self, due: Due) -> None:
        """A schedule is due then, whatever was known of its subject."""
        self._known[due.subject] = due
        heappush(self._heap, due)
        if len(self._known) > SCHEDULES_MAX:
            self._forget_last()
        elif len(self._heap) > 2 * len(self._known) + SCHEDULES_MAX // 100:
            self._tidy()

    def forget(self, due: Due) -> None:
        """Unless the subject has another one by now."""
        if self._known.get(due.subject) == due:
            del self._known[due.subject]

    def next_us(self) -> int | None:
        """When something has to be done next; None is never."""
        self._drop_outdated()
        times = [self._heap[0].us] if self._heap else []
        if self.beyond_us is not None:
            times.append(self.beyond_us)
        return min(times, default=None)

    def due(self, now_us: int, most: int) -> list[Due]:
        """Those that are due, the first ones first; each has to be put again or forgotten."""
        found: list[Due] = []
        self._drop_outdated()
        while self._heap and self._heap[0].us <= now_us and len(found) < most:
            found.append(heappop(self._heap))
            self._drop_outdated()
        return found

    def _drop_outdated(self) -> None:
        heap, known = self._heap, self._known
        while heap and known.get(heap[0].subject) != heap[0]:
            heappop(heap)

    def _forget_last(self) -> None:
        ordered = sorted(self._known.values())
        half = len(ordered) // 2
        beyond_us = ordered[half].us
        self.beyond_us = beyond_us if self.beyond_us is None else min(self.beyond_us, beyond_us)
        self._known = {due.subject: due for due in ordered[:half]}
        self._tidy()

    def _tidy(self) -> None:
        self._heap = list(self._known.values())
        heapify(self._heap)
