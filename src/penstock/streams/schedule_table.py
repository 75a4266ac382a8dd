"""The schedules of one stream in memory, by time and by subject."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

SCHEDULES_MAX: Final = 100_000


class ScheduledFiring(NamedTuple):
    """A schedule and the time when it fires; sorted by time."""

    us: int
    offset: int
    subject: bytes


class ScheduleTable:
    """The schedules of one stream that fire first, up to a limit.

    Only the last schedule of a subject counts. Beyond the limit the table drops the schedules that
    fire last, and remembers from which time on they must be looked up again.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, ScheduledFiring] = {}
        self._heap: list[ScheduledFiring] = []
        self.beyond_us: int | None = None
        """Forgotten schedules may fire from this time on; None if none was forgotten."""

    def __len__(self) -> int:
        return len(self._known)

    def get(self, subject: bytes) -> ScheduledFiring | None:
        return self._known.get(subject)

    def put(self, due: ScheduledFiring) -> None:
        """Set when a schedule fires; it replaces the one before of its subject."""
        self._known[due.subject] = due
        heappush(self._heap, due)
        if len(self._known) > SCHEDULES_MAX:
            self._forget_last()
        elif len(self._heap) > 2 * len(self._known) + SCHEDULES_MAX // 100:
            self._tidy()

    def forget(self, due: ScheduledFiring) -> None:
        """Remove a schedule, unless its subject has another one by now."""
        if self._known.get(due.subject) == due:
            del self._known[due.subject]

    def next_us(self) -> int | None:
        """When something must be done next; None if never."""
        self._drop_outdated()
        times = [self._heap[0].us] if self._heap else []
        if self.beyond_us is not None:
            times.append(self.beyond_us)
        return min(times, default=None)

    def due(self, now_us: int, most: int) -> list[ScheduledFiring]:
        """Remove and return due schedules, earliest first; the caller puts each again or forgets
        it.
        """
        found: list[ScheduledFiring] = []
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
